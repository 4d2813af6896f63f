"""SOK's published comparisons with plain TensorFlow: batch 8,192, dims 128 and 4, up to 10 and 3
ids in a sample and, beyond them, samples without any."""

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

from group_embedding import exchange, sok

BATCH = 8192
ROWS = [BATCH * 10, BATCH]
DIMS = [128, 4]
HOTNESS = [10, 3]
START = [13.0, 17.0]
# SOK takes 100 steps; a wrong row or gradient shows in the first.
CASES = {
    "distributed": ("static", "distributed", ["mean", "sum"], 10),
    "localized": ("static", "localized:0", ["mean", "sum"], 5),
    "distributed_dynamic": ("dynamic", "distributed", ["sum", "sum"], 5),
    "localized_dynamic": ("dynamic", "localized:0", ["sum", "mean"], 5),
}


def batch_of(step):
    """Two ragged features."""
    rng = np.random.default_rng(step)
    features = []
    for rows, hotness in zip(ROWS, HOTNESS):
        lengths = rng.integers(0, hotness + 1, BATCH)
        ids = rng.integers(0, rows, lengths.sum())
        features.append(tf.RaggedTensor.from_row_lengths(ids, lengths))
    return features


def make_tables(kind, mode):
    if kind == "dynamic":
        return [
            sok.DynamicVariable(dimension=dim, initializer=str(start), mode=mode)
            for dim, start in zip(DIMS, START)
        ]
    return [
        sok.Variable(np.full([rows, dim], start, np.float32), mode=mode)
        for rows, dim, start in zip(ROWS, DIMS, START)
    ]


def train_sok(kind, mode, combiners, num_steps):
    """This rank's losses and the rows `rank::num_ranks` of each table."""
    sok.init()
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    mine = slice(BATCH // num_ranks * rank, BATCH // num_ranks * (rank + 1))
    tables = make_tables(kind, mode)
    optimizer = sok.OptimizerWrapper(tf.keras.optimizers.SGD(learning_rate=1.0))

    @tf.function(reduce_retracing=True)
    def step(features):
        with tf.GradientTape() as tape:
            embeddings = sok.lookup_sparse(tables, features, combiners=combiners)
            loss = tf.add_n([tf.reduce_sum(embedding) for embedding in embeddings])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
        return loss

    losses = [step([f[mine] for f in batch_of(i)]).numpy() for i in range(num_steps)]
    ids = [tf.range(rank, rows, num_ranks, dtype=tf.int64) for rows in ROWS]
    rows = [sok.all2all_dense_embedding(table, i).numpy() for table, i in zip(tables, ids)]
    return losses, rows


def train_tensorflow(combiners, num_steps):
    tables = [tf.Variable(tf.fill([r, d], s)) for r, d, s in zip(ROWS, DIMS, START)]
    optimizer = tf.keras.optimizers.SGD(learning_rate=1.0)

    @tf.function(reduce_retracing=True)
    def step(features):
        with tf.GradientTape() as tape:
            embeddings = [
                tf.nn.safe_embedding_lookup_sparse(table, ids, combiner=combiner)
                for table, ids, combiner in zip(tables, features, combiners)
            ]
            loss = tf.add_n([tf.reduce_sum(embedding) for embedding in embeddings])
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables))
        return loss

    losses = [step([f.to_sparse() for f in batch_of(i)]).numpy() for i in range(num_steps)]
    return losses, [table.numpy() for table in tables]


def difference(actual, expected):
    """SOK's measure: the sum of normalised squares."""
    actual, expected = np.float64(actual), np.float64(expected)
    return np.sum((actual - expected) ** 2 / (actual**2 + expected**2 + 1e-8))


def assert_same(of_ranks, combiners, num_steps):
    losses, tables = train_tensorflow(combiners, num_steps)
    for t, whole in enumerate(tables):
        found = np.empty_like(whole)
        for rank, (_, rows) in enumerate(of_ranks):
            found[rank :: len(of_ranks)] = rows[t]
        assert difference(found, whole) < 1e-6
    assert difference(np.sum([loss for loss, _ in of_ranks], axis=0), losses) < 1e-6


@pytest.mark.parametrize("case", by_day(CASES, ["distributed"]))
def test_one_process_trains_as_tensorflow(case):
    kind, mode, combiners, num_steps = CASES[case]

    of_process = train_sok(kind, mode, combiners, num_steps)

    assert_same([of_process], combiners, num_steps)


@pytest.mark.parametrize("case", by_day(CASES, (), nightly=set(CASES) - {"localized_dynamic"}))
def test_two_ranks_train_as_tensorflow(two_ranks, case):
    kind, mode, combiners, num_steps = CASES[case]

    of_ranks = two_ranks.run(train_sok, kind, mode, combiners, num_steps, timeout=300)

    assert_same(of_ranks, combiners, num_steps)
