"""`init` and `Init`: the ranks of a job, under SOK's names."""

import tensorflow as tf

from group_embedding import exchange
from group_embedding.distributed import enable_distributed_strategy
from group_embedding.distributed.replicas import share_over_replicas


def init(comm_tool="horovod", use_legacy_optimizer=False):
    """Starts SOK version 2 on this rank: `ge.enable_distributed_strategy("collective")`.

    Variables made from now on are spread over the ranks that horovodrun launched. Without it there
    is one rank. In the scope of a `tf.distribute.MirroredStrategy` its replicas are the ranks: make
    tables and optimizers in that scope, and look up and train in `strategy.run`. A second call
    changes nothing.

    Args:
        comm_tool: 'horovod'.
        use_legacy_optimizer: must be False: `tf.keras.optimizers` stays what it is, and
            `OptimizerWrapper` takes its optimizers as well as legacy ones.

    Raises:
        ValueError: another word, or True; another strategy, or one beside Horovod.
        ImportError: Horovod is missing; the message has the command that installs it.

    Example, run with `horovodrun -np 2 python train.py`:

    >>> ge.sok.init()
    """
    if comm_tool != "horovod":
        raise ValueError(f"init: expected comm_tool to be 'horovod', got {comm_tool!r}")
    if use_legacy_optimizer:
        raise ValueError(
            "init: expected use_legacy_optimizer=False, as tf.keras.optimizers stays what it is; "
            "OptimizerWrapper takes its optimizers, and those of tf.keras.optimizers.legacy"
        )
    if tf.distribute.has_strategy():
        share_over_replicas(tf.distribute.get_strategy())
    else:
        enable_distributed_strategy("collective")


def Init(global_batch_size=None):  # noqa: N802
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
    init()
    num_ranks = exchange.current().num_ranks
    size = global_batch_size
    if size is not None and (not isinstance(size, int) or size < 1 or size % num_ranks):
        raise ValueError(
            f"Init: expected global_batch_size to be a positive multiple of {num_ranks}, the "
            f"number of ranks, got {size!r}"
        )
    return None if tf.executing_eagerly() else tf.no_op("sok_init")
