"""`evaluate` and `predict` of `ge.training.Model`, beside the same Keras model."""

import numpy as np
import pytest
import tensorflow as tf
from support.session.tiers import by_day
from training.test_iterator_steps import batches, dataset, make_model

import group_embedding as ge
from group_embedding.keras_compat import keras


def two_models(steps_per_execution):
    """A Keras model and one of ours, which start with the same values."""
    return [
        make_model(base, steps_per_execution=steps_per_execution)
        for base in (keras.Model, ge.training.Model)
    ]


def functions_of_steps(model, kind):
    """The functions of handles that took steps, for each structure of batches."""
    return getattr(model, f"{kind}_function")._steps._functions


# 20: more than one function takes
@pytest.mark.parametrize("steps_per_execution", by_day([1, 3, 20], [3]))
def test_evaluate_gives_what_keras_gives(steps_per_execution):
    # Given two models of the same values, with losses and metrics of weighted samples
    plain, model = two_models(steps_per_execution)

    # When both evaluate seven batches, the last of which is smaller
    expected = plain.evaluate(dataset(), verbose=0, return_dict=True)
    found = model.evaluate(dataset(), verbose=0, return_dict=True)

    # Then losses and metrics are the same, also over a part of the data; by functions of handles
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)
    part = [m.evaluate(dataset().repeat(), steps=4, verbose=0) for m in (plain, model)]
    np.testing.assert_allclose(part[1], part[0], rtol=1e-6)
    assert len(functions_of_steps(model, "test")) == 1


@pytest.mark.parametrize("steps_per_execution", by_day([1, 3, 20], [1, 3]))
def test_predict_gives_what_keras_gives(steps_per_execution):
    # Given two models of the same values
    plain, model = two_models(steps_per_execution)

    # When both predict samples of a dataset, whose size is known or not, or of a part of it
    def predict(of):
        known, unknown = dataset(), dataset().filter(lambda *_: True)
        yield of.predict(known, verbose=0)
        yield of.predict(unknown, steps=6, verbose=0)
        yield of.predict(known.repeat(), steps=4, verbose=0)

    # Then there is one output for each sample, in order; by functions of handles
    for outputs, expected in zip(predict(model), predict(plain), strict=True):
        np.testing.assert_allclose(outputs, expected, rtol=1e-6)
    expected = [plain(inputs) for inputs, _, _ in batches()]
    np.testing.assert_allclose(next(predict(model)), np.concatenate(expected), rtol=1e-5)
    assert len(functions_of_steps(model, "predict")) == 1


def test_metrics_of_a_dataset_of_unknown_size_are_those_of_all_its_batches():
    # Given models, of which one takes three steps a call
    plain, model = make_model(keras.Model), make_model(ge.training.Model, steps_per_execution=3)

    # When a dataset ends within a call, and when fit evaluates after an epoch
    expected = plain.evaluate(dataset(), verbose=0)
    found = model.evaluate(dataset().filter(lambda *_: True), steps=9, verbose=0)
    expected_history = plain.fit(dataset(), validation_data=dataset(), verbose=0).history
    history = model.fit(dataset(), validation_data=dataset(), verbose=0).history

    # Then no batch is left out
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for name, values in expected_history.items():
        np.testing.assert_allclose(history[name], values, atol=2e-6, err_msg=name)


