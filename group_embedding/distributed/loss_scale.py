"""Mixed precision in float16 over ranks: a step whose gradients overflow on one rank is skipped by
all, and all lower the scale of the loss.

A LossScaleOptimizer asks the gradients that it is given whether they are finite, and then has the
optimizer inside, a DistributedOptimizer, apply them or not. Gradients that are not averaged yet,
and those of tables, of which a rank has its own rows, overflow on some ranks alone: who goes on
would wait for the others. So it is given one number to ask, the same on all ranks.
"""

import functools

import tensorflow as tf

from group_embedding.distributed.saved_whole import load_whole, save_whole
from group_embedding.optimizers.bases import inside, loss_scale_kinds


@functools.cache  # once
def let_loss_scales_know_ranks():
    """From now on, LossScaleOptimizers around a DistributedOptimizer decide for all ranks, and are
    saved with the rows of all: also those that `compile` puts there."""
    for kind in loss_scale_kinds():
        if hasattr(kind, "check_finite"):  # Keras 3
            kind.check_finite = _asking_of_keras_3(kind.check_finite)
        else:
            kind.apply_gradients = _asking(kind.apply_gradients)
        if hasattr(kind, "save_own_variables"):
            _save_whole(kind)


def _asking_of_keras_3(check_finite):
    @functools.wraps(check_finite)
    def check_finite_on_all_ranks(loss_scale, grads):
        exchange = _exchange_of(loss_scale)
        return check_finite(loss_scale, grads if exchange is None else [_sum_up(exchange, grads)])

    return check_finite_on_all_ranks


def _asking(apply_gradients):
    @functools.wraps(apply_gradients)
    def apply_gradients_of_all_ranks(loss_scale, *args, **kwargs):
        exchange, scale = _exchange_of(loss_scale), loss_scale._loss_scale
        is_dynamic = hasattr(scale, "update")  # a fixed one asks nothing
        if exchange is not None and is_dynamic and "update" not in vars(scale):
            stock = scale.update
            scale.update = lambda grads: stock([_sum_up(exchange, grads)])
        return apply_gradients(loss_scale, *args, **kwargs)

    return apply_gradients_of_all_ranks


def _save_whole(kind):
    save, load = kind.save_own_variables, kind.load_own_variables

    @functools.wraps(save)
    def save_own_variables(loss_scale, store):
        if _exchange_of(loss_scale) is None:
            save(loss_scale, store)
        else:
            save_whole(loss_scale, store)

    @functools.wraps(load)
    def load_own_variables(loss_scale, store):
        stock = functools.partial(load, loss_scale)
        if _exchange_of(loss_scale) is None:
            stock(store)
        else:
            load_whole(loss_scale, store, stock)

    kind.save_own_variables, kind.load_own_variables = save_own_variables, load_own_variables


def _exchange_of(loss_scale):
    """None where the optimizer inside is one of one process."""
    return getattr(inside(loss_scale), "_ge_exchange", None)


def _sum_up(exchange, grads):
    """0, or NaN where a gradient of any rank is infinite or NaN."""
    if exchange.strategy is not None and tf.distribute.in_cross_replica_context():
        parts = map(exchange.strategy.experimental_local_results, grads)
        return _nan_if_any([part for of_replicas in parts for part in of_replicas])
    return exchange.average([_nan_if_any(grads)], "overflow_of_gradients")[0]


def _nan_if_any(grads):
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads if g is not None]
    are_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values])
    return tf.where(are_finite, 0.0, float("nan"))
