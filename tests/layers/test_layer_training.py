"""GroupEmbedding under compile() and fit(), beside a stock model."""

import numpy as np
import pytest
import tensorflow as tf

from group_embedding.config import FeatureConfig, TableConfig
from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.layers import GroupEmbedding


def functional(features, symbolic_inputs):
    vectors = GroupEmbedding(features, concat=True, name="embedding")(symbolic_inputs)
    return keras.Model(symbolic_inputs, keras.layers.Dense(1, name="head")(vectors))


class Subclassed(keras.Model):
    def __init__(self, features):
        super().__init__()
        self.embedding = GroupEmbedding(features, concat=True)
        self.head = keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(self.embedding(inputs))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("kind", ["functional", "subclassed"])
def test_plain_compile_trains(kind, optimizer, features, symbolic_inputs, dataset):
    # given a model, compiled without a word about jit_compile
    is_functional = kind == "functional"
    model = functional(features, symbolic_inputs) if is_functional else Subclassed(features)
    optimizer = keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": 0.05}})
    model.compile(optimizer, "mse")
    # when
    losses = model.fit(dataset, epochs=4, verbose=0).history["loss"]
    # then
    assert losses[-1] < losses[0]
    assert model.predict(dataset.take(1), verbose=0).shape == (4, 1)


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad"])
def test_fit_changes_the_weights_as_in_a_stock_model(optimizer):
    # given ids, and the same as the share of every id in its sample, from which a stock Dense layer
    # computes the same average. (A stock Embedding is no oracle: Keras 3 squares the gradients of
    # an id that occurs twice before it adds them.)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, size=(64, 3))
    shares = (np.eye(50)[ids].sum(axis=1) / 3).astype(np.float32)
    labels = rng.random((64, 1)).astype(np.float32)
    start = rng.normal(size=(50, 8)).astype(np.float32)

    def model_of(symbolic, vectors):
        head = keras.layers.Dense(1, kernel_initializer="ones")
        model = keras.Model(symbolic, head(vectors))
        # Without XLA, with which Keras 3 compiles the stock model on a GPU: its products are TF32.
        model.compile(getattr(keras.optimizers, optimizer)(0.1), "mse", jit_compile=False)
        return model

    initializer = keras.initializers.Constant(start)
    dense = keras.layers.Dense(8, use_bias=False, kernel_initializer=initializer)
    shares_input = keras.Input((50,))
    stock = model_of(shares_input, dense(shares_input))
    feature = FeatureConfig("x", TableConfig("t", 50, 8, initializer=initializer))
    ids_input = keras.Input((3,), dtype="int64")
    grouped = model_of(ids_input, GroupEmbedding([feature], concat=True)({"x": ids_input}))
    # when both are trained on the same batches
    expected_losses, losses = (
        model.fit(x, labels, batch_size=16, epochs=3, shuffle=False, verbose=0).history["loss"]
        for model, x in ((stock, shares), (grouped, ids))
    )
    # then
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert losses[-1] < losses[0]
    for expected, got in zip(stock.get_weights(), grouped.get_weights()):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_mixed_float16_trains_with_loss_scaling(features, symbolic_inputs, dataset):
    # given a model under the mixed policy, whose optimizer Keras wraps
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = functional(features, symbolic_inputs)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    model.compile(keras.optimizers.SGD(0.05), "mse")
    # when / then
    losses = model.fit(dataset, epochs=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]


def test_frozen_tables_stay(dataset):
    # given
    table = TableConfig("t", 10, 4, trainable=False)
    item = keras.Input((), dtype="int64", name="item")
    layer = GroupEmbedding([FeatureConfig("item", table)], concat=True)
    model = keras.Model({"item": item}, keras.layers.Dense(1)(layer({"item": item})))
    model.compile("sgd", "mse")
    before = tf.convert_to_tensor(layer.tables["t"]).numpy()
    # when
    model.fit(dataset.map(lambda x, y: ({"item": x["item"]}, y)), verbose=0)
    # then
    np.testing.assert_array_equal(tf.convert_to_tensor(layer.tables["t"]), before)


def test_mirrored_strategy_trains_as_one_replica_does(dataset):
    # given one model alone and one mirrored
    def model_of():
        item = keras.Input((), dtype="int64", name="item")
        table = TableConfig("t", 10, 4, initializer="ones")
        vectors = GroupEmbedding([FeatureConfig("item", table)], concat=True)({"item": item})
        head = keras.layers.Dense(1, kernel_initializer="ones")
        model = keras.Model({"item": item}, head(vectors))
        model.compile("sgd", "mse")
        return model

    alone = model_of()
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = model_of()
    # when
    for model in (alone, mirrored):
        model.fit(dataset.map(lambda x, y: ({"item": x["item"]}, y)), verbose=0)
    # then
    for expected, got in zip(alone.get_weights(), mirrored.get_weights()):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_explicit_jit_compile_is_refused(features, symbolic_inputs, dataset):
    # given
    model = functional(features, symbolic_inputs)
    # when XLA is asked for / then the error names the layer, the reason and the way out:
    # Keras 3 asks the layers when it compiles, Keras 2 first traces them in fit.
    with pytest.raises(ValueError, match=r"layer 'embedding'(?s:.*)XLA(?s:.*)jit_compile=False"):
        model.compile("sgd", "mse", jit_compile=True)
        assert not IS_KERAS_3
        model.fit(dataset, verbose=0)


def test_jit_compile_is_refused_where_keras_could_not_see_the_layer(features, dataset):
    # given a model that makes its layer only when it is built, after Keras has asked
    class Late(Subclassed):
        def __init__(self, features):
            super(Subclassed, self).__init__()
            self.late_features = lambda: features
            self.head = keras.layers.Dense(1)

        def build(self, input_shape):
            self.embedding = GroupEmbedding(self.late_features(), concat=True, name="late")
            self.built = True

    model = Late(features)
    model.compile("sgd", "mse", jit_compile=True)
    # when / then
    with pytest.raises(ValueError, match=r"layer 'late'(?s:.*)XLA"):
        model.fit(dataset, verbose=0)


def test_tf_function_with_jit_compile_is_refused(features, inputs):
    layer = GroupEmbedding(features, name="embedding")

    @tf.function(jit_compile=True)
    def compiled():
        return layer(inputs)

    with pytest.raises(ValueError, match=r"layer 'embedding'(?s:.*)XLA"):
        compiled()


@pytest.mark.skipif(not IS_KERAS_3, reason="Keras 2 has no jit_compile='auto'")
def test_keras_is_told_that_the_layer_is_not_for_xla(features, symbolic_inputs, monkeypatch):
    # given a machine that Keras takes for one with an accelerator, where "auto" means XLA
    device = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *args: [device])
    stock_input = keras.Input((2,))
    stock = keras.Model(stock_input, keras.layers.Dense(1)(stock_input))
    # when both a stock model and one with the layer are compiled plainly
    model = functional(features, symbolic_inputs)
    stock.compile("sgd", "mse")
    model.compile("sgd", "mse")
    # then only the stock model goes to XLA
    assert stock.jit_compile and not model.jit_compile
