"""Norms that Keras optimizers limit, of gradients whose rows are on several ranks: against one
process with the whole batch."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange
from group_embedding.ranks.sharding.make_sharded_table import make_table

NUM_STEPS, BATCH_SIZE, NUM_ROWS, DIM = 10, 12, 20, 4


def sgd(*args, wraps=True, of=tf.keras.optimizers, **kwargs):
    """Makes one when it is called: it has variables, which take the first GPU."""

    def make():
        optimizer = of.SGD(*args, **kwargs)
        return ge.optimizers.wrap(optimizer) if wraps else optimizer

    return make


# {name: (what makes an optimizer, whether it trains keyed tables as well)}
OPTIMIZERS = {
    "stock": (sgd(0.5, clipnorm=0.05, wraps=False), False),
    "clipnorm": (sgd(0.5, clipnorm=0.05), True),
    "global_clipnorm": (sgd(0.5, global_clipnorm=0.05), True),
    "never reached": (sgd(0.01, global_clipnorm=1e6), True),
}
if not tf.__version__.startswith("2.2"):  # Keras 3 has none
    of_keras_2 = tf.keras.optimizers.legacy
    OPTIMIZERS["legacy"] = (sgd(0.5, global_clipnorm=0.05, of=of_keras_2), True)


def train(name):
    """This rank's rows of the tables after training, by row number, and the dense variable."""
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    make_optimizer, trains_keys = OPTIMIZERS[name]
    optimizer = ge.DistributedOptimizer(make_optimizer())
    start = np.random.default_rng(5).normal(size=(NUM_ROWS, DIM)).astype(np.float32)

    def make(shape, initializer):
        return tf.Variable(initializer(shape), name=f"{name}_rows")

    tables = [make_table((NUM_ROWS, DIM), lambda *_, **__: tf.constant(start), make)]
    if trains_keys:
        ones = tf.keras.initializers.Ones()
        tables.append(ge.get_embedding_variable(f"{name}_keys", DIM, initializer=ones))
    dense = tf.Variable(np.linspace([-1], [1], DIM, dtype=np.float32))

    @tf.function(reduce_retracing=True)
    def step_function(ids, labels):
        with tf.GradientTape() as tape:
            one_id_each = tf.RaggedTensor.from_row_splits(ids, tf.range(tf.size(ids) + 1))
            outputs = ge.group_embedding_lookup_sparse(
                [*tables, *tables],
                [one_id_each] * (2 * len(tables)),
                "sum",
                max_norm=[None] * len(tables) + [0.9] * len(tables),
            )
            loss = tf.reduce_mean((tf.add_n(outputs) @ dense - labels) ** 2)
        variables = [*tables, dense]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    mine = slice(rank * BATCH_SIZE // num_ranks, (rank + 1) * BATCH_SIZE // num_ranks)
    for step in range(NUM_STEPS):
        rng = np.random.default_rng(step)
        ids, labels = rng.integers(0, NUM_ROWS, BATCH_SIZE), rng.normal(size=(BATCH_SIZE, 1))
        step_function(tf.constant(ids[mine]), tf.constant(labels[mine], tf.float32))
    rows = dict(zip(range(rank, NUM_ROWS, num_ranks), tables[0].numpy()))
    for table in tables[1:]:
        found = table.export()
        rows.update(zip((NUM_ROWS + found.keys).numpy().tolist(), found.values.numpy()))
    return rows, dense.numpy()


def train_on_rank(names):
    ge.enable_distributed_strategy()
    return {name: train(name) for name in names}


@pytest.fixture(scope="module")
def ranks(several_ranks):
    return several_ranks.run(train_on_rank, list(OPTIMIZERS))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_norms_are_of_the_rows_of_all_ranks(ranks, name):
    expected_rows, expected_dense = train(name)

    rows = {}
    for of_rank in ranks:
        rows.update(of_rank[name][0])

    assert rows.keys() == expected_rows.keys()
    for row, values in expected_rows.items():
        np.testing.assert_allclose(rows[row], values, rtol=1e-5, atol=1e-6)
    for of_rank in ranks:
        np.testing.assert_allclose(of_rank[name][1], expected_dense, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(of_rank[name][1], ranks[0][name][1])  # nothing drifts
