"""Mixed precision in float16 over ranks: a step whose gradients overflow on one rank is skipped by
all, and all lower the scale of the loss.

Gradients that are not averaged yet, and those of tables, of which a rank has its own rows, overflow
on some ranks alone: who went on would wait for the others.
"""

import functools

import tensorflow as tf

from group_embedding.distributed.saved_whole import load_whole, save_whole
from group_embedding.optimizers.loss_scale import (
    inside,
    let_loss_scales_ask,
    loss_scale_kinds,
    nan_if_any,
)


def overflow_of_ranks(exchange, grads):
    """0, or NaN where a gradient of any rank is infinite or NaN: the same on all ranks."""
    if exchange.strategy is not None and tf.distribute.in_cross_replica_context():
        parts = map(exchange.strategy.experimental_local_results, grads)
        return nan_if_any([part for of_replicas in parts for part in of_replicas])
    return exchange.average([nan_if_any(grads)], "overflow_of_gradients")[0]


@functools.cache  # once
def let_loss_scales_know_ranks():
    """From now on, LossScaleOptimizers around a DistributedOptimizer decide for all ranks, and are
    saved with the rows of all: also those that `compile` makes."""
    let_loss_scales_ask()
    for kind in loss_scale_kinds():
        if hasattr(kind, "save_own_variables"):
            _save_whole(kind)


def _save_whole(kind):
    save, load = kind.save_own_variables, kind.load_own_variables

    @functools.wraps(save)
    def save_own_variables(loss_scale, store):
        if _is_of_ranks(loss_scale):
            save_whole(loss_scale, store)
        else:
            save(loss_scale, store)

    @functools.wraps(load)
    def load_own_variables(loss_scale, store):
        stock = functools.partial(load, loss_scale)
        if _is_of_ranks(loss_scale):
            load_whole(loss_scale, store, stock)
        else:
            stock(store)

    kind.save_own_variables, kind.load_own_variables = save_own_variables, load_own_variables


def _is_of_ranks(loss_scale):
    return getattr(inside(loss_scale), "_ge_exchange", None) is not None
