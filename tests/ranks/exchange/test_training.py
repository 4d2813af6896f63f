"""Fifty steps on several ranks, each with its part of the batch, against one process with all."""

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day, values_of_run

import group_embedding as ge
from group_embedding import exchange
from group_embedding.distributed import (
    DistributedOptimizer,
    broadcast_variables,
    enable_distributed_strategy,
)
from group_embedding.ranks.sharding.make_sharded_table import make_table

v1 = tf.compat.v1
NUM_STEPS = 20
BATCH_SIZE = 12
TABLES = {"user": (23, 4), "item": (5, 3)}
NUM_CLASSES = 6  # of a table that is not sharded
V1_OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.5),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.3),
    "wrapped": lambda: ge.optimizers.wrap(v1.train.AdagradOptimizer(0.3)),
}
KERAS_OPTIMIZERS = {
    "sgd": lambda: tf.keras.optimizers.SGD(0.5),
    "adagrad": lambda: tf.keras.optimizers.Adagrad(0.3),
    "adam": lambda: tf.keras.optimizers.Adam(0.1),
    "wrapped": lambda: ge.optimizers.wrap(tf.keras.optimizers.Adagrad(0.3)),
    "rowwise": lambda: ge.optimizers.RowwiseAdagrad(0.3),
}
IS_KERAS_2 = not hasattr(tf.keras, "ops")
if IS_KERAS_2:
    KERAS_OPTIMIZERS["legacy_adagrad"] = lambda: tf.keras.optimizers.legacy.Adagrad(0.3)


def whole_batch(step):
    """ids of each table ([B] lists), classes [B] and labels [B]."""
    rng = np.random.default_rng(step)
    ids = {
        name: [rng.integers(0, rows, rng.integers(0, 4)).tolist() for _ in range(BATCH_SIZE)]
        for name, (rows, _) in TABLES.items()
    }
    return ids, rng.integers(0, NUM_CLASSES, BATCH_SIZE), rng.normal(size=BATCH_SIZE)


def part_of_batch(step, rank, num_ranks):
    """This rank's share as plain arrays: {name: array}."""
    ids, classes, labels = whole_batch(step)
    size = BATCH_SIZE // num_ranks
    mine = slice(rank * size, (rank + 1) * size)
    arrays = {"classes": classes[mine].astype(np.int64), "labels": labels[mine].astype(np.float32)}
    for name, rows in ids.items():
        arrays[f"{name}_ids"] = np.array([i for row in rows[mine] for i in row], np.int64)
        arrays[f"{name}_lengths"] = np.array([len(row) for row in rows[mine]], np.int64)
    return arrays


def initial_table(name):
    return np.random.default_rng(len(name)).normal(size=TABLES[name]).astype(np.float32)


def make_variables(rank, create):
    """The tables, sharded if there are ranks, and dense variables that differ between ranks."""
    variables = {}
    for name, shape in TABLES.items():
        value = initial_table(name)
        variables[name] = make_table(
            shape,
            lambda shape, dtype=None, value=value: tf.constant(value),
            lambda shape, initializer, name=name: create(name, shape, initializer),
        )
    width = sum(dim for _, dim in TABLES.values()) + 2
    for name, shape in {"kernel": (width, 1), "classes": (NUM_CLASSES, 2)}.items():
        value = np.random.default_rng(rank).normal(size=shape).astype(np.float32)
        variables[name] = create(
            name, shape, lambda shape, dtype=None, value=value: tf.constant(value)
        )
    return variables


