"""`DistributedOptimizer`: an optimizer of one process becomes one of all ranks.

An optimizer stays the same object and is given another class, a subclass of its own, which averages
gradients before they are applied. There is one kind of subclass for each kind of optimizer of
TensorFlow and Keras (optimizer_adapters.py).
"""

from __future__ import annotations

import contextlib
import functools

from group_embedding.annotations import Optimizer
from group_embedding.optimizers.bases import changed_method
from group_embedding.optimizers.loss_scale import inside, is_loss_scale, let_loss_scales_ask
from group_embedding.ranks.distributed.optimizer_adapters import (
    Distributed,
    adapter_of,
    adapter_of_replicas,
)
from group_embedding.ranks.distributed.saved_whole import keep_slots_whole
from group_embedding.ranks.exchange.active import current
from group_embedding.ranks.sharding.replica_tables import is_over_replicas


def DistributedOptimizer(optimizer: Optimizer) -> Optimizer:  # noqa: N802
    """Makes `optimizer` train one model on all ranks.

    Gradients are those of the mean of the ranks' losses. The exchange makes those of sharded tables
    and EmbeddingVariables so, on the owner of each row; all others are averaged here. With a loss
    that is a mean over the batch, N ranks with batches of B/N take the steps of one process with a
    batch of B; the learning rate is not scaled. When ranks have batches of different sizes, each
    rank counts alike. Around a wrapped optimizer (`ge.optimizers.wrap`), owners update tables with
    the same one op as one process does.

    All ranks start from the dense variables of rank 0. Every rank must take as many steps. A Keras
    optimizer's `clipnorm` and `global_clipnorm` limit the norms of the rows of all ranks; what is
    done to gradients by hand, such as `tf.clip_by_global_norm`, sees of a table this rank's alone.
    A LossScaleOptimizer, for mixed precision in float16, goes around or inside: all ranks skip a
    step, and lower the scale, when gradients of one are not finite.

    Where the ranks are the replicas of a strategy (`ge.sok.Init` in its scope), its sums of the
    dense gradients take the place of means, and the optimizer must be of `tf.keras.optimizers`.

    Args:
        optimizer: a `tf.compat.v1.train.Optimizer` or a Keras optimizer (also a legacy one, and one
            of Keras 3), or a LossScaleOptimizer around one. It is changed in place.

    Returns:
        `optimizer`; in one process by itself, as it was.

    Raises:
        TypeError: `optimizer` is none of these.
        ValueError: when Keras 3 has XLA compile the step, as it does by itself with a model on GPUs
            that has no layer of this library: `compile(jit_compile=False)` says that it shall not.

    Example:

    >>> optimizer = ge.DistributedOptimizer(tf.keras.optimizers.Adagrad(0.1))
    """
    if is_loss_scale(optimizer):
        if inside(optimizer) is not None:
            DistributedOptimizer(inside(optimizer))
        return optimizer
    adapter = adapter_of(optimizer)
    if adapter is None:
        raise TypeError(
            "DistributedOptimizer: expected a tf.compat.v1.train.Optimizer or a Keras optimizer, "
            f"got {type(optimizer).__name__}"
        )
    exchange = current()
    over_replicas = is_over_replicas(exchange)
    adapter = adapter_of_replicas(optimizer) if over_replicas else adapter
    if (exchange.num_ranks > 1 or over_replicas) and not isinstance(optimizer, Distributed):
        let_loss_scales_ask()
        keep_slots_whole()
        optimizer.__class__ = _distributed_class(adapter, type(optimizer))  # type: ignore[arg-type]
        optimizer._ge_exchange = exchange
    return optimizer


def distribute_new_optimizers():
    """Inside, in any thread, each optimizer that is made becomes a DistributedOptimizer."""
    if current().num_ranks == 1:
        return contextlib.nullcontext()
    return changed_method("__init__", _then_distribute)


def _then_distribute(init):
    @functools.wraps(init)
    def __init__(optimizer, *args, **kwargs):  # noqa: N807
        init(optimizer, *args, **kwargs)
        DistributedOptimizer(optimizer)

    return __init__


@functools.cache
def _distributed_class(adapter, stock):
    # Under the stock name, which is what Keras writes when it serialises an optimizer.
    namespace = {"__module__": stock.__module__, "__doc__": stock.__doc__}
    return type(stock.__name__, (adapter, stock), namespace)
