"""Every update rule: a hundred steps on several ranks, against one process with the whole batch.
Tables of tf.Variable and keyed ones are trained side by side, on their owners, by the fused op."""

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding import exchange
from group_embedding.ranks.sharding.make_sharded_table import make_table

NUM_STEPS = 100
BATCH_SIZE = 12
NUM_ROWS, DIM = 20, 4
KEYS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, NUM_ROWS, dtype=np.int64)


def rules():
    """{name: an optimizer}, one for each rule and for what else changes an update."""
    keras, wrap = tf.keras.optimizers, ge.optimizers.wrap
    made = {
        "sgd": wrap(keras.SGD(0.2)),
        "momentum": wrap(keras.SGD(0.05, momentum=0.9)),
        "nesterov": wrap(keras.SGD(0.05, momentum=0.9, nesterov=True)),
        "adagrad": wrap(keras.Adagrad(0.2)),
        "adam": wrap(keras.Adam(0.02)),
        "amsgrad": wrap(keras.Adam(0.02, amsgrad=True)),
        "adamw": wrap(keras.AdamW(0.02, weight_decay=0.1)),
        "ftrl": wrap(keras.Ftrl(0.2, l1_regularization_strength=0.001)),
        "rmsprop": wrap(keras.RMSprop(0.01, centered=True, momentum=0.5)),
        "clipped": wrap(keras.SGD(0.5, clipvalue=0.01)),
        "rowwise_adagrad": ge.optimizers.RowwiseAdagrad(0.2),
        "rowwise_adam": ge.optimizers.RowwiseAdam(0.02),
        "lamb": ge.optimizers.Lamb(0.02, weight_decay=0.01),
    }
    return made


def batch_of(step):
    """Numbers of rows, or of KEYS, [batch, 3]: -1 is left out; and labels."""
    rng = np.random.default_rng(step)
    ids = rng.integers(-1, NUM_ROWS, (BATCH_SIZE, 3))
    return ids, rng.normal(size=(BATCH_SIZE, 1)).astype(np.float32)


def to_ragged(ids, values=None):
    rows = [[i for i in row if i >= 0] for row in ids]
    flat = np.array([i for row in rows for i in row], np.int64)
    flat = flat if values is None else values[flat]
    return tf.RaggedTensor.from_row_lengths(flat, [len(row) for row in rows])


def start():
    return np.random.default_rng(5).normal(size=(NUM_ROWS, DIM)).astype(np.float32)


def make_tables(name):
    plain = make_table(
        (NUM_ROWS, DIM),
        lambda shape, dtype=None: tf.constant(start()),
        lambda shape, initializer: tf.Variable(initializer(shape), name=f"{name}_plain"),
    )
    keyed = ge.get_embedding_variable(
        f"{name}_keyed", DIM, initializer=tf.keras.initializers.RandomNormal(seed=3)
    )
    return plain, keyed


def train():
    """All models at once, one of each rule: {name: what this rank has of it in the end}, and the
    types of the ops that updated tables."""
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    names = list(rules())
    optimizers = {name: ge.DistributedOptimizer(made) for name, made in rules().items()}
    tables = {name: make_tables(name) for name in names}
    kernel = tf.constant(np.linspace(-1, 1, 2 * DIM, dtype=np.float32)[:, None])

    @tf.function(reduce_retracing=True)
    def step_function(rows, keys, labels):
        with tf.GradientTape() as tape:
            outputs = ge.group_embedding_lookup_sparse(
                [table for name in names for table in tables[name]],
                [rows, keys] * len(names),
                ["mean", "sum"] * len(names),
            )
            loss = 0.0
            for bag, total in zip(outputs[::2], outputs[1::2]):
                predictions = tf.tanh(tf.concat([bag, total], 1)) @ kernel
                loss += tf.reduce_mean((predictions - labels) ** 2)
        gradients = tape.gradient(loss, tables)
        for name in names:
            optimizers[name].apply_gradients(zip(gradients[name], tables[name]))

    mine = slice(rank * BATCH_SIZE // num_ranks, (rank + 1) * BATCH_SIZE // num_ranks)
    for step in range(NUM_STEPS):
        ids, labels = (array[mine] for array in batch_of(step))
        arguments = to_ragged(ids), to_ragged(ids, KEYS), tf.constant(labels)
        step_function(*arguments)
    graph = step_function.get_concrete_function(*arguments).graph
    ops = [
        op.type for op in graph.get_operations() if op.type.startswith("GroupEmbedding>GroupUpdate")
    ]
    return {name: held_of(*tables[name]) for name in names}, ops


def held_of(plain, keyed):
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    found = keyed.export()
    keys = found.keys.numpy().tolist()
    return {
        "rows": dict(zip(range(rank, NUM_ROWS, num_ranks), plain.numpy())),
        "keys": dict(zip(keys, found.values.numpy())),
        "freqs": dict(zip(keys, found.freqs.numpy().tolist())),
    }


def train_on_rank():
    ge.enable_distributed_strategy()
    return train()


NAMES = [
    *["sgd", "momentum", "nesterov", "adagrad", "adam", "amsgrad", "adamw", "ftrl", "rmsprop"],
    *["clipped", "rowwise_adagrad", "rowwise_adam", "lamb"],
]


@pytest.fixture(scope="module")
def one_process():
    return train()


@pytest.fixture(scope="module", params=by_day([2, 3, 4], (), [2, 4]), ids=lambda n: f"{n}_ranks")
def ranks(request):
    fixture = {2: "two_ranks", 3: "three_ranks", 4: "four_ranks"}[request.param]
    return request.getfixturevalue(fixture).run(train_on_rank, timeout=180)


@pytest.mark.parametrize("name", NAMES)
def test_owners_train_the_tables_of_one_process(ranks, one_process, name):
    expected = one_process[0][name]
    for kind in ("rows", "keys"):
        together = {}
        for held, _ in ranks:
            assert not together.keys() & held[name][kind].keys()  # each has one owner
            together.update(held[name][kind])
        assert together.keys() == expected[kind].keys()
        for key, values in expected[kind].items():
            np.testing.assert_allclose(together[key], values, rtol=1e-5, atol=1e-5)


def test_owners_update_the_tables_of_a_rule_in_one_op(ranks, one_process):
    # Where there is a GPU, variables are there, and the keyed tables are in host memory.
    num_devices = 2 if tf.config.list_physical_devices("GPU") else 1
    assert one_process[1] == ["GroupEmbedding>GroupUpdate"] * len(NAMES) * num_devices
    assert [ops for _, ops in ranks] == [one_process[1]] * len(ranks)


def test_keys_are_counted_as_often_as_they_came_to_all_ranks(ranks, one_process):
    together = {}
    for held, _ in ranks:
        together.update(held["sgd"]["freqs"])

    assert together == one_process[0]["sgd"]["freqs"]