def loss_of(variables, batch, grouped):
    ids = [
        tf.RaggedTensor.from_row_lengths(batch[f"{name}_ids"], batch[f"{name}_lengths"])
        for name in TABLES
    ]
    params = [variables[name] for name in TABLES]
    if grouped:
        outputs = ge.group_embedding_lookup_sparse(params, ids, ["mean", "sum"])
    else:
        outputs = [
            tf.nn.safe_embedding_lookup_sparse([p], i.to_sparse(), combiner=combiner)
            for p, i, combiner in zip(params, ids, ["mean", "sum"])
        ]
        outputs = [_pad_rows(o, tf.size(batch["classes"])) for o in outputs]
    by_class = tf.gather(variables["classes"], batch["classes"])  # its gradient is IndexedSlices
    hidden = tf.concat([*outputs, by_class], axis=1)
    predictions = tf.squeeze(tf.tanh(hidden) @ variables["kernel"], axis=1)
    return tf.reduce_mean((predictions - batch["labels"]) ** 2)


def _pad_rows(tensor, num_rows):
    return tf.pad(tensor, [[0, num_rows - tf.shape(tensor)[0]], [0, 0]])


def train_v1(kind, grouped, clip=False):
    """Trains in a Session; returns {variable: this rank's values} and the losses."""
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    with tf.Graph().as_default(), v1.Session() as session:

        def create(name, shape, initializer):
            return v1.get_variable(name, shape, tf.float32, initializer)

        variables = make_variables(rank, create)
        first = part_of_batch(0, rank, num_ranks)
        batch = {
            name: v1.placeholder(array.dtype, [None], f"in_{name}") for name, array in first.items()
        }
        loss = loss_of(variables, batch, grouped)
        optimizer = DistributedOptimizer(V1_OPTIMIZERS[kind]())
        gradients = optimizer.compute_gradients(loss)
        if clip:
            gradients = [(tf.clip_by_value(g, -0.01, 0.01), v) for g, v in gradients]
        train_op = optimizer.apply_gradients(gradients)
        session.run(v1.global_variables_initializer())
        losses = []
        for step in range(NUM_STEPS):
            arrays = part_of_batch(step, rank, num_ranks)
            feed = {batch[name]: array for name, array in arrays.items()}
            losses.append(session.run([loss, train_op], feed)[0])
        return session.run(variables), losses


def train_keras(kind, grouped):
    """Trains in a tf.function."""
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    variables = make_variables(
        rank, lambda name, shape, init: tf.Variable(init(shape, dtype=tf.float32), name=name)
    )
    trained = list(variables.values())
    optimizer = DistributedOptimizer(KERAS_OPTIMIZERS[kind]())

    @tf.function(reduce_retracing=True)
    def step_function(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, batch, grouped)
        optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained))
        return loss

    losses = []
    for step in range(NUM_STEPS):
        arrays = part_of_batch(step, rank, num_ranks)
        batch = {name: tf.constant(array) for name, array in arrays.items()}
        losses.append(step_function(batch).numpy())
    return {name: variable.numpy() for name, variable in variables.items()}, losses


MAIN_KINDS = ["v1_sgd", "v1_adagrad", "keras_adagrad"]
OTHER_KINDS = [
    *["v1_clipped", "keras_sgd", "keras_adam"],
    *["v1_wrapped", "keras_wrapped", "keras_rowwise"],
    *(["keras_legacy_adagrad"] if IS_KERAS_2 else []),
]


def train(kinds, grouped=True):
    """{kind: variables of this rank and losses}."""
    results = {}
    for kind in kinds:
        api, _, optimizer = kind.partition("_")
        if kind == "v1_clipped":
            results[kind] = train_v1("sgd", grouped, clip=True)
        else:
            results[kind] = {"v1": train_v1, "keras": train_keras}[api](optimizer, grouped)
    return results


def train_on_rank(kinds):
    enable_distributed_strategy()
    return train(kinds)


def keras_fit_on_rank():
    """`fit` of a Keras model with a dense layer alone, whose ranks start differently."""
    enable_distributed_strategy()
    rank, num_ranks = exchange.current().rank, exchange.current().num_ranks
    return fit(rank, num_ranks)


