"""Which ranks exchange by NCCL, and which of these write into each other's memory."""

import json
import warnings

import pytest

from group_embedding import exchange
from group_embedding.ranks.exchange.local import LocalExchange
from group_embedding.ranks.exchange.nccl import form_nccl_ranks


class Job(LocalExchange):
    """Ranks of which some have said what GPU they have."""

    def __init__(self, num_ranks):
        self._num_ranks = num_ranks

    @property
    def num_ranks(self):
        return self._num_ranks


@pytest.mark.parametrize(
    "gpus, reason",
    [
        (["a 1", None], "rank 1 has no GPU"),
        (["a 1", "a 2", "a 1"], "ranks 0 and 2 share a GPU"),
        ([None, None], None),
    ],
)
def test_ranks_without_a_gpu_each_do_without_nccl(monkeypatch, gpus, reason):
    # Given ranks with these GPUs
    texts = [json.dumps({"gpu": gpu, "nccl_id": "", "why_not": "", "peers": True}) for gpu in gpus]
    monkeypatch.setattr(exchange.nccl, "gather_text", lambda *_: texts)
    # When they would meet
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ranks = form_nccl_ranks(Job(len(gpus)), gpu=None, timeout_seconds=30)
    # Then they do not, and say why, if one has a GPU
    assert ranks is None
    assert [reason in str(one.message) for one in said] == ([True] if reason else [])


@pytest.mark.parametrize(
    "gpus, peers, has_peer_buffers",
    [
        (["a 1", "a 2"], [True, True], True),
        (["a 1", "b 1"], [True, True], False),
        (["a 1", "a 2"], [True, False], False),
    ],
    ids=["one_host", "two_hosts", "a_rank_without_peers"],
)
def test_ranks_of_one_host_may_write_into_each_others_memory(
    monkeypatch, gpus, peers, has_peer_buffers
):
    # Given ranks with a GPU each
    ranks = [
        {"gpu": gpu, "nccl_id": "0a", "why_not": "", "peers": of_rank}
        for gpu, of_rank in zip(gpus, peers)
    ]
    texts = [json.dumps(rank) for rank in ranks]
    monkeypatch.setattr(exchange.nccl, "gather_text", lambda *_: texts)
    # When they meet
    met = form_nccl_ranks(Job(len(gpus)), gpu=None, timeout_seconds=30)
    # Then they have peer buffers if all are on one host and reach their peers
    assert (met.nccl_id, met.use_peer_memory) == (b"\n", has_peer_buffers)


@pytest.mark.parametrize("disabled, reaches", [(None, True), ("0", True), ("1", False)])
def test_no_peer_memory_where_nccl_is_kept_from_the_links(monkeypatch, disabled, reaches):
    # Given the variable that NCCL reads
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    if disabled is not None:
        monkeypatch.setenv("NCCL_P2P_DISABLE", disabled)
    told = []
    monkeypatch.setattr(
        exchange.nccl, "gather_text", lambda _, text, name: told.append(text) or [text]
    )
    # When a rank tells the others what it has
    form_nccl_ranks(Job(2), gpu=None, timeout_seconds=30)
    # Then that is whether it reaches its peers
    assert json.loads(told[0])["peers"] is reaches
