"""Wrapped optimizers under compile and fit."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import IS_KERAS_3

DATA = np.random.default_rng(0)
INPUTS = {"clicks": DATA.integers(-1, 50, [64, 3]), "user": DATA.integers(0, 20, [64, 1])}
TARGETS = INPUTS["clicks"].clip(0).sum(1, keepdims=True).astype(np.float32) / 50


def make_model(optimizer, **layer_options):
    layer = ge.layers.GroupEmbedding(
        [
            ge.FeatureConfig("clicks", ge.TableConfig("items", num_rows=50, dim=8)),
            ge.FeatureConfig("user", ge.TableConfig("users", num_rows=20, dim=4)),
        ],
        concat=True,
        **layer_options,
    )
    inputs = {name: tf.keras.Input([None], dtype="int64", name=name) for name in INPUTS}
    output = tf.keras.layers.Dense(1, dtype="float32")(layer(inputs))
    model = tf.keras.Model(inputs, output)
    # Initial values from NumPy, so that two models start alike.
    start = np.random.default_rng(1)
    model.set_weights([start.normal(size=w.shape) * 0.3 for w in model.get_weights()])
    model.compile(optimizer, "mse")
    return model


def fit(optimizer, epochs=3):
    model = make_model(optimizer)
    history = model.fit(INPUTS, TARGETS, batch_size=16, epochs=epochs, shuffle=False, verbose=0)
    return model, history.history["loss"]


def test_fit_equals_stock():
    # Given a stock Adagrad with a schedule, and the same wrapped
    def make():
        return tf.keras.optimizers.Adagrad(
            tf.keras.optimizers.schedules.ExponentialDecay(0.3, 4, 0.9)
        )

    # When both fit a model
    stock, expected = fit(make())
    wrapped, losses = fit(ge.optimizers.wrap(make()))
    # Then losses and weights agree
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for a, b in zip(wrapped.get_weights(), stock.get_weights()):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ge.optimizers.LazyAdam(0.05),
        lambda: ge.optimizers.RowwiseAdagrad(0.3),
        lambda: ge.optimizers.Lamb(0.05),
    ],
    ids=["LazyAdam", "RowwiseAdagrad", "Lamb"],
)
def test_own_optimizers_learn_and_are_saved(make, tmp_path):
    # Given a model that one of them fits
    model, losses = fit(make(), epochs=5)
    assert losses[-1] < 0.6 * losses[0]
    # When it is saved and loaded
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    # Then it goes on as the first does; of a wrapped stock optimizer the stock one is saved
    if type(loaded.optimizer).__name__ == "Adam":
        ge.optimizers.wrap(loaded.optimizer)
    again = [
        m.fit(INPUTS, TARGETS, batch_size=16, shuffle=False, verbose=0).history["loss"]
        for m in (model, loaded)
    ]
    np.testing.assert_allclose(again[1], again[0], rtol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_mixed_precision(policy, wrapped):
    # Given a mixed policy, under which compile puts a LossScaleOptimizer around for float16
    before = tf.keras.mixed_precision.global_policy() if not IS_KERAS_3 else None
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        optimizer = tf.keras.optimizers.Adam(0.05)
        optimizer = ge.optimizers.wrap(optimizer) if wrapped else optimizer
        # When a model is fitted
        model, losses = fit(optimizer, epochs=5)
        scaled = "LossScale" in type(model.optimizer).__name__
    finally:
        tf.keras.mixed_precision.set_global_policy(before or "float32")
    # Then it learns, in tables of 32 bits
    assert scaled == (policy == "mixed_float16")
    assert losses[-1] < 0.6 * losses[0]
    assert {w.dtype for w in model.get_weights()} == {np.dtype(np.float32)}


def test_a_weight_that_a_mixed_policy_casts():
    # Given a layer whose table is cast wherever the layer uses it, by the policy
    class Bag(tf.keras.layers.Layer):
        def build(self, _):
            self.table = self.add_weight(name="table", shape=[5, 2], initializer="ones")

        def call(self, ids):
            return ge.group_embedding_lookup([self.table], [ids])[0]

    layer = Bag(dtype="mixed_bfloat16")
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(0.5))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(layer(tf.constant([1, 3])), tf.float32))
        weights = layer.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    # When a step is taken
    layer.build(None)
    step()
    # Then the table is updated in its own precision
    assert tf.as_dtype(layer.table.dtype) == tf.float32
    np.testing.assert_array_equal(layer.get_weights()[0][:, 0], [1, 0.5, 1, 0.5, 1])


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 2 accumulates no gradients")
def test_gradient_accumulation_of_keras():
    # Given Keras 3's own accumulation, whose accumulators are dense
    def make():
        return tf.keras.optimizers.Adagrad(0.3, gradient_accumulation_steps=2)

    # When a stock and a wrapped optimizer fit a model
    _, expected = fit(make())
    _, losses = fit(ge.optimizers.wrap(make()))
    # Then both do the same
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
