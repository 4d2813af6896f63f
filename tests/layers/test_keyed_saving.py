"""`.keras` and `.weights.h5` of keyed tables: a loaded model goes on as the one that was saved.

`saving_cases` has the forms of models, in processes of their own; here are the options of tables.
"""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.checkpoint import in_store
from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.lookups.lookup_table import variable_of_all

DIMS = {"users": 3, "items": 5, "shops": 4}
FILTERS = {
    "users": ge.CounterFilter(filter_freq=2),
    "items": ge.CBFFilter(filter_freq=2, max_element_size=500, false_positive_probability=0.001),
    "shops": None,
}
OPTIONS = {
    "memory": {},
    "disk": {
        "storage_option": ge.StorageOption(
            storage_type=ge.StorageType.DRAM_SSDHASH, storage_size=[1 << 13, 1 << 30]
        )
    },
    "evicted": {"evict_option": ge.GlobalStepEvict(steps_to_live=2)},
}
KEYS = np.random.default_rng(3).integers(0, 2**62, 400)


def batch(step):
    """Few keys often, many once: some of the filters' counts are below their limits at any time."""
    rng = np.random.default_rng(step)
    often, once = rng.choice(KEYS[:40], (24, 2)), KEYS[40 + 24 * step : 64 + 24 * step]
    return {name: np.hstack([often, once[:, None]]) for name in DIMS}


def make_model(options, optimizer):
    tables = [
        ge.TableConfig(
            name,
            None,
            dim,
            ev_option=ge.EmbeddingVariableOption(filter_option=FILTERS[name], **options),
        )
        for name, dim in DIMS.items()
    ]
    features = [ge.FeatureConfig(table.name, table) for table in tables]
    inputs = {name: keras.Input((3,), dtype="int64", name=name) for name in DIMS}
    vectors = ge.layers.GroupEmbedding(features, concat=True, name="embedding")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(vectors))
    model.compile(ge.optimizers.wrap(getattr(keras.optimizers, optimizer)(0.05)), "mse")
    return model


def train(model, steps):
    for step in steps:
        model.train_on_batch(batch(step), np.ones([24, 1], np.float32))


def content(model):
    """The content of each table, and its counts of keys without a row."""
    tables = model.get_layer("embedding").tables
    found = {}
    for name in DIMS:
        table = variable_of_all(tables[name])
        counts = table.get_frequency(KEYS)
        found[name] = [value.numpy() for value in (*table.export(), counts)]
    return found


def assert_same(found, expected):
    for name, values in expected.items():
        for value, expected_value in zip(found[name], values):
            np.testing.assert_array_equal(value, expected_value)


@pytest.mark.covering(1)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("optimizer", ["Adam", "Adagrad"])
def test_a_keras_file_goes_on_as_uninterrupted_training(options, optimizer, tmp_path, monkeypatch):
    # Given a trained model of three tables, saved, and trained further
    monkeypatch.setattr(in_store, "_PIECE_BYTES", 1000)
    model = make_model(OPTIONS[options], optimizer)
    train(model, range(4))
    model.save(tmp_path / "model.keras")
    saved = content(model)
    train(model, range(4, 8))
    # When it is loaded, wrapped and trained further
    loaded = keras.models.load_model(tmp_path / "model.keras")
    ge.optimizers.wrap(loaded.optimizer)
    # Then it has what was saved, and ends with what the first has
    assert_same(content(loaded), saved)
    train(loaded, range(4, 8))
    assert_same(content(loaded), content(model))
    np.testing.assert_array_equal(loaded.get_layer(index=-1).kernel, model.layers[-1].kernel)


def test_a_sequential_model_of_a_dict_goes_on(tmp_path):
    # Given a Sequential model of a keyed table and one by row, whose inputs are a dict, trained
    tables = [ge.TableConfig("users", None, 3), ge.TableConfig("items", 40, 2)]
    layer = ge.layers.GroupEmbedding(
        [ge.FeatureConfig(table.name, table) for table in tables], concat=True
    )
    layers = [layer, keras.layers.Dense(4, activation="relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(ge.optimizers.wrap(keras.optimizers.Adam(0.05)), "mse")
    inputs = {"users": KEYS[:24].reshape(8, 3), "items": np.arange(16).reshape(8, 2)}
    model.fit(inputs, np.ones([8, 1]), shuffle=False, verbose=0)
    # When it is saved, loaded and wrapped, and both are trained further
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    ge.optimizers.wrap(loaded.optimizer)
    before = [each.predict(inputs, verbose=0) for each in (loaded, model)]
    for each in (loaded, model):
        each.fit(inputs, np.ones([8, 1]), epochs=2, shuffle=False, verbose=0)
    # Then they are the same before and after
    np.testing.assert_array_equal(*before)
    np.testing.assert_array_equal(*[each.predict(inputs, verbose=0) for each in (loaded, model)])
    assert (before[1] != model.predict(inputs, verbose=0)).any()


@pytest.mark.covering(1)
@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 loads no models from SavedModels")
@pytest.mark.parametrize("options", OPTIONS)
def test_a_saved_model_of_keras_2_goes_on(options, tmp_path):
    # Given a trained model of three tables, saved as a SavedModel, and trained further
    model = make_model(OPTIONS[options], "SGD")
    train(model, range(4))
    model.save(tmp_path / "model", save_format="tf")
    saved = content(model)
    train(model, range(4, 8))
    # When Keras loads it, and it is wrapped and trained further, from the step of its optimizer,
    # which Keras starts anew
    loaded = keras.models.load_model(tmp_path / "model")
    ge.optimizers.wrap(loaded.optimizer)
    loaded.optimizer.iterations.assign(4)
    # Then it has what was saved, and ends with what the first has
    assert_same(content(loaded), saved)
    train(loaded, range(4, 8))
    assert_same(content(loaded), content(model))
    np.testing.assert_array_equal(loaded.get_layer(index=-1).kernel, model.layers[-1].kernel)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_weights_file_goes_on_as_uninterrupted_training(options, tmp_path):
    # Given the weights of a trained model, which was trained further
    model = make_model(OPTIONS[options], "Adam")
    train(model, range(4))
    model.save_weights(tmp_path / "model.weights.h5")
    train(model, range(4, 8))
    # When a model that was trained on other keys reads them, and is trained further
    other = make_model(OPTIONS[options], "Adam")
    train(other, range(9, 11))
    other.load_weights(tmp_path / "model.weights.h5")
    train(other, range(4, 8))
    # Then it ends with what the first has
    assert_same(content(other), content(model))


def test_what_is_damaged_is_refused_and_changes_nothing():
    # Given the store of a trained layer, in which a byte of one table is another
    model = make_model({}, "Adam")
    train(model, range(2))
    layer = model.get_layer("embedding")
    store = {}
    layer.save_own_variables(store)
    (file,) = [name for name in store if name.startswith("items:data")]
    store[file] = store[file].copy()
    store[file][len(store[file]) // 2] ^= 1
    train(model, range(2, 4))
    before = content(model)
    # When it is read
    with pytest.raises(tf.errors.DataLossError, match="items"):
        in_store.restore_table(store, "items", variable_of_all(layer.tables["items"]))
    # Then the table is what it was
    assert_same(content(model), before)


def test_a_store_without_the_table_is_refused():
    layer = make_model({}, "Adam").get_layer("embedding")
    store = {}
    layer.save_own_variables(store)
    del store["items:manifest"]
    with pytest.raises(ValueError, match="table 'items': expected it among the saved tables"):
        layer.load_own_variables(store)
