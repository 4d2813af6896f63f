"""Wrapped optimizers in Estimators: trained, stopped, and gone on with by the other kind."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge

try:
    tf.estimator.Estimator  # noqa: B018
except AttributeError:
    pytest.skip(f"TensorFlow {tf.__version__} has no Estimators", allow_module_level=True)

v1 = tf.compat.v1
IDS = np.random.default_rng(4).integers(0, 20, [8, 3])


def input_fn():
    ids = tf.constant(IDS)
    labels = tf.reduce_sum(tf.cast(ids, tf.float32), axis=1, keepdims=True) / 20
    return tf.data.Dataset.from_tensors(({"ids": ids}, labels)).repeat()


def make_model_fn(make_optimizer, reports):
    def model_fn(features, labels, mode):
        column = tf.feature_column.categorical_column_with_identity("ids", 20)
        start = tf.constant_initializer(np.random.default_rng(1).normal(size=[20, 4]))
        with ge.group_embedding_column_scope():
            columns = [tf.feature_column.embedding_column(column, 4, initializer=start)]
        hidden = v1.feature_column.input_layer(features, columns)
        ones = tf.ones_initializer()
        output = v1.layers.dense(hidden, 1, kernel_initializer=ones)
        loss = tf.reduce_mean((output - labels) ** 2)
        train = make_optimizer().minimize(loss, v1.train.get_or_create_global_step())
        reports.append([op.type for op in v1.get_default_graph().get_operations()])
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    return model_fn


def adagrad():
    return v1.train.AdagradOptimizer(0.1)


def wrapped_adagrad():
    return ge.optimizers.wrap(v1.train.AdagradOptimizer(0.1))


def train(folder, *makers):
    """Three steps with each optimizer, one after the other; the final values by name."""
    reports = []
    config = tf.estimator.RunConfig(tf_random_seed=1, log_step_count_steps=None)
    for i, make in enumerate(makers):
        estimator = tf.estimator.Estimator(make_model_fn(make, reports), str(folder), config)
        estimator.train(input_fn, max_steps=3 * (i + 1))
    names = estimator.get_variable_names()
    return {name: estimator.get_variable_value(name) for name in names}, reports


@pytest.mark.parametrize(
    "makers",
    [(adagrad, wrapped_adagrad), (wrapped_adagrad, adagrad), (wrapped_adagrad, wrapped_adagrad)],
)
def test_estimator_goes_on_with_either_optimizer(makers, tmp_path):
    # Given six steps of the stock optimizer
    expected, _ = train(tmp_path / "stock", adagrad, adagrad)
    # When three are taken by one kind, and three from its checkpoint by another
    values, reports = train(tmp_path / "switched", *makers)
    # Then names and values are the same, and wrapped ones had the fused op
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    for make, ops in zip(makers, reports):
        assert ops.count("GroupEmbedding>GroupUpdate") == (make is wrapped_adagrad)


@pytest.mark.parametrize(
    "make", [ge.optimizers.LazyAdam, ge.optimizers.RowwiseAdagrad, ge.optimizers.Lamb]
)
def test_own_optimizers_in_an_estimator(make, tmp_path):
    # Given, When an Estimator whose optimizer has no stock twin takes steps
    values, reports = train(tmp_path, lambda: make(0.1), lambda: make(0.1))
    # Then they were fused, and the table has moved
    assert reports[0].count("GroupEmbedding>GroupUpdate") == 1
    (table,) = [v for name, v in values.items() if name.endswith("embedding_weights")]
    assert (table[IDS[0]] != np.random.default_rng(1).normal(size=[20, 4])[IDS[0]]).any()


def test_slots_of_16_bits_in_an_estimator_that_goes_on(tmp_path):
    # Given Estimators with tables of two slot types, and one with wide slots alone
    def model_fn(features, labels, mode, params):
        start = np.random.default_rng(1).normal(size=[20, 4]).astype(np.float32)
        tables = [v1.get_variable(name, initializer=start) for name in ("small", "wide")]
        ge.optimizers.set_slot_dtype(tables[0], params["slot_dtype"])
        rows = tf.add_n(ge.lookup(tables, [features["ids"], features["ids"]]))
        loss = tf.reduce_mean((tf.reduce_sum(rows, [1, 2])[:, tf.newaxis] - labels) ** 2)
        adam = ge.optimizers.wrap(v1.train.AdamOptimizer(0.1))
        train = adam.minimize(loss, v1.train.get_or_create_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    def train(slot_dtype):
        for steps in (3, 6):  # the second goes on from the checkpoint of the first
            estimator = tf.estimator.Estimator(
                model_fn, str(tmp_path / slot_dtype), params={"slot_dtype": slot_dtype}
            )
            estimator.train(input_fn, max_steps=steps)
        return {name: estimator.get_variable_value(name) for name in ("small", "small/Adam_1")}

    # When they are trained, and go on from their checkpoints
    found, expected = train("bfloat16"), train("float32")
    # Then the checkpoint has slots of 16 bits, and the table is near the one with wide slots
    assert found["small/Adam_1"].dtype == tf.bfloat16.as_numpy_dtype
    np.testing.assert_allclose(found["small"], expected["small"], atol=0.05)
    assert not np.array_equal(found["small"], expected["small"])


def test_legacy_keras_optimizer_in_a_canned_estimator(tmp_path):
    # Given a canned Estimator, which takes Keras's legacy optimizers
    def weights(make_optimizer, folder):
        column = tf.feature_column.categorical_column_with_identity("ids", 20)
        with ge.group_embedding_column_scope():
            columns = [tf.feature_column.embedding_column(column, 4)]
        config = tf.estimator.RunConfig(tf_random_seed=1, log_step_count_steps=None)
        estimator = tf.estimator.DNNRegressor(
            [3], columns, str(folder), optimizer=make_optimizer, config=config
        )
        estimator.train(input_fn, max_steps=3)
        names = estimator.get_variable_names()
        return {n: estimator.get_variable_value(n) for n in names}

    legacy = tf.keras.optimizers.legacy
    # When it trains with the stock optimizer, and with the wrapped one
    expected = weights(lambda: legacy.Adagrad(0.1), tmp_path / "stock")
    values = weights(lambda: ge.optimizers.wrap(legacy.Adagrad(0.1)), tmp_path / "wrapped")
    # Then all is the same
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
