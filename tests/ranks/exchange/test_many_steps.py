"""Many steps, in each of which dense gradients are averaged while the exchange carries ids, rows
and their gradients: none waits for ever, and all is trained as in one process."""

import sys
import time

import numpy as np
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.ranks.sharding.make_sharded_table import make_table
from group_embedding.testing import Ranks

NUM_ROWS, DIM, BATCH = 500, 4, 16


def train(num_steps):
    """Returns the dense variables, and rows of both tables."""
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    whole = np.random.default_rng(1).normal(size=(NUM_ROWS, DIM)).astype(np.float32)
    rows = make_table(
        whole.shape,
        lambda shape, dtype=None: tf.constant(whole),
        lambda shape, initializer: tf.Variable(initializer(shape)),
    )
    keyed = ge.get_embedding_variable("keyed", DIM, initializer=tf.zeros_initializer())
    dense = [tf.Variable(tf.ones([2 * DIM, 3])), tf.Variable(tf.ones([3, 1]))]
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.SGD(0.01)))
    variables = [rows, keyed, *dense]

    @tf.function
    def step(ids, labels):
        with tf.GradientTape() as tape:
            bags = ge.group_embedding_lookup([rows, keyed], [ids, ids * 10**9])
            hidden = tf.concat(bags, axis=1) @ dense[0]
            loss = tf.reduce_mean((tf.tanh(hidden) @ dense[1] - labels) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    rng = np.random.default_rng(2)
    for _ in range(num_steps):
        ids = rng.integers(0, NUM_ROWS, BATCH)
        labels = np.sin(ids)[:, None].astype(np.float32)
        mine = slice(rank, None, num_ranks)
        step(tf.constant(ids[mine]), tf.constant(labels[mine]))
    ids = tf.range(NUM_ROWS, dtype=tf.int64)
    tables = ge.group_embedding_lookup([rows, keyed], [ids, ids * 10**9])
    return [value.numpy() for value in (*dense, *tables)]


def train_on_rank(num_steps):
    ge.enable_distributed_strategy()
    return train(num_steps)


def test_many_steps_end_as_in_one_process(two_ranks):
    expected = train(200)

    for rank in two_ranks.run(train_on_rank, 200):
        for actual, value in zip(rank, expected):
            np.testing.assert_allclose(actual, value, atol=1e-5)


if __name__ == "__main__":  # python tests/ranks/exchange/test_many_steps.py STEPS
    with Ranks(2) as ranks:
        begin = time.perf_counter()
        results = ranks.run(train_on_rank, int(sys.argv[1]), timeout=3600)
        seconds = time.perf_counter() - begin
    one_process = train(int(sys.argv[1]))
    farthest = max(
        np.abs(actual - value).max() for rank in results for actual, value in zip(rank, one_process)
    )
    print(f"{sys.argv[1]} steps: {seconds:.0f} s, within {farthest:.1e} of one process")
