"""Tables, batches and steps of tests on ranks that compare tables of several placements."""

import contextlib

import tensorflow as tf

from group_embedding import exchange
from group_embedding.ranks.exchange.message_exchange import MessageExchange
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.ranks.sharding.sharded_table import gather_rows

NUM_SAMPLES = 11


def make_rows(name, value, placement):
    def create(shape, initializer):
        return tf.Variable(initializer(shape, value.dtype), name=name)

    return make_table(
        value.shape, lambda shape, dtype: tf.constant(value, dtype), create, placement
    )


def my_samples():
    """Uneven: of several ranks the last one has none."""
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    last = [] if num_ranks == 1 else [8, *[NUM_SAMPLES] * (num_ranks - 1)]
    cuts = [0, *(last or [NUM_SAMPLES])]
    if num_ranks > 2:
        cuts = [0, 8, NUM_SAMPLES, *[NUM_SAMPLES] * (num_ranks - 2)]
    return slice(cuts[rank], cuts[rank + 1])


def as_ragged(rows, dtype):
    return tf.RaggedTensor.from_row_lengths(
        tf.constant([value for row in rows for value in row], dtype),
        tf.constant([len(row) for row in rows], tf.int64),
    )


def as_function(step):
    return tf.function(step, reduce_retracing=True)


@contextlib.contextmanager
def packed_sums():
    """Has sums go as one tensor, as by an exchange that sends nothing but tensors."""
    by_messages = MessageExchange.exchange_rows
    MessageExchange.exchange_rows = exchange.Exchange.exchange_rows
    yield
    MessageExchange.exchange_rows = by_messages


def packed(step):
    return as_function(step)


def whole_gradient(table, gradient):
    table.assign(gradient)
    return gather_rows(table).numpy()