class Own(ge.training.Model):
    """Its steps are its own, and predictions are of all kinds."""

    def __init__(self):
        super().__init__()
        table = ge.TableConfig("items", 30, 2, initializer=keras.initializers.Constant(1.0))
        self.layer = ge.layers.GroupEmbedding([ge.FeatureConfig("item", table)])

    def call(self, inputs):
        return self.layer(inputs)["item"]

    def test_step(self, batch):
        inputs, labels = batch[:2]
        return {"own": tf.reduce_sum(self(inputs) * labels)}

    def predict_step(self, batch):
        inputs = keras.utils.unpack_x_y_sample_weight(batch)[0]
        items = tf.cast(inputs["item"], tf.float32)
        return {
            "dense": self(inputs) * items[:, None],
            "ragged": tf.RaggedTensor.from_row_lengths(items, tf.ones_like(inputs["item"])),
            "words": tf.strings.as_string(inputs["item"]),
        }


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_steps_of_ones_own(steps_per_execution):
    # Given a model with its own steps of evaluation and prediction, of which some are strings
    model = Own()
    model.compile("sgd", "mse", jit_compile=False, steps_per_execution=steps_per_execution)
    items = np.concatenate([inputs["item"] for inputs, _, _ in batches()])

    # When it predicts and evaluates
    outputs = model.predict(dataset(), verbose=0)
    last = model.evaluate(dataset(), verbose=0, return_dict=True)

    # Then outputs are those of the steps, one after the other
    np.testing.assert_array_equal(outputs["dense"], np.stack([items, items], axis=1))
    np.testing.assert_array_equal(outputs["words"], [b"%d" % item for item in items])
    assert outputs["ragged"].to_list() == [[item] for item in items]
    np.testing.assert_allclose(last["own"], 2 * np.sum([*batches()][-1][1]), rtol=1e-5)


def test_arrays_single_batches_and_models_that_are_not_compiled():
    # Given a model that was never compiled, and arrays
    plain, model = make_model(keras.Model), make_model(ge.training.Model)
    inputs, labels, weights = next(batches())
    uncompiled = Own()

    # When it predicts, and others take single batches
    found = uncompiled.predict({"item": inputs["item"].numpy()}, batch_size=2, verbose=0)
    predicted = [m.predict_on_batch(inputs) for m in (plain, model)]
    tested = [m.test_on_batch(inputs, labels, weights) for m in (plain, model)]

    # Then they give what Keras gives
    np.testing.assert_array_equal(found["dense"][:, 0], inputs["item"])
    np.testing.assert_allclose(*predicted, rtol=1e-6)
    np.testing.assert_allclose(*tested, rtol=1e-6)


def test_models_that_run_eagerly():
    # Given a model that is to run eagerly
    plain, model = make_model(keras.Model), make_model(ge.training.Model, run_eagerly=True)

    # When it predicts and evaluates, Then it gives what Keras gives
    np.testing.assert_allclose(
        model.predict(dataset(), verbose=0), plain.predict(dataset(), verbose=0), rtol=1e-6
    )
    np.testing.assert_allclose(
        model.evaluate(dataset(), verbose=0), plain.evaluate(dataset(), verbose=0), rtol=1e-6
    )


def test_models_of_a_strategy_are_keras_own():
    # Given models of one value for all rows, one of them made under a strategy
    def make(base):
        item = keras.Input([], dtype="int64", name="item")
        table = ge.TableConfig("items", 30, 2, initializer=keras.initializers.Constant(1.0))
        vectors = ge.layers.GroupEmbedding([ge.FeatureConfig("item", table)], concat=True)(
            {"item": item}
        )
        model = base({"item": item}, keras.layers.Dense(1, kernel_initializer="ones")(vectors))
        model.compile("sgd", "mse", jit_compile=False)
        return model

    plain = make(keras.Model)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = make(ge.training.Model)
    data = dataset().map(lambda inputs, labels, _: ({"item": inputs["item"]}, labels))

    # When they predict and evaluate, Then it is the same
    for method in ("predict", "evaluate"):
        expected, found = [getattr(m, method)(data, verbose=0) for m in (plain, model)]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_training_and_predicting_by_turns():
    # Given a model that has predicted
    model = make_model(ge.training.Model, steps_per_execution=2)
    before = model.predict(dataset(), verbose=0)

    # When it is trained, then predictions and metrics are those of its new rows
    model.fit(dataset(), verbose=0)
    after = model.predict(dataset(), verbose=0)
    np.testing.assert_allclose(
        after, np.concatenate([model(inputs) for inputs, _, _ in batches()]), rtol=1e-5
    )
    assert (before != after).all()
