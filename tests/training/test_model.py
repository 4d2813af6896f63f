"""`ge.training.Model`, beside the same Keras model without compilation."""

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day

import group_embedding as ge
from group_embedding.keras_compat import IS_KERAS_3, keras

SAMPLES, BATCH = 200, 48  # the last batch of an epoch is a smaller one


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    inputs = {
        "clicks": rng.integers(0, 50, (SAMPLES, 3)),
        "item": rng.integers(0, 20, SAMPLES),
        "price": rng.normal(size=(SAMPLES, 5)).astype("float32"),
    }
    bought = (inputs["item"] % 3 == 0).astype("float32")[:, None]
    return inputs, {"bought": bought, "rating": bought * 2 - 1}, rng.random(SAMPLES)


def features():
    uniform = keras.initializers.RandomUniform(seed=1)
    clicks = ge.TableConfig("clicks", num_rows=50, dim=8, initializer=uniform)
    items = ge.TableConfig("items", num_rows=None, dim=4, initializer=uniform)
    return [ge.FeatureConfig("clicks", clicks), ge.FeatureConfig("item", items)]


class Tower(keras.layers.Layer):
    """Dense layers with a regularizer and batch normalisation, and two outputs."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        start = [keras.initializers.GlorotUniform(seed=seed) for seed in range(3)]
        regularizer = keras.regularizers.L2(1e-3)
        dense = keras.layers.Dense
        self.hidden = dense(16, "relu", kernel_initializer=start[0], kernel_regularizer=regularizer)
        self.normalise = keras.layers.BatchNormalization()
        self.bought = dense(1, kernel_initializer=start[1], dtype="float32")
        self.rating = dense(1, kernel_initializer=start[2], dtype="float32")

    def build(self, shape):
        self.hidden.build(shape)
        for layer in (self.normalise, self.bought, self.rating):
            layer.build((*shape[:-1], 16))
        super().build(shape)

    def call(self, inputs, training=None):
        hidden = self.normalise(self.hidden(inputs), training=training)
        return {"bought": self.bought(hidden), "rating": self.rating(hidden)}


def functional(base):
    inputs = {
        "clicks": keras.Input([3], dtype="int64", name="clicks"),
        "item": keras.Input([], dtype="int64", name="item"),
        "price": keras.Input([5], name="price"),
    }
    ids = {name: inputs[name] for name in ("clicks", "item")}
    vectors = ge.layers.GroupEmbedding(features(), concat=True)(ids)
    return base(inputs, Tower(name="tower")(keras.layers.Concatenate()([vectors, inputs["price"]])))


def subclassed(base):
    class Recommender(base):
        def __init__(self):
            super().__init__()
            self.embeddings = ge.layers.GroupEmbedding(features(), concat=True)
            self.tower = Tower()

        def call(self, inputs, training=None):
            vectors = self.embeddings(inputs)
            price = tf.cast(inputs["price"], vectors.dtype)
            return self.tower(tf.concat([vectors, price], axis=-1), training=training)

    return Recommender()


def handing_over(base):
    """A subclass that hands inputs and outputs to its base."""

    class Recommender(base):
        pass

    return functional(Recommender)


MODELS = {"functional": functional, "subclassed": subclassed, "handing_over": handing_over}


def compiled(model, optimizer=None, **options):
    model.compile(
        optimizer or ge.optimizers.wrap(keras.optimizers.Adagrad(0.1)),
        loss={
            "bought": keras.losses.BinaryCrossentropy(from_logits=True),
            "rating": keras.losses.Huber(),
        },
        loss_weights={"bought": 1.0, "rating": 0.5},
        metrics={"bought": [keras.metrics.AUC(from_logits=True, name="auc")], "rating": ["mae"]},
        **options,
    )
    return model


def fit(model, data, **options):
    inputs, labels, weights = data
    history = model.fit(
        inputs,
        labels,
        shuffle=False,
        sample_weight=dict.fromkeys(labels, weights) if IS_KERAS_3 else weights,
        validation_data=(inputs, labels),
        verbose=0,
        **{"epochs": 3, "batch_size": BATCH, **options},
    )
    return history.history


@pytest.mark.parametrize("steps_per_execution", by_day([1, 2], [2]))
@pytest.mark.parametrize("kind", by_day(MODELS, ["subclassed"]))
def test_fit_trains_as_without_compilation(data, kind, steps_per_execution):
    # Given a model of two outputs with regularizers, batch normalisation, metrics and weights
    options = {"steps_per_execution": steps_per_execution}
    plain = compiled(MODELS[kind](keras.Model), **options)
    model = compiled(MODELS[kind](ge.training.Model), **options)

    # When both are fitted
    expected, got = fit(plain, data), fit(model, data)

    # Then losses and metrics, of training and validation, are the same; all in one XLA program
    assert model.train_step.num_programs == 1
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, atol=2e-6, err_msg=name)
    assert got["loss"][-1] < got["loss"][0]


def test_a_model_that_runs_eagerly_trains_alike(data):
    # Given one of Keras's models and one of ours, which are to run eagerly
    plain, model = [
        compiled(MODELS["functional"](base), run_eagerly=True)
        for base in (keras.Model, ge.training.Model)
    ]

    # When both are fitted, Then losses and metrics are the same
    expected, got = fit(plain, data, epochs=1), fit(model, data, epochs=1)
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, atol=2e-6, err_msg=name)


@pytest.mark.slow
def test_half_precision(data):
    # Given models that compute in bfloat16
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        losses = [
            fit(compiled(subclassed(base)), data)["loss"]
            for base in (keras.Model, ge.training.Model)
        ]
    finally:
        keras.mixed_precision.set_global_policy("float32")

    # Then both learn alike, up to where XLA rounds to bfloat16 between ops
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.02)


def test_float16_and_its_loss_scale(data):
    # Given models that compute in float16, whose loss is scaled
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        losses = []
        for base in (keras.Model, ge.training.Model):
            optimizer = keras.mixed_precision.LossScaleOptimizer(
                ge.optimizers.wrap(keras.optimizers.Adagrad(0.1)), initial_scale=2.0**8
            )
            # When they are fitted on batches of one size, for each of which XLA compiles anew
            model = compiled(subclassed(base), optimizer)
            losses.append(fit(model, data, batch_size=SAMPLES // 4)["loss"])
    finally:
        keras.mixed_precision.set_global_policy("float32")

    # Then both learn alike
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.02)
    assert losses[1][-1] < losses[1][0]


def test_dropout_differs_from_step_to_step(data):
    # Given a model that drops half of what it looks up
    class Dropping(ge.training.Model):
        def __init__(self):
            super().__init__()
            self.embeddings = ge.layers.GroupEmbedding(features(), concat=True)
            self.drop = keras.layers.Dropout(0.5)
            self.dropped = self.add_weight(
                name="dropped", shape=[2], initializer="zeros", trainable=False
            )
            self.head = keras.layers.Dense(1)

        def call(self, inputs, training=None):
            vectors = self.drop(self.embeddings(inputs), training=training)
            if training:
                share = tf.reduce_mean(tf.cast(vectors[:, :8] == 0, tf.float32))
                self.dropped.assign(tf.stack([self.dropped[1], share]))
            return self.head(vectors)

    model = Dropping()
    model.compile(ge.optimizers.wrap(keras.optimizers.SGD(0.01)), "mse")

    # When it trains on two batches
    inputs, labels, _ = data
    model.fit(inputs, labels["bought"], batch_size=100, epochs=1, verbose=0)

    # Then each dropped about half, and not the same
    first, second = np.asarray(model.dropped)
    assert 0.4 < first < 0.6 and 0.4 < second < 0.6 and first != second


def test_a_train_step_of_ones_own_is_compiled(data):
    # Given a subclass with its own step
    class Squared(ge.training.Model):
        def __init__(self):
            super().__init__()
            self.embeddings = ge.layers.GroupEmbedding(features(), concat=True)

        def call(self, inputs):
            return self.embeddings(inputs)

        def train_step(self, batch):
            inputs, _ = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.exp(self(inputs)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"own": loss}

    model = Squared()
    model.compile(ge.optimizers.wrap(keras.optimizers.SGD(1.0)))

    # When it is fitted
    inputs, labels, _ = data
    losses = model.fit(inputs, labels["bought"], epochs=4, verbose=0).history["own"]

    # Then its loss falls, computed by one program
    assert losses[-1] < losses[0]
    assert model.train_step.num_programs == 1


@pytest.mark.parametrize("kind", by_day(["functional", "subclassed"], ()))
def test_a_fitted_model_is_saved_restored_and_exported(data, kind, tmp_path):
    # Given a fitted model
    inputs = data[0]
    model = compiled(MODELS[kind](ge.training.Model))
    callback = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "best.weights.h5"), save_weights_only=True
    )
    fit(model, data, epochs=1, callbacks=[callback])
    expected = model.predict(inputs, verbose=0)

    # When its weights are read by a model that goes on
    again = compiled(MODELS[kind](ge.training.Model))
    again.predict({name: value[:1] for name, value in inputs.items()}, verbose=0)
    again.load_weights(str(tmp_path / "best.weights.h5"))

    # Then it predicts the same, and goes on
    for name, values in again.predict(inputs, verbose=0).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-6)
    fit(again, data, epochs=1)

    # And an exported function of it answers the same. (Keras 3 has a subclassed model answer floats
    # beside, which are no ids.)
    if IS_KERAS_3 and kind == "subclassed":
        return
    exported = tf.Module()
    exported.model = model
    exported.answer = tf.function(
        lambda clicks, item, price: model({"clicks": clicks, "item": item, "price": price}),
        input_signature=[
            tf.TensorSpec([None, 3], tf.int64),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None, 5], tf.float32),
        ],
    )
    tf.saved_model.save(exported, str(tmp_path / "exported"))
    loaded = tf.saved_model.load(str(tmp_path / "exported"))
    answered = loaded.answer(*(tf.constant(inputs[name]) for name in ("clicks", "item", "price")))
    for name, values in expected.items():
        np.testing.assert_allclose(answered[name], values, atol=1e-6)


def test_a_functional_model_survives_a_keras_file(data, tmp_path):
    # Given a fitted functional model
    inputs, labels, _ = data
    item = keras.Input([], dtype="int64", name="item")
    layer = ge.layers.GroupEmbedding(features()[1:])
    model = ge.training.Model({"item": item}, keras.layers.Dense(1)(layer({"item": item})["item"]))
    model.compile(ge.optimizers.wrap(keras.optimizers.Adagrad(0.1)), "mse")
    model.fit({"item": inputs["item"]}, labels["bought"], verbose=0)

    # When it is saved and loaded
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")

    # Then it is a model of the same class with the same rows
    assert type(loaded) is type(model)
    given = {"item": inputs["item"]}
    np.testing.assert_array_equal(loaded.predict(given, verbose=0), model.predict(given, verbose=0))
