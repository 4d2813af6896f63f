"""get_config, Keras files, weights files, checkpoints and SavedModels of GroupEmbedding."""

import json

import numpy as np
import pytest
import tensorflow as tf

from group_embedding.config import FeatureConfig, TableConfig
from group_embedding.keras_compat import IS_KERAS_3, keras
from group_embedding.layers import GroupEmbedding
from group_embedding.layers.layer_config_values import features_from_config, features_to_config


@pytest.fixture
def model(features, symbolic_inputs):
    vectors = GroupEmbedding(features, concat=True, name="embedding")(symbolic_inputs)
    return keras.Model(symbolic_inputs, keras.layers.Dense(1)(vectors))


def anew(features):
    """Copies features with new tables: layers that are given one TableConfig share its table."""
    return features_from_config(features_to_config(features))


def test_config_round_trip():
    # given a layer that uses every option
    items = TableConfig(
        "items", 10, 4, initializer=keras.initializers.RandomNormal(stddev=0.5), max_norm=2.0,
        dtype="bfloat16", trainable=False,
    )  # fmt: skip
    words = TableConfig("words", 20, 3, initializer="zeros", combiner="sqrtn")
    layer = GroupEmbedding(
        [
            FeatureConfig("item", items, weights_feature="price"),
            FeatureConfig("history", items, combiner="sum"),
            FeatureConfig("title", words),
        ],
        concat=True,
        invalid_ids="ignore",
        name="embedding",
        dtype="mixed_bfloat16",
    )
    # when its config goes through JSON
    config = json.loads(json.dumps(layer.get_config()))
    copy = GroupEmbedding.from_config(config)
    # then the copy has the same config, and its features share a table again
    assert copy.get_config() == layer.get_config()
    assert copy.features[0].table is copy.features[1].table
    assert copy.features[2] == layer.features[2]
    assert copy.features[0].table.initializer.get_config()["stddev"] == 0.5
    assert (copy.name, copy.compute_dtype) == ("embedding", "bfloat16")


def test_keras_file_round_trip(model, inputs, tmp_path):
    # when
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    # then
    np.testing.assert_array_equal(loaded(inputs), model(inputs))


def test_keras_file_of_a_trained_model_trains_on(model, inputs, dataset, tmp_path):
    # given
    model.compile("adagrad", "mse")
    model.fit(dataset, verbose=0)
    model.save(tmp_path / "model.keras")
    # when the loaded model and the first are trained further
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        each.fit(dataset, verbose=0)
    # then the optimizer's state came along too
    np.testing.assert_allclose(loaded(inputs), model(inputs), atol=1e-6)


def test_weighted_and_paired_inputs_survive_a_keras_file(tmp_path):
    # given a functional model that gives a pair of ids and weights
    symbolic = {
        "x": keras.Input((3,), dtype="int64", name="x"),
        "w": keras.Input((3,), dtype="float32", name="w"),
    }
    layer = GroupEmbedding([FeatureConfig("x", TableConfig("t", 10, 4))], concat=True)
    model = keras.Model(symbolic, layer({"x": (symbolic["x"], symbolic["w"])}))
    inputs = {"x": tf.constant([[1, 2, -1]], tf.int64), "w": tf.constant([[1.0, 3.0, 1.0]])}
    # when
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    # then
    np.testing.assert_array_equal(loaded(inputs), model(inputs))


