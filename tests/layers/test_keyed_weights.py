"""`get_weights`, `set_weights` and what Keras does with them: keyed tables beside dense ones."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras
from group_embedding.lookups.lookup_table import variable_of_all

KEYS = np.random.default_rng(0).integers(0, 30, (64, 3))
LABELS = np.random.default_rng(1).uniform(size=(64, 1)).astype(np.float32)
DIMS = {"users": 3, "items": 5}


def make_model(keyed=True, optimizer="Adam"):
    tables = [
        ge.TableConfig(
            name,
            None if keyed else 30,
            dim,
            "ones",
            ev_option=ge.EmbeddingVariableOption(filter_option=ge.CounterFilter(2))
            if keyed and name == "users"
            else None,
        )
        for name, dim in DIMS.items()
    ]
    inputs = {name: keras.Input((3,), dtype="int64", name=name) for name in DIMS}
    features = [ge.FeatureConfig(table.name, table) for table in tables]
    vectors = ge.layers.GroupEmbedding(features, concat=True, name="embedding")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(vectors))
    model.compile(ge.optimizers.wrap(getattr(keras.optimizers, optimizer)(0.1)), "mse")
    return model


def fit(model, keys=KEYS, **kwargs):
    inputs = dict.fromkeys(DIMS, keys)
    return model.fit(inputs, LABELS, batch_size=16, shuffle=False, verbose=0, **kwargs)


def content(model):
    found = []
    for weight in model.get_layer("embedding").tables.values():
        table = variable_of_all(weight)
        found += [*table.export(), table.get_frequency(np.arange(30))]
    return [value.numpy() for value in found] + [model.layers[-1].kernel.numpy()]


def assert_same(found, expected):
    for value, expected_value in zip(found, expected):
        np.testing.assert_array_equal(value, expected_value)


def test_weights_are_set_back():
    # Given the weights of a model that has met some keys, which is trained on others too
    model = make_model()
    fit(model, KEYS % 20)
    weights, expected = model.get_weights(), content(model)
    fit(model)
    assert len(content(model)[0]) > len(expected[0])
    # When they are set, twice
    for _ in range(2):
        model.set_weights(weights)
        # Then the tables are what they were, and the model can be trained on
        assert_same(content(model), expected)
        fit(model)


@pytest.mark.parametrize("optimizer", ["Adam", "Adagrad"])
def test_weights_of_another_model_prefetch_no_slots(optimizer):
    # Given a trained model, and one without training that gets its weights
    trained = {keyed: make_model(keyed, optimizer) for keyed in (True, False)}
    others = {keyed: make_model(keyed, optimizer) for keyed in (True, False)}
    for keyed, model in trained.items():
        if keyed:  # without a filter both tables learn as those of so many rows
            fit(model)
        others[keyed].set_weights(trained[True].get_weights() if keyed else model.get_weights())
    assert_same(content(others[True]), content(trained[True]))
    # When it is trained, Then it starts as a new table with those rows does
    first = make_model(True, optimizer)
    for name, weight in first.get_layer("embedding").tables.items():
        source = variable_of_all(trained[True].get_layer("embedding").tables[name])
        keys, values, versions, freqs = source.export()
        variable_of_all(weight).insert(keys, values, versions, freqs)
    first.layers[-1].set_weights(trained[True].layers[-1].get_weights())
    for model in (first, others[True]):
        fit(model, KEYS % 20)
    assert_same(content(others[True])[:4], content(first)[:4])


def test_early_stopping_restores_the_best_weights():
    # Given a validation loss that gets worse after the first epoch, and what was then predicted
    model = make_model()
    inputs = dict.fromkeys(DIMS, KEYS)
    after = []
    predict = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: after.append(model.predict(inputs, verbose=0))
    )
    stop = keras.callbacks.EarlyStopping(
        "val_loss", patience=1, restore_best_weights=True, mode="max"
    )
    # When it is fit, with the losses as a thing to be large
    fit(model, epochs=4, validation_data=(inputs, LABELS), callbacks=[predict, stop])
    # Then it is the model of the first epoch
    assert len(after) == 2 and (after[0] != after[1]).any()
    np.testing.assert_array_equal(model.predict(inputs, verbose=0), after[0])


def test_copies_are_no_arrays():
    model = make_model()
    fit(model)
    (copy, *_) = model.get_weights()
    assert copy.shape == (0, 3)
    with pytest.raises(TypeError, match="table '.*users': an EmbeddingVariable has no array"):
        np.asarray(copy)
    with pytest.raises(TypeError, match="table '.*users': an EmbeddingVariable has no array"):
        np.asarray(variable_of_all(model.get_layer("embedding").tables["users"]))


def test_a_copy_of_another_dim_is_refused():
    narrow, wide = (ge.get_embedding_variable(f"of_{dim}", dim) for dim in (2, 3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="of_3.*expected dim 3, got 2"):
        wide.assign(narrow.numpy())
