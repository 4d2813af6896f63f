"""GroupEmbedding with tables found by key, beside the same layer with tables of so many rows."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.saved_model import loader_impl

import group_embedding as ge
from group_embedding.keras_compat import keras

NUM_ROWS, DIM = 12, 4
STARTS = np.random.default_rng(5).normal(size=(NUM_ROWS, DIM)).astype(np.float32)
OPTION = ge.EmbeddingVariableOption(init_option=ge.InitializerOption(default_value_dim=NUM_ROWS))
INPUTS = {
    "user": np.random.default_rng(6).integers(0, NUM_ROWS, (32, 3)),
    "item": np.random.default_rng(7).integers(0, NUM_ROWS, (32, 2)),
}
LABELS = np.random.default_rng(8).uniform(size=(32, 1)).astype(np.float32)


def starts(shape, dtype=None, **_):
    return tf.cast(STARTS, dtype or tf.float32)


def make_model(keyed, optimizer="Adagrad"):
    users = (
        ge.TableConfig("users", None, DIM, starts, ev_option=OPTION)
        if keyed
        else ge.TableConfig("users", NUM_ROWS, DIM, starts)
    )
    items = ge.TableConfig("items", NUM_ROWS, DIM, starts)
    layer = ge.layers.GroupEmbedding(
        [ge.FeatureConfig("user", users), ge.FeatureConfig("item", items, combiner="sum")],
        concat=True,
    )
    inputs = {
        name: keras.Input((ids.shape[1],), dtype="int64", name=name) for name, ids in INPUTS.items()
    }
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(layer(inputs))
    model = keras.Model(inputs, outputs)
    stock = getattr(keras.optimizers, optimizer)(0.1)
    model.compile(ge.optimizers.wrap(stock), "mse")
    return model, layer


def keyed_table(layer):
    return layer.keyed_tables["users"]


def test_a_layer_knows_its_keyed_tables_once_it_is_built():
    sizes = {"a": None, "b": 5, "c": None}
    tables = [ge.TableConfig(name, num_rows, DIM) for name, num_rows in sizes.items()]
    layer = ge.layers.GroupEmbedding([ge.FeatureConfig(table.name, table) for table in tables])
    assert layer.keyed_tables == {}

    layer.build()

    assert list(layer.keyed_tables) == ["a", "c"]
    layer.keyed_tables["c"].insert([3], tf.ones([1, DIM]))
    assert int(layer.keyed_tables["a"].total_count()) == 0
    rows = layer({name: tf.constant([[3]]) for name in sizes})
    np.testing.assert_array_equal(rows["c"], np.ones([1, DIM]))


def test_training_equals_that_of_a_table_of_so_many_rows():
    (keyed, layer), (plain, _) = make_model(keyed=True), make_model(keyed=False)

    for model in (keyed, plain):
        model.fit(INPUTS, LABELS, batch_size=8, epochs=3, shuffle=False, verbose=0)

    expected = plain.predict(INPUTS, verbose=0)
    np.testing.assert_allclose(keyed.predict(INPUTS, verbose=0), expected, rtol=1e-5, atol=1e-6)
    assert int(keyed_table(layer).total_count()) == len(np.unique(INPUTS["user"]))


def test_evaluation_and_prediction_insert_nothing():
    model, layer = make_model(keyed=True)

    model.evaluate(INPUTS, LABELS, verbose=0)
    model.predict(INPUTS, verbose=0)

    assert int(keyed_table(layer).total_count()) == 0


def test_weights_are_saved_and_loaded(tmp_path):
    model, layer = make_model(keyed=True)
    model.fit(INPUTS, LABELS, verbose=0)
    expected = model.predict(INPUTS, verbose=0)
    path = str(tmp_path / "model.weights.h5")

    model.save_weights(path)
    other, other_layer = make_model(keyed=True)
    other.fit({**INPUTS, "user": INPUTS["user"] + 1000}, LABELS, verbose=0)
    other.load_weights(path)

    np.testing.assert_array_equal(other.predict(INPUTS, verbose=0), expected)
    for saved, loaded in zip(keyed_table(layer).export(), keyed_table(other_layer).export()):
        np.testing.assert_array_equal(loaded, saved)


@pytest.mark.parametrize("optimizer", ["Adam", "Adagrad"])
def test_a_checkpoint_of_objects_goes_on_as_the_training_would_have(optimizer, tmp_path):
    # Given a model that was trained, and saved with its optimizer
    first, _ = make_model(keyed=True, optimizer=optimizer)
    first.fit(INPUTS, LABELS, verbose=0)
    saved = tf.train.Checkpoint(model=first, optimizer=first.optimizer).write(f"{tmp_path}/first")
    first.fit(INPUTS, LABELS, shuffle=False, verbose=0)
    # When another one, that was trained on other keys, is restored from that
    second, layer = make_model(keyed=True, optimizer=optimizer)
    second.fit({**INPUTS, "user": INPUTS["user"] + 1000}, LABELS, verbose=0)
    checkpoint = tf.train.Checkpoint(model=second, optimizer=second.optimizer)
    checkpoint.read(saved).assert_existing_objects_matched()
    # Then it has the keys, and goes on as the first did
    assert int(keyed_table(layer).total_count()) == len(np.unique(INPUTS["user"]))
    second.fit(INPUTS, LABELS, shuffle=False, verbose=0)
    np.testing.assert_array_equal(
        second.predict(INPUTS, verbose=0), first.predict(INPUTS, verbose=0)
    )


def test_a_whole_model_is_saved_and_loaded(tmp_path):
    option = ge.EmbeddingVariableOption(filter_option=ge.CounterFilter(2))
    table = ge.TableConfig("users", None, DIM, "ones", ev_option=option)
    layer = ge.layers.GroupEmbedding([ge.FeatureConfig("user", table)], concat=True)
    inputs = {"user": keras.Input((3,), dtype="int64", name="user")}
    model = keras.Model(inputs, layer(inputs))
    path = str(tmp_path / "model.keras")

    model.save(path)
    loaded = keras.models.load_model(path)

    (again,) = (made for made in loaded.layers if isinstance(made, ge.layers.GroupEmbedding))
    assert again.features[0].table == table


def export_model(model, folder):
    model.export(folder)


def export_archive(model, folder):
    archive = keras.export.ExportArchive()
    archive.track(model)
    signature = {name: tf.TensorSpec([None, 2], tf.int64, name) for name in KEYED_DIMS}
    serve = tf.function(lambda inputs: model(inputs), input_signature=[signature])
    serve.get_concrete_function()
    archive.add_endpoint("serving_default", serve)
    archive.write_out(folder)


def save_model(model, folder):
    serve = tf.function(lambda **features: {"output": model(features)})
    signature = {name: tf.TensorSpec([None, 2], tf.int64, name) for name in KEYED_DIMS}
    tf.saved_model.save(model, folder, signatures=serve.get_concrete_function(**signature))


def objects_of(folder):
    return loader_impl.parse_saved_model(str(folder)).meta_graphs[0].object_graph_def.nodes


KEYED_DIMS = {"user": 2, "item": 3, "shop": 4}


@pytest.mark.covering(1)
@pytest.mark.parametrize("of_one_name", [False, True], ids=["names", "one name"])
@pytest.mark.parametrize("export", [export_model, export_archive, save_model])
def test_an_exported_model_serves_the_rows_of_each_table(export, of_one_name, tmp_path):
    # Given a trained model with three keyed tables, in layers of their own
    def make_layer(name, dim):
        table = ge.TableConfig("same" if of_one_name else f"{name}s", None, dim, ev_option=OPTION)
        return ge.layers.GroupEmbedding([ge.FeatureConfig(name, table)], concat=True)

    inputs = {name: keras.Input((2,), dtype="int64", name=name) for name in KEYED_DIMS}
    vectors = [make_layer(name, dim)({name: inputs[name]}) for name, dim in KEYED_DIMS.items()]
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(keras.layers.Concatenate()(vectors))
    model = keras.Model(inputs, outputs)
    model.compile(ge.optimizers.wrap(keras.optimizers.Adagrad(0.1)), "mse")
    ids = np.random.default_rng(9).integers(0, NUM_ROWS, (32, 2))
    features = {name: tf.constant(ids + 7 * i) for i, name in enumerate(KEYED_DIMS)}
    model.fit(features, LABELS, epochs=3, verbose=0)
    # When it is exported and loaded twice
    export(model, str(tmp_path / "model"))
    for loaded in [tf.saved_model.load(str(tmp_path / "model")) for _ in range(2)]:
        # Then it serves what the model says
        (served,) = loaded.signatures["serving_default"](**features).values()
        np.testing.assert_allclose(served, model.predict(features, verbose=0), rtol=1e-5, atol=1e-6)
    # And every variable of a table is loaded to where the table is
    for node in objects_of(tmp_path / "model"):
        if any(child.local_name == "table" for child in node.children):
            assert node.registered_name.startswith("group_embedding."), node
            assert "CPU" in node.variable.device


def test_a_number_of_rows_and_options_of_keys_exclude_each_other():
    with pytest.raises(ValueError, match="table 'users': expected ev_option=None.*num_rows=12"):
        ge.TableConfig("users", NUM_ROWS, DIM, ev_option=OPTION)
