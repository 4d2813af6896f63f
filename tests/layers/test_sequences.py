"""Features whose rows stay apart: beside tf.gather, with masks, gradients, packing and saving."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras

ROWS = [[7, 8], [1, 2, 3, 4], [], [9]]
IDS = tf.ragged.constant(ROWS, dtype=tf.int64)


def make_layer(num_rows=10, **kwargs):
    """A sequence cut at its end and one cut at its start, a ragged one and a combined feature that
    share a table."""
    items = ge.TableConfig("items", num_rows=num_rows, dim=4)
    features = [
        ge.FeatureConfig("first", items, max_length=3),
        ge.FeatureConfig("mean", items),
        ge.FeatureConfig("last", items, max_length=2, keep="last"),
        ge.FeatureConfig("ragged", items, ragged=True),
    ]
    return ge.layers.GroupEmbedding(features, **kwargs)


def inputs_of(ids):
    return dict.fromkeys(("first", "mean", "last", "ragged"), ids)


def table_of(layer):
    return tf.convert_to_tensor(layer.tables["items"])


def expected_of(table, rows=ROWS):
    """The oracle: rows gathered one by one."""

    def padded(cut, length):
        out = np.zeros((len(rows), length, 4), np.float32)
        for sample, row in enumerate(rows):
            for position, i in enumerate(cut(row)):
                out[sample, position] = table[i]
        return out

    return {
        "first": padded(lambda row: row[:3], 3),
        "last": padded(lambda row: row[-2:], 2),
        "ragged": np.concatenate([np.asarray(table)[row] for row in rows if row]),
    }


FORMS = {
    "ragged": lambda ids: ids,
    "ragged of int32 splits": lambda ids: ids.with_row_splits_dtype(tf.int32),
    "sparse": lambda ids: ids.to_sparse(),
    "dense": lambda ids: ids.to_tensor(-1),
    "dense of int32": lambda ids: tf.cast(ids.to_tensor(-1), tf.int32),
    "dense with padding before": lambda ids: tf.reverse(ids.to_tensor(-1)[:, ::-1], [1]),
}


@pytest.mark.parametrize("form", FORMS)
def test_sequences_are_the_rows_of_their_ids(form):
    # given ids in one form
    layer = make_layer()
    # when they are looked up, and packed before
    outputs, masks = layer(inputs_of(FORMS[form](IDS))), layer.compute_mask(inputs_of(IDS))
    packed = layer(layer.route(inputs_of(FORMS[form](IDS))))
    # then every position has the row of its id, and is zero without one
    expected = expected_of(table_of(layer))
    for found in (outputs, packed):
        np.testing.assert_array_equal(found["first"], expected["first"])
        np.testing.assert_array_equal(found["last"], expected["last"])
        np.testing.assert_array_equal(found["ragged"].values, expected["ragged"])
        assert found["ragged"].row_splits.numpy().tolist() == [0, 2, 6, 6, 7]
        assert found["mean"].shape == (4, 4)
    assert masks["first"].numpy().tolist() == [[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert masks["last"].numpy().tolist() == [[1, 1], [1, 1], [0, 0], [1, 0]]
    assert masks["mean"] is None and masks["ragged"] is None


def test_negative_ids_leave_no_gap():
    # given negative ids between others
    ids = tf.constant([[-1, 5, -1, 6], [-2, -1, -1, -1]])
    layer = make_layer()
    # when
    outputs, masks = layer(inputs_of(ids)), layer.compute_mask(inputs_of(ids))
    # then the others move up
    np.testing.assert_array_equal(
        outputs["first"], expected_of(table_of(layer), [[5, 6], []])["first"]
    )
    assert masks["first"].numpy().tolist() == [[True, True, False], [False, False, False]]


def test_one_op_looks_all_features_up():
    # given
    layer = make_layer()
    layer.build()
    # when the call is traced
    graph = tf.function(layer).get_concrete_function(inputs_of(IDS)).graph
    # then one op reads the table
    lookups = [op.name for op in graph.get_operations() if op.type.endswith("GroupLookup")]
    assert len(lookups) == 1


def test_gradients_of_rows_and_weights():
    # given a sequence with weights
    table = ge.TableConfig("items", num_rows=10, dim=4)
    feature = ge.FeatureConfig("x", table, max_length=3, weights_feature="w")
    layer = ge.layers.GroupEmbedding([feature])
    weights = IDS.with_values(tf.range(1.0, 8.0))
    layer.build()
    rows, scale = table_of(layer), np.random.default_rng(0).normal(size=(4, 3, 4))
    # when
    with tf.GradientTape() as tape:
        tape.watch(weights.values)
        loss = tf.reduce_sum(layer({"x": IDS, "w": weights})["x"] * scale)
    found = tape.gradient(loss, [layer.trainable_weights[0], weights.values])
    # then they are those of tf.gather
    at, flat = IDS[:, :3].to_tensor(0), weights.values
    with tf.GradientTape() as tape:
        tape.watch([rows, flat])
        factors = weights.with_values(flat)[:, :3].to_tensor(0.0)
        loss = tf.reduce_sum(tf.gather(rows, at) * factors[..., None] * scale)
    expected = tape.gradient(loss, [rows, flat])
    for one, other in zip(found, expected):
        np.testing.assert_allclose(
            tf.convert_to_tensor(one), tf.convert_to_tensor(other), rtol=1e-5, atol=1e-6
        )


def test_sequences_of_keys():
    # given a keyed table, in which -5 is a key
    layer, rows = make_layer(num_rows=None), [[-5, 8], [1, 2, 3, 4]]
    inputs = inputs_of(tf.ragged.constant(rows, dtype=tf.int64))
    optimizer = ge.optimizers.wrap(keras.optimizers.SGD(0.5))
    layer(inputs)
    table = layer.tables["items"]
    table = table if isinstance(table, ge.EmbeddingVariable) else table.value

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(inputs)["first"])
        weights = layer.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    # when positions that are looked up are trained
    before = layer(inputs)["first"]
    step()
    # then the ids of the batch alone have rows, which moved by the learning rate; padding has none
    assert int(table.total_count()) == 6
    expected = before - 0.5 * tf.cast(layer.compute_mask(inputs)["first"], tf.float32)[..., None]
    np.testing.assert_allclose(layer(inputs)["first"], expected, atol=1e-6)


def test_packed_in_a_dataset():
    # given batches of different lengths, packed by a dataset
    layer = make_layer()
    dataset = tf.data.Dataset.from_tensor_slices(inputs_of(IDS)).batch(3)
    call = tf.function(lambda packed: (layer(packed)["first"], layer.compute_mask(packed)["first"]))
    # when
    found = [call(packed) for packed in dataset.map(layer.route)]
    # then they are those of the ids, and the function was traced once
    expected = expected_of(table_of(layer))["first"]
    np.testing.assert_array_equal(np.concatenate([vectors for vectors, _ in found]), expected)
    np.testing.assert_array_equal(
        np.concatenate([mask for _, mask in found]), layer.compute_mask(inputs_of(IDS))["first"]
    )
    assert call.experimental_get_tracing_count() == 1


class Attends(keras.layers.Layer):
    """Means over positions of the mask that Keras hands over."""

    supports_masking = True

    def call(self, x, mask=None):
        weights = tf.cast(mask, x.dtype)[..., None]
        return tf.math.divide_no_nan(tf.reduce_sum(x * weights, 1), tf.reduce_sum(weights, 1))

    def compute_mask(self, x, mask=None):
        return None


@pytest.mark.parametrize("base", [keras.Model, ge.training.Model], ids=["keras", "compiled"])
def test_a_functional_model_masks_and_trains_and_is_saved(base, tmp_path):
    # given a functional model whose next layer takes the mask, and one with a combined feature
    items = ge.TableConfig("items", num_rows=50, dim=4)
    rng = np.random.default_rng(1)
    ids = rng.integers(-1, 50, (64, 6))
    clicks = keras.Input([6], dtype="int64", name="clicks")

    def build(base, **sequence):
        table = ge.TableConfig("items", 50, 4, initializer=keras.initializers.RandomUniform(seed=1))
        layer = ge.layers.GroupEmbedding([ge.FeatureConfig("clicks", table, **sequence)])
        vectors = layer({"clicks": clicks})["clicks"]
        vectors = Attends()(vectors) if sequence else vectors
        dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.Ones())
        model = base({"clicks": clicks}, dense(vectors))
        model.compile(ge.optimizers.wrap(keras.optimizers.Adagrad(0.1)), "mse")
        return model

    model, combined = build(base, max_length=6), build(keras.Model)
    # when both train on the same batches
    labels = (ids[:, :1] % 2).astype("float32")
    losses = [
        m.fit({"clicks": ids}, labels, epochs=3, batch_size=32, shuffle=False, verbose=0)
        for m in (model, combined)
    ]
    # then the mean over the mask is the mean of the table's combiner
    np.testing.assert_allclose(*(loss.history["loss"] for loss in losses), rtol=1e-4)
    # and the saved model gives what the model gives
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path, custom_objects={"Attends": Attends})
    np.testing.assert_allclose(
        loaded.predict({"clicks": ids}, verbose=0), model.predict({"clicks": ids}, verbose=0)
    )
    assert items.dim == 4


def test_configs_come_back():
    # given / when
    layer = make_layer()
    copy = ge.layers.GroupEmbedding.from_config(layer.get_config())
    # then
    assert copy.features == layer.features
    assert copy.features[2].keep == "last" and copy.features[3].ragged


@pytest.mark.parametrize(
    "values, message",
    [
        ({"max_length": 0}, "feature 'x': expected max_length to be at least 1, got 0"),
        ({"max_length": 2.5}, "feature 'x': expected max_length to be an int, got 2.5"),
        ({"ragged": 1}, "feature 'x': expected ragged to be a bool, got 1"),
        ({"max_length": 2, "keep": "newest"}, "expected keep to be one of 'first', 'last', got 'n"),
        ({"keep": "last"}, "feature 'x': expected max_length with keep='last', got None"),
        ({"max_length": 2, "combiner": "sum"}, "feature 'x': expected combiner=None of a sequence"),
    ],
)
def test_a_wrong_sequence_is_refused(values, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ge.FeatureConfig("x", ge.TableConfig("t", 10, 4), **values)


def test_wrong_inputs_are_refused():
    layer = make_layer()
    # ids of rank 1
    with pytest.raises(
        ValueError, match="'first': expected dense ids of rank 2, as the feature is"
    ):
        layer(inputs_of(tf.constant([1, 2])))
    # indices that are not in order
    unordered = tf.SparseTensor([[1, 0], [0, 0]], tf.constant([1, 2], tf.int64), [2, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="feature 'first'"):
        layer(inputs_of(unordered))
    # an id outside the table, which a GPU would report later
    refused = pytest.raises(tf.errors.InvalidArgumentError, match="feature 'first'.*10")
    with tf.device("/CPU:0"), refused:
        make_layer()(inputs_of(tf.constant([[1, 10]])))
    # one tensor of all features
    with pytest.raises(ValueError, match="feature 'first': expected a feature whose rows are comb"):
        make_layer(concat=True)
    # packed ids of a layer without sequences
    table = ge.TableConfig("items", 10, 4)
    other = ge.layers.GroupEmbedding([ge.FeatureConfig("mean", table)])
    with pytest.raises(ValueError, match="with 3 sequences, got 0"):
        layer(other.route({"mean": IDS}))
