"""One process, which is all ranks there are."""

import tensorflow as tf

from group_embedding.exchange.interface import Exchange


class LocalExchange(Exchange):
    """Hands back what it is given."""

    @property
    def rank(self):
        return 0

    @property
    def num_ranks(self):
        return 1

    def alltoall(self, tensor, splits, name, what=None):
        return tf.identity(tensor, name), tf.identity(splits)

    def average(self, tensors, name):
        return list(tensors)

    def allgather(self, tensors, name):
        return list(tensors)

    def broadcast(self, tensors, name):
        return list(tensors)

    def barrier(self, name):
        return tf.no_op(name)