def fit_by_xla_on_rank():
    enable_distributed_strategy()
    with pytest.raises(ValueError) as error:
        fit(exchange.current().rank, exchange.current().num_ranks, jit_compile=True)
    return str(error.value)


def fit(rank, num_ranks, jit_compile=False):
    tf.keras.utils.set_random_seed(rank)
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, "tanh"), tf.keras.layers.Dense(1)])
    model.build((None, 4))
    optimizer = DistributedOptimizer(tf.keras.optimizers.SGD(0.1))
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    x = np.random.default_rng(5).normal(size=(NUM_STEPS, BATCH_SIZE, 4)).astype(np.float32)
    y = x.sum(axis=2, keepdims=True)
    mine = slice(rank * BATCH_SIZE // num_ranks, (rank + 1) * BATCH_SIZE // num_ranks)
    x, y = (array[:, mine].reshape(-1, array.shape[2]) for array in (x, y))
    model.fit(x, y, batch_size=BATCH_SIZE // num_ranks, shuffle=False, verbose=0)
    return model.get_weights()


def broadcast_on_rank():
    enable_distributed_strategy()
    variable = tf.Variable([float(exchange.current().rank + 3)])
    broadcast_variables([variable])
    return variable.numpy().tolist()


@pytest.fixture(scope="module")
def ranks(several_ranks):
    return several_ranks.run(train_on_rank, MAIN_KINDS)


@pytest.fixture(scope="module")
def two_ranks_other_kinds(request, two_ranks):
    kinds = [kind for kind in values_of_run(request, "kind") if kind in OTHER_KINDS]
    return two_ranks.run(train_on_rank, kinds)


@pytest.fixture(scope="module")
def expected(request):
    return train(values_of_run(request, "kind"), grouped=False)


def assert_same_training(ranks, expected, kind):
    variables, losses = expected[kind]
    for rank, results in enumerate(ranks):
        for name, value in variables.items():
            mine = value[rank :: len(ranks)] if name in TABLES else value
            np.testing.assert_allclose(results[kind][0][name], mine, rtol=1e-5, atol=1e-5)
    mean_losses = np.mean([results[kind][1] for results in ranks], axis=0)
    np.testing.assert_allclose(mean_losses, losses, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", by_day(MAIN_KINDS, ["v1_adagrad"]))
def test_ranks_train_the_model_of_one_process(ranks, expected, kind):
    assert_same_training(ranks, expected, kind)


@pytest.mark.parametrize("kind", by_day(OTHER_KINDS, ["v1_clipped"]))
def test_two_ranks_train_the_model_of_one_process(two_ranks_other_kinds, expected, kind):
    assert_same_training(two_ranks_other_kinds, expected, kind)


def test_the_model_did_learn(expected):
    for name, (_, losses) in expected.items():
        if name != "v1_clipped":
            assert np.mean(losses[-10:]) < np.mean(losses[:10]), name


def test_keras_fit_trains_the_model_of_one_process(two_ranks):
    expected = fit(0, 1)
    for weights in two_ranks.run(keras_fit_on_rank):
        for actual, value in zip(weights, expected):
            np.testing.assert_allclose(actual, value, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(IS_KERAS_2, reason="Keras 2 takes XLA for no model by itself")
def test_xla_is_refused_in_words(two_ranks):
    for message in two_ranks.run(fit_by_xla_on_rank):
        assert "compile the model with jit_compile=False" in message


def test_broadcast_variables_takes_those_of_rank_0(two_ranks):
    assert two_ranks.run(broadcast_on_rank) == [[3.0], [3.0]]


def test_with_one_process_an_optimizer_stays_as_it_is():
    optimizer = v1.train.AdagradOptimizer(0.1)
    stock = type(optimizer)

    assert DistributedOptimizer(optimizer) is optimizer
    assert type(optimizer) is stock


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(TypeError, match="expected a tf.compat.v1.train.Optimizer or a Keras"):
        DistributedOptimizer("adagrad")
