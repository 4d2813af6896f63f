"""Gradients as SOK has them: sums over the ranks.

The gradient of a group lookup is the gradient of the mean of the ranks' losses: the exchange
divides by the number of ranks. SOK adds the gradients of the ranks up, and its scripts divide the
loss by the number of samples of all ranks. So gradients are multiplied by the exchange's divisor.
"""

import tensorflow as tf

from group_embedding.ranks.sharding import exchange_of


def summed_over_ranks(result, param):
    """The result of a lookup in `param`, with a gradient that the ranks add up."""
    exchange = exchange_of(param)
    return result if exchange is None else _scale_gradient(result, exchange.gradient_divisor)


def weights_of_this_rank(weights, param):
    """The weights of a lookup. They belong to samples of this rank alone, and no other rank adds to
    their gradient: it is divided by the factor of `summed_over_ranks`."""
    exchange = exchange_of(param)
    if weights is None or exchange is None:
        return weights
    values = _scale_gradient(weights.values, 1 / exchange.gradient_divisor)
    return weights.with_values(values)


def _scale_gradient(tensor, factor):
    @tf.custom_gradient
    def scaled(same):
        return tf.identity(same), lambda gradient: gradient * tf.cast(factor, gradient.dtype)

    return scaled(tensor)