def test_weights_file_finds_tables_by_name(features, inputs, tmp_path):
    # given the weights of a model, and a model that lists its features the other way round
    def model_of(features):
        layer = GroupEmbedding(features, name="embedding")
        symbolic = {
            "item": keras.Input((), dtype="int64", name="item"),
            "history": keras.Input((None,), dtype="int64", ragged=True, name="history"),
            "title": keras.Input((None,), dtype="int32", sparse=True, name="title"),
        }
        return keras.Model(symbolic, layer(symbolic))

    model, reordered = model_of(features), model_of(anew(features)[::-1])
    # when
    model.save_weights(tmp_path / "model.weights.h5")
    reordered.load_weights(tmp_path / "model.weights.h5")
    # then
    outputs = reordered(inputs)
    for name, expected in model(inputs).items():
        np.testing.assert_array_equal(outputs[name], expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_tables_are_saved(dtype, tmp_path):
    # given
    symbolic = keras.Input((), dtype="int64")
    layer = GroupEmbedding([FeatureConfig("x", TableConfig("t", 10, 4, dtype=dtype))], concat=True)
    model = keras.Model(symbolic, layer({"x": symbolic}))
    # when
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    # then
    ids = tf.range(10, dtype=tf.int64)
    np.testing.assert_array_equal(loaded(ids), model(ids))
    assert tf.as_dtype(loaded.layers[-1].tables["t"].dtype) == dtype


@pytest.mark.parametrize(
    "table, message",
    [
        (TableConfig("other", 10, 4), r"table 'other': expected it among .*\['t'\]"),
        (TableConfig("t", 10, 8), r"table 't': expected shape \(10, 8\), got \(10, 4\)"),
    ],
)
def test_tables_that_do_not_fit_are_refused(table, message):
    # given the stored tables of one layer
    saved = GroupEmbedding([FeatureConfig("x", TableConfig("t", 10, 4))])
    saved.build()
    store = {}
    saved.save_own_variables(store)
    # when another reads them / then
    layer = GroupEmbedding([FeatureConfig("x", table)])
    with pytest.raises(ValueError, match=message):
        layer.load_own_variables(store)


def test_weights_are_loaded_into_a_layer_never_called():
    # given
    features = [FeatureConfig("x", TableConfig("t", 10, 4))]
    saved, fresh = GroupEmbedding(features), GroupEmbedding(anew(features))
    saved.build()
    store = {}
    saved.save_own_variables(store)
    # when
    fresh.load_own_variables(store)
    # then
    np.testing.assert_array_equal(fresh.get_weights()[0], saved.get_weights()[0])


def test_tensorflow_checkpoint_round_trip(features, inputs, tmp_path):
    # given
    first = GroupEmbedding(features, concat=True)
    second = GroupEmbedding(anew(features), concat=True)
    first.build()
    second.build()
    # when
    path = tf.train.Checkpoint(layer=first).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(layer=second).restore(path).assert_consumed()
    # then
    np.testing.assert_array_equal(second(inputs), first(inputs))


def test_saved_model_with_ragged_and_sparse_inputs(model, inputs, tmp_path):
    # given a serving function with a signature that says ragged and sparse
    signature = {
        "item": tf.TensorSpec([None], tf.int64),
        "history": tf.RaggedTensorSpec([None, None], tf.int64),
        "title": tf.SparseTensorSpec([None, None], tf.int32),
    }
    serve = tf.function(lambda x: model(x), input_signature=[signature])
    archive = keras.export.ExportArchive()
    archive.track(model)
    serve.get_concrete_function()
    archive.add_endpoint("serve", serve)
    # when
    archive.write_out(str(tmp_path / "exported"))
    served = tf.saved_model.load(str(tmp_path / "exported"))
    # then
    np.testing.assert_allclose(served.serve(inputs), model(inputs), atol=1e-6)


def test_export_takes_filled_up_rows_for_ragged_and_sparse_inputs(model, inputs, tmp_path):
    # given a model exported by Keras, which makes every input of the signature a dense one
    model.export(str(tmp_path / "exported"))
    served = tf.saved_model.load(str(tmp_path / "exported"))
    # when rows are filled up with a negative id
    filled_up = {
        "item": inputs["item"],
        "history": inputs["history"].to_tensor(default_value=-1),
        "title": tf.sparse.to_dense(inputs["title"], default_value=-1),
    }
    served_outputs = served.signatures["serving_default"](**filled_up)
    # then
    (output,) = served_outputs.values()
    np.testing.assert_allclose(output, model(inputs), atol=1e-6)


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 saves SavedModels by export() alone")
def test_keras_2_saved_model_round_trip(model, inputs, tmp_path):
    # when
    model.save(str(tmp_path / "saved"), save_format="tf")
    loaded = keras.models.load_model(str(tmp_path / "saved"))
    # then
    assert isinstance(loaded.get_layer("embedding"), GroupEmbedding)
    np.testing.assert_allclose(loaded(inputs), model(inputs), atol=1e-6)


def test_clone_shares_nothing():
    # given
    x = keras.Input((3,), dtype="int64")
    layer = GroupEmbedding([FeatureConfig("x", TableConfig("t", 10, 4))], concat=True, name="layer")
    model = keras.Model(x, layer({"x": x}))
    # when
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    # then
    ids = tf.constant([[1, 2, -1], [3, 3, 3]], tf.int64)
    np.testing.assert_array_equal(clone(ids), model(ids))
    assert clone.get_layer("layer").tables["t"] is not layer.tables["t"]
