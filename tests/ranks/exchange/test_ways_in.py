"""Column scopes and Keras layers on several ranks: their tables are sharded by themselves."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding import exchange

v1 = tf.compat.v1
fc = tf.feature_column
BATCH_SIZE = 12
NUM_STEPS = 10
WORDS = ["a", "b", "c", "d", "e"]


def batch_of(step, rank, num_ranks):
    rng = np.random.default_rng(step)
    users = rng.integers(0, 40, (BATCH_SIZE, 2))
    words = rng.choice(WORDS, (BATCH_SIZE, 3))
    labels = rng.normal(size=(BATCH_SIZE, 1)).astype(np.float32)
    mine = slice(rank * BATCH_SIZE // num_ranks, (rank + 1) * BATCH_SIZE // num_ranks)
    return users[mine], words[mine], labels[mine]


def here():
    return exchange.current().rank, exchange.current().num_ranks


def train_columns():
    """`input_layer` in a graph; returns what this rank holds of each variable."""
    with tf.Graph().as_default(), v1.Session() as session:
        users = v1.placeholder(tf.int64, [None, 2])
        words = v1.placeholder(tf.string, [None, 3])
        labels = v1.placeholder(tf.float32, [None, 1])
        with ge.group_embedding_column_scope():
            columns = [
                fc.embedding_column(
                    fc.categorical_column_with_identity("user", 40),
                    4,
                    initializer=v1.truncated_normal_initializer(seed=3),
                ),
                fc.embedding_column(
                    fc.categorical_column_with_vocabulary_list("word", WORDS),
                    3,
                    combiner="sqrtn",
                    initializer=v1.glorot_uniform_initializer(seed=4),
                ),
            ]
            columns += v1.feature_column.shared_embedding_columns(
                [
                    fc.categorical_column_with_identity(name, 40)
                    for name in ("first_user", "last_user")
                ],
                2,
                initializer=v1.truncated_normal_initializer(seed=5),
            )
        features = {
            "user": users,
            "word": words,
            "first_user": users[:, :1],
            "last_user": users[:, 1:],
        }
        inputs = v1.feature_column.input_layer(features, columns)
        kernel = v1.get_variable(
            "kernel", [inputs.shape[1], 1], initializer=v1.glorot_uniform_initializer(seed=6)
        )
        loss = tf.reduce_mean((inputs @ kernel - labels) ** 2)
        optimizer = ge.DistributedOptimizer(v1.train.AdagradOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_or_create_global_step())
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        for step in range(NUM_STEPS):
            feed = dict(zip((users, words, labels), batch_of(step, *here())))
            session.run(train_op, feed)
        return {v.op.name: session.run(v) for v in v1.global_variables()}


def adagrad():
    return ge.DistributedOptimizer(tf.keras.optimizers.Adagrad(0.1))


def scaled_adagrad():
    return tf.keras.mixed_precision.LossScaleOptimizer(adagrad())  # as mixed precision has it


OPTIMIZERS = [adagrad, scaled_adagrad]


def train_layer(folder, make_optimizer):
    """`fit` of a Keras model with a GroupEmbedding, saved by each rank to a file of its own."""
    rank, num_ranks = here()
    tf.keras.utils.set_random_seed(1)
    table = ge.TableConfig("users", 40, 4, initializer=tf.keras.initializers.RandomUniform(seed=3))
    features = [ge.FeatureConfig("user", table), ge.FeatureConfig("last", table, combiner="sum")]
    inputs = {
        "user": tf.keras.Input((2,), dtype="int64", name="user"),
        "last": tf.keras.Input((1,), dtype="int64", name="last"),
    }
    embedded = ge.layers.GroupEmbedding(features, concat=True, name="embedding")(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(embedded))
    model.compile(make_optimizer(), "mse")

    batches = [batch_of(step, rank, num_ranks) for step in range(NUM_STEPS)]
    users = np.concatenate([users for users, _, _ in batches])
    labels = np.concatenate([labels for _, _, labels in batches])
    x = {"user": users, "last": users[:, 1:]}
    model.fit(x, labels, batch_size=BATCH_SIZE // num_ranks, shuffle=False, verbose=0)
    name = f"{make_optimizer.__name__}_of_{num_ranks}_ranks_{rank}"
    path = f"{folder}/{name}.weights.h5"
    model.save_weights(path)
    predictions = model.predict({"user": users[:5], "last": users[:5, 1:]}, verbose=0)
    model.load_weights(path)
    model.save(f"{folder}/{name}.keras")
    again = model.predict({"user": users[:5], "last": users[:5, 1:]}, verbose=0)
    return model.get_weights(), path, predictions, again


def train_on_rank(folder):
    ge.enable_distributed_strategy()
    return train_columns(), [train_layer(folder, make) for make in OPTIMIZERS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def ranks(several_ranks, folder):
    return several_ranks.run(train_on_rank, folder)


@pytest.fixture(scope="module")
def one_process(folder):
    return train_columns(), [train_layer(folder, make) for make in OPTIMIZERS]


@pytest.fixture(params=range(len(OPTIMIZERS)), ids=[make.__name__ for make in OPTIMIZERS])
def layers(ranks, one_process, request):
    """The results of `train_layer` on each rank, and in one process."""
    return [of_rank[1][request.param] for of_rank in ranks], one_process[1][request.param]


def test_columns_train_as_in_one_process(ranks, one_process):
    expected, _ = one_process
    for rank, (variables, _) in enumerate(ranks):
        assert variables.keys() == expected.keys()
        for name, whole in expected.items():
            is_table = "kernel" not in name and name != "global_step"
            mine = whole[rank :: len(ranks)] if is_table else whole
            np.testing.assert_allclose(variables[name], mine, rtol=1e-5, atol=1e-6)


def test_a_layer_trains_as_in_one_process(layers):
    of_ranks, (expected, *_) = layers
    for rank, (weights, _, predictions, again) in enumerate(of_ranks):
        for actual, whole in zip(weights, expected):
            mine = whole[rank :: len(of_ranks)] if whole.shape == (40, 4) else whole
            np.testing.assert_allclose(actual, mine, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(again, predictions)


def test_a_model_saved_by_any_rank_is_that_of_one_process(layers):
    of_ranks, of_one = layers
    for _, path, *_ in (of_one, *of_ranks):
        model = tf.keras.models.load_model(path.replace(".weights.h5", ".keras"))
        variables = model.optimizer.variables
        values = [v.numpy() for v in (variables() if callable(variables) else variables)]
        if path == of_one[1]:
            expected = values
        assert len(values) == len(expected)
        for value, whole in zip(values, expected):
            np.testing.assert_allclose(value, whole, rtol=1e-5, atol=1e-6)


def test_the_weights_file_of_any_rank_holds_the_whole_table(layers):
    h5py = pytest.importorskip("h5py")

    def tables(path):
        found = []
        with h5py.File(path) as file:
            file.visititems(
                lambda _, item: (
                    found.append(item[...])
                    if isinstance(item, h5py.Dataset) and item.shape == (40, 4)
                    else None
                )
            )
        return found

    of_ranks, of_one = layers
    expected = tables(of_one[1])
    assert expected
    for _, path, *_ in of_ranks:
        actual = tables(path)
        assert len(actual) >= 1
        np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5, atol=1e-6)
