"""Training on hosts that a network joins, against one process with the whole batch."""

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge

ONE, TWO = "distributed", "distributed:two_levels"
LAYOUTS = by_day(
    [("aabb", ONE), ("aabb", TWO), ("ab", ONE), ("abc", ONE)],
    [("aabb", ONE)],
    nightly=[("ab", ONE), ("abc", ONE)],
)
NUM_STEPS = 5
BATCH_SIZE = 12
DIMS = {"user": 4, "item": 16, "word": 33}
ROWS = {"user": 100, "item": 23, "word": 500}
COMBINERS = ["sum", "mean", "sqrtn"]
CONSTANT = tf.keras.initializers.Constant

v1 = tf.compat.v1


def part_of_batch(step):
    """This rank's share: {table: (ids, lengths)}, some samples of which are empty, and labels."""
    exchange = ge.exchange.current()
    rng = np.random.default_rng(step)
    size = BATCH_SIZE // exchange.num_ranks
    mine = slice(exchange.rank * size, (exchange.rank + 1) * size)
    batch = {}
    for name, num_rows in ROWS.items():
        lists = [rng.integers(0, num_rows, rng.integers(0, 5)) for _ in range(BATCH_SIZE)][mine]
        lengths = np.array([len(ids) for ids in lists], np.int64)
        batch[name] = np.concatenate(lists).astype(np.int64), lengths
    return batch, rng.normal(size=[BATCH_SIZE, 1]).astype(np.float32)[mine]


def ragged(batch):
    return {name: tf.RaggedTensor.from_row_lengths(*batch[name]) for name in ROWS}


def loss_of(outputs, kernel, labels):
    return tf.reduce_mean((tf.tanh(tf.concat(outputs, 1)) @ kernel - labels) ** 2)


def keyed_tables():
    return [
        ge.get_embedding_variable(f"keyed_{name}", dim, initializer=CONSTANT(0.1))
        for name, dim in DIMS.items()
    ]


def sorted_by_key(keys, values):
    order = np.argsort(keys)
    return np.asarray(keys)[order], np.asarray(values)[order]


def by_key():
    """Tables by key, in a tf.function."""
    tables, kernel = keyed_tables(), tf.Variable(tf.fill([sum(DIMS.values()), 1], 0.2))
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.1)))

    @tf.function(reduce_retracing=True)
    def train_step(ids, labels):
        with tf.GradientTape() as tape:
            outputs = ge.group_embedding_lookup_sparse(tables, ids, COMBINERS)
            loss = loss_of(outputs, kernel, labels)
        trained = [*tables, kernel]
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))

    for step in range(NUM_STEPS):
        batch, labels = part_of_batch(step)
        train_step(list(ragged(batch).values()), tf.constant(labels))
    content = [table.export(gather=True)[:2] for table in tables]
    return [array for pair in content for array in sorted_by_key(*pair)] + [kernel.numpy()]


def by_row():
    """Tables by row of a Keras layer, in eager code."""
    features = [
        ge.FeatureConfig(name, ge.TableConfig(name, ROWS[name], dim, CONSTANT(0.1)), combiner)
        for (name, dim), combiner in zip(DIMS.items(), COMBINERS)
    ]
    layer = ge.layers.GroupEmbedding(features)
    kernel = tf.Variable(tf.fill([sum(DIMS.values()), 1], 0.2))
    optimizer = ge.DistributedOptimizer(ge.optimizers.wrap(tf.keras.optimizers.Adam(0.01)))
    for step in range(NUM_STEPS):
        batch, labels = part_of_batch(step)
        with tf.GradientTape() as tape:
            loss = loss_of(list(layer(ragged(batch)).values()), kernel, labels)
        trained = [*layer.trainable_variables, kernel]
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
    every_row = {
        name: tf.RaggedTensor.from_tensor(tf.range(rows, dtype=tf.int64)[:, None])
        for name, rows in ROWS.items()
    }
    return [rows.numpy() for rows in layer(every_row).values()] + [kernel.numpy()]


def by_key_in_a_session():
    """Tables by key, in a graph of TensorFlow 1."""
    with tf.Graph().as_default(), v1.Session() as session:
        tables = keyed_tables()
        kernel = v1.get_variable("kernel", [sum(DIMS.values()), 1], initializer=CONSTANT(0.2))
        inputs = {
            name: (v1.placeholder(tf.int64, [None]), v1.placeholder(tf.int64, [None]))
            for name in ROWS
        }
        labels = v1.placeholder(tf.float32, [None, 1])
        outputs = ge.group_embedding_lookup_sparse(tables, list(ragged(inputs).values()), COMBINERS)
        optimizer = ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))
        train = ge.DistributedOptimizer(optimizer).minimize(loss_of(outputs, kernel, labels))
        content = [table.export(gather=True)[:2] for table in tables]
        session.run(v1.global_variables_initializer())
        for step in range(NUM_STEPS):
            batch, values = part_of_batch(step)
            feed = {labels: values}
            for name, arrays in batch.items():
                feed.update(zip(inputs[name], arrays))
            session.run(train, feed)
        arrays = [a for pair in session.run(content) for a in sorted_by_key(*pair)]
        return [*arrays, session.run(kernel)]


CASES = {case.__name__: case for case in (by_key, by_row, by_key_in_a_session)}


def train(cases):
    return {case: CASES[case]() for case in cases}


def train_on_rank(cases, placement=ONE):
    ge.enable_distributed_strategy(placement=placement)
    return train(cases)


@pytest.fixture(scope="module")
def expected():
    return train(CASES)


@pytest.mark.parametrize("where, placement", LAYOUTS)
def test_hosts_train_what_one_process_trains(make_bed, start_job, expected, where, placement):
    bed = make_bed(len(set(where)))

    job = start_job(bed, where, train_on_rank, list(CASES), placement, timeout=240)
    ranks = job.results()

    for name, arrays in expected.items():
        for of_rank in ranks:
            for found, array in zip(of_rank[name], arrays):
                np.testing.assert_allclose(found, array, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.soak
def test_a_slow_link_changes_nothing(make_bed, start_job, expected):
    bed = make_bed(2)
    bed.set_link("a", "b", delay=5, rate=100, loss=1)

    ranks = start_job(bed, "ab", train_on_rank, ["by_key"], timeout=240).results()

    for of_rank in ranks:
        for found, array in zip(of_rank["by_key"], expected["by_key"]):
            np.testing.assert_allclose(found, array, rtol=1e-5, atol=1e-5)
