"""A step whose loss is NaN on one rank alone: where it is skipped, all ranks skip it."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.ranks.sharding.make_sharded_table import make_table

NUM_ROWS, DIM = 20, 4


def train():
    """This rank's part of a table before a step that is NaN on rank 0, after it, and later."""
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1), skip_nonfinite=True)
    optimizer = ge.DistributedOptimizer(optimizer)
    rows = make_table(
        (NUM_ROWS, DIM),
        lambda shape, dtype=None: tf.ones(shape),
        lambda shape, initializer: tf.Variable(initializer(shape), name="rows"),
    )
    ids = tf.range(rank, NUM_ROWS, num_ranks, dtype=tf.int64)  # its own: no other has a NaN

    @tf.function(reduce_retracing=True)
    def step(factor):
        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_sum(ge.group_embedding_lookup([rows], [ids])[0])
        optimizer.apply_gradients(zip(tape.gradient(loss, [rows]), [rows]))

    states = []
    for factor in (1.0, np.nan if rank == 0 else 1.0, 1.0):
        step(tf.constant(factor))
        states.append(rows.numpy())
    return states


def train_on_rank():
    ge.enable_distributed_strategy()
    return train()


@pytest.fixture(scope="module")
def ranks(several_ranks):
    return several_ranks.run(train_on_rank)


def test_all_ranks_skip_it(ranks):
    for before, after, later in ranks:
        np.testing.assert_array_equal(after, before)
        assert (later != before).all()
