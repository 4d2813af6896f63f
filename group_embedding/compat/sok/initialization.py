"""`init` and `Init`: the ranks of a job, under SOK's names."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from group_embedding.ranks import exchange
from group_embedding.ranks.distributed import enable_distributed_strategy, share_over_replicas

_COMM_TOOLS = ("horovod", "single")
# Variables of horovodrun, and of the MPI launchers that Horovod supports.
_NUMBERS_OF_RANKS = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def init(comm_tool: str = "horovod", use_legacy_optimizer: bool = True) -> None:
    """Starts SOK version 2 on this rank: `ge.enable_distributed_strategy("collective")`.

    Variables made from now on are spread over the ranks that horovodrun launched. Without it there
    is one rank, which needs no Horovod. In the scope of a `tf.distribute.MirroredStrategy` its
    replicas are the ranks: make tables and optimizers in that scope, and look up and train in
    `strategy.run`. A second call changes nothing.

    Args:
        comm_tool: 'horovod'; 'single': this process is the only rank, however it was launched.
        use_legacy_optimizer: True: with Keras 2, `tf.keras.optimizers` and `tf.optimizers` are from
            now on `tf.keras.optimizers.legacy`, whose sparse updates move the rows that were looked
            up alone, in the whole process. False: they stay what they are, and `OptimizerWrapper`
            takes their optimizers too. Keras 3 has no legacy optimizers, so nothing changes.

    Raises:
        ValueError: another word; another strategy, or one beside Horovod.
        ImportError: there are other ranks and Horovod is missing; the message has the command that
            installs it.

    Example, run with `horovodrun -np 2 python train.py`:

    >>> ge.sok.init()
    """
    if comm_tool not in _COMM_TOOLS:
        raise ValueError(f"init: expected comm_tool to be 'horovod' or 'single', got {comm_tool!r}")
    if use_legacy_optimizer:
        _put_legacy_optimizers()
    if comm_tool == "horovod":
        _join_ranks()


def Init(global_batch_size: int | None = None) -> Any:  # noqa: N802
    """Starts SOK version 1 on this rank, as `init` does.

    Args:
        global_batch_size: samples of a step on all ranks together. It is checked, and not needed:
            nothing is laid out for it, and batches of any size do.

    Returns:
        In a graph of TensorFlow 1 an op, which scripts run in their session; None otherwise.

    Raises:
        ValueError: a batch that is not a positive number of samples, the same on each rank.
        ImportError: as `init`.

    Example:

    >>> ge.sok.Init(global_batch_size=1024)
    """
    _join_ranks()
    num_ranks = exchange.current().num_ranks
    size = global_batch_size
    if size is not None and (not isinstance(size, int) or size < 1 or size % num_ranks):
        raise ValueError(
            f"Init: expected global_batch_size to be a positive multiple of {num_ranks}, the "
            f"number of ranks, got {size!r}"
        )
    return None if tf.executing_eagerly() else tf.no_op("sok_init")


def _join_ranks():
    if tf.distribute.has_strategy():
        share_over_replicas(tf.distribute.get_strategy())
        return
    try:
        enable_distributed_strategy("collective")
    except ImportError:  # of Horovod, which one process can do without
        if any(int(os.environ.get(name, 1)) > 1 for name in _NUMBERS_OF_RANKS):
            raise


def _put_legacy_optimizers():
    legacy = getattr(tf.keras.optimizers, "legacy", None)
    # In Keras 3 each name of `legacy` only says that it is gone.
    if hasattr(getattr(legacy, "Optimizer", None), "apply_gradients"):
        # Estimators, imported where they are first used, find it by its path.
        legacy.legacy = legacy
        tf.keras.optimizers = legacy
        tf.optimizers = legacy
