"""Which ranks have a GPU each, so that the lookup's own exchange can be NCCL's."""

from __future__ import annotations

import json
import os
import socket
import warnings

from group_embedding.ops._library import core
from group_embedding.ops._nccl import name_nccl
from group_embedding.ops.sharded_group_lookup import NcclRanks
from group_embedding.ranks.exchange.gather_strings import gather_text
from group_embedding.ranks.exchange.interface import Exchange


def form_nccl_ranks(
    exchange: Exchange, gpu: int | None, timeout_seconds: float
) -> NcclRanks | None:
    """Prepares one NCCL communicator of all ranks of `exchange`. Every rank must call it.

    Warns with the reason where some ranks have a GPU and NCCL still cannot be used.

    Args:
        gpu: the index of this rank's GPU, or None.
        timeout_seconds: how long an exchange waits for other ranks.

    Returns:
        The identity of the communicator, for ops to open it. None where there is one rank, where a
        rank has no GPU of its own, where the library was built without CUDA, and where NCCL is
        missing.
    """
    if exchange.num_ranks == 1:
        return None
    here = {"gpu": _bus_id(gpu), "nccl_id": "", "why_not": "", "peers": _reaches_peers()}
    if here["gpu"] is not None:
        here.update(_make_id())
    ranks = [json.loads(text) for text in gather_text(exchange, json.dumps(here), "nccl")]
    reason = _why_not(ranks)
    if reason:
        if any(rank["gpu"] for rank in ranks):
            warnings.warn(
                f"rows of tables on GPUs will travel through the host, not NCCL: {reason}",
                stacklevel=4,
            )
        return None
    nccl_id = bytes.fromhex(ranks[0]["nccl_id"])
    return NcclRanks(
        nccl_id, exchange.rank, exchange.num_ranks, timeout_seconds, _may_use_peer_memory(ranks)
    )


def _why_not(ranks):
    for number, rank in enumerate(ranks):
        if rank["gpu"] is None:
            return f"rank {number} has no GPU"
        if rank["why_not"]:
            return f"rank {number}: {rank['why_not']}"
        first = next(i for i, other in enumerate(ranks) if other["gpu"] == rank["gpu"])
        if first != number:
            return f"ranks {first} and {number} share a GPU"
    return ""


def _may_use_peer_memory(ranks):
    hosts = {rank["gpu"].split()[0] for rank in ranks}
    return len(hosts) == 1 and all(rank["peers"] for rank in ranks)


def _reaches_peers():
    """Returns whether GPUs may use each other's memory: a setting that keeps NCCL from the GPUs'
    links counts for all transfers."""
    return os.environ.get("NCCL_P2P_DISABLE", "0") == "0"


def _bus_id(gpu):
    """The bus id of a GPU, which is unique on its host."""
    if gpu is None:
        return None
    if not core().has_cuda:
        return None
    return f"{socket.gethostname()} {core().pci_bus_id(gpu)}"


def _make_id():
    name_nccl()
    try:
        return {"nccl_id": core().nccl_id().hex()}
    except RuntimeError as error:
        return {"why_not": str(error)}
