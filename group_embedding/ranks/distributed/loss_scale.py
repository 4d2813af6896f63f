"""Mixed precision in float16 over ranks: a step whose gradients overflow on one rank is skipped by
all, and all lower the scale of the loss.

Gradients that are not averaged yet, and those of tables, of which a rank has its own rows, overflow
on some ranks alone: who went on would wait for the others.
"""

import tensorflow as tf

from group_embedding.optimizers.loss_scale import nan_if_any


def overflow_of_ranks(exchange, grads):
    """0, or NaN where a gradient of any rank is infinite or NaN: the same on all ranks."""
    if exchange.strategy is not None and tf.distribute.in_cross_replica_context():
        parts = map(exchange.strategy.experimental_local_results, grads)
        return nan_if_any([part for of_replicas in parts for part in of_replicas])
    return exchange.average([nan_if_any(grads)], "overflow_of_gradients")[0]
