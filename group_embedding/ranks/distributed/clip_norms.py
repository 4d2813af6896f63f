"""Norms of gradients whose rows are on several ranks."""

import tensorflow as tf

from group_embedding.optimizers.trained_tables import sum_rows
from group_embedding.ranks.sharding.sharded_table import exchange_of


def any_spread(variables):
    """Returns whether some variable is sharded: a rank has only some of its rows."""
    return any(exchange_of(variable) is not None for variable in variables)


def clip_by_norms(exchange, gradients, variables, clipnorm, global_clipnorm):
    """Limits norms as a Keras optimizer does in one process; the same factors on all ranks.

    Args:
        gradients: averaged over the ranks: one per variable, or None.
        clipnorm: the largest L2 norm of the gradient of a variable, or None.
        global_clipnorm: that of all gradients together, or None.
    """
    gradients = [sum_rows(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]
    is_spread = [exchange_of(variables[i]) is not None for i in given]
    here = tf.stack([_sum_of_squares(gradients[i]) for i in given])
    (mean,) = exchange.average([here], "clip_norms")
    squares = tf.where(is_spread, mean * exchange.num_ranks, here)
    if clipnorm:
        factors = clipnorm / tf.maximum(tf.sqrt(squares), clipnorm)
    else:
        norm = tf.sqrt(tf.reduce_sum(squares))
        factors = tf.fill([len(given)], global_clipnorm / tf.maximum(norm, global_clipnorm))
    for i, factor in zip(given, tf.unstack(factors)):
        gradients[i] = _scale(gradients[i], factor)
    return gradients


def _sum_of_squares(gradient):
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_sum(tf.square(tf.cast(values, tf.float32)))


def _scale(gradient, factor):
    factor = tf.cast(factor, gradient.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor
