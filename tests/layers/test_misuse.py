"""Mistakes that new users make, each told in words; and what only looks like one."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.keras_compat import keras
from group_embedding.lookups.lookup_table import variable_of_all

IDS = np.array([[1, 2], [3, 2**30]])


def sparse_ids():
    return tf.RaggedTensor.from_tensor(tf.constant(IDS))


def table(name="t"):
    return ge.get_embedding_variable(name, 4, initializer=tf.ones_initializer())


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda t: ge.group_embedding_lookup_sparse(t, [sparse_ids()], "sum"),
            ValueError,
            r"params: expected a list .*, got a single EmbeddingVariable .*\[params\]",
        ),
        (
            lambda t: ge.group_embedding_lookup_sparse([t], sparse_ids(), "sum"),
            ValueError,
            r"sp_ids: expected a list .*, got a single RaggedTensor of .*int64.*\[sp_ids\]",
        ),
        (
            lambda t: ge.group_embedding_lookup_sparse([t], sparse_ids().to_sparse(), "sum"),
            ValueError,
            r"sp_ids: expected a list .*, got a single SparseTensor",
        ),
        (
            lambda t: ge.group_embedding_lookup([t], IDS),
            ValueError,
            r"ids: expected a list .*, got a single ndarray of int64",
        ),
        (
            lambda t: ge.group_embedding_lookup_sparse([t], [tf.constant(IDS)], "sum"),
            TypeError,
            r"sp_ids\[0\].*neither SparseTensor nor RaggedTensor.*group_embedding_lookup, or",
        ),
        (
            lambda t: ge.group_embedding_lookup_sparse([sparse_ids()], [t], "sum"),
            TypeError,
            r"params\[0\]: expected a table .* got ids, RaggedTensor of int64; the list of tables",
        ),
        (
            lambda t: ge.group_embedding_lookup([tf.constant(IDS)], [t]),
            TypeError,
            r"params\[0\]: expected a table .* got ids, EagerTensor of int64",
        ),
        (
            lambda t: ge.optimizers.wrap(keras.optimizers.Adam),
            TypeError,
            r"wrap: expected an optimizer, got the class Adam; write wrap\(Adam\(\.\.\.\)\)",
        ),
    ],
    ids=["table", "ragged", "sparse", "array", "dense", "swapped", "swapped_dense", "class"],
)
def test_a_mistake_is_told(call, error, message):
    with pytest.raises(error, match=message):
        call(table())


def test_wrap_takes_the_name_of_an_optimizer():
    variable = table("named")
    optimizer = ge.optimizers.wrap("adagrad")

    with tf.GradientTape() as tape:
        (rows,) = ge.group_embedding_lookup([variable], [tf.constant(IDS)])
        loss = tf.reduce_sum(rows)
    optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    assert isinstance(optimizer, keras.optimizers.Adagrad)
    assert int(variable.total_count()) == 4
    with pytest.raises(ValueError, match="no_such"):
        ge.optimizers.wrap("no_such")


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
@pytest.mark.parametrize("compiled", [False, True])
def test_an_optimizer_that_is_not_wrapped_is_told_to_be(name, compiled):
    # Given a stock optimizer of Keras, and gradients of a keyed table
    variable = table("unwrapped")
    optimizer = getattr(keras.optimizers, name)(0.1)

    def step():
        with tf.GradientTape() as tape:
            (rows,) = ge.group_embedding_lookup([variable], [tf.constant(IDS)])
            loss = tf.reduce_sum(rows)
        optimizer.apply_gradients(zip([tape.gradient(loss, variable)], [variable]))

    # When it applies them / Then the error says what to write
    with pytest.raises(TypeError, match=r"table 'unwrapped'.*optimizers\.wrap\(optimizer\)"):
        (tf.function(step) if compiled else step)()


def layer_of(name="users", weights_feature=None, **options):
    config = ge.TableConfig(name, None, 4, "ones", **options)
    feature = ge.FeatureConfig("x", config, weights_feature=weights_feature)
    return ge.layers.GroupEmbedding([feature], concat=True, name="embedding")


def test_inputs_of_other_layers_are_ignored():
    # Given a dict of all features of a model, of which the layer has one and its weights
    layer = layer_of(weights_feature="w")
    inputs = {
        "x": tf.constant(IDS),
        "w": tf.ones([2, 2]),
        "age": tf.constant([0.5, 1.5]),
        "name": tf.constant(["a", "b"]),
    }
    # When it is called with all of them, also as a part of a functional model
    outputs = layer(inputs)
    symbolic = {
        "x": keras.Input((2,), dtype="int64", name="x"),
        "w": keras.Input((2,), name="w"),
        "age": keras.Input((), name="age"),
    }
    age = keras.layers.Reshape((1,))(symbolic["age"])
    model = keras.Model(symbolic, keras.layers.Concatenate()([layer(symbolic), age]))
    both = model({name: inputs[name] for name in symbolic})
    # Then it looks up its own
    np.testing.assert_array_equal(outputs, np.ones([2, 4]))
    np.testing.assert_array_equal(both, np.c_[np.ones([2, 4]), [0.5, 1.5]])


@pytest.mark.parametrize(
    "key_dtype, dtype, fits",
    [
        (None, tf.int32, True),
        (None, tf.uint32, True),
        ("int64", tf.int64, True),
        ("int32", tf.int32, True),
        ("uint64", tf.uint32, True),
        ("uint64", tf.int32, False),
        ("int32", tf.int64, False),
        ("uint32", tf.int32, False),
    ],
)
@pytest.mark.parametrize("form", ["dense", "ragged", "sparse"])
def test_ids_of_a_type_whose_values_all_are_keys(key_dtype, dtype, fits, form):
    # Given ids, the largest of their type among them
    layer = layer_of(key_dtype=key_dtype)
    ids = tf.constant([[1, 2], [3, dtype.max]], dtype)
    ragged = tf.RaggedTensor.from_tensor(ids)
    given = {"dense": ids, "ragged": ragged, "sparse": ragged.to_sparse()}[form]
    if not fits:
        with pytest.raises(TypeError, match=f"feature 'x': expected ids of {key_dtype}"):
            layer({"x": given})
        return
    # When they are trained
    optimizer = ge.optimizers.wrap(keras.optimizers.SGD(0.5))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer({"x": given}))
    optimizer.apply_gradients(
        zip(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    )
    # Then they are the table's keys, whose rows have changed
    (weight,) = layer.trainable_variables
    variable = variable_of_all(weight)
    assert variable.key_dtype == tf.as_dtype(key_dtype or "int64")
    assert sorted(variable.export().keys.numpy().tolist()) == [1, 2, 3, dtype.max]
    assert (variable.get_frequency(ids).numpy() == 1).all()


def test_a_key_dtype_is_of_keyed_tables_and_is_written_down():
    with pytest.raises(ValueError, match="table 't': expected key_dtype=None, as it has num_rows"):
        ge.TableConfig("t", 10, 4, key_dtype="int32")
    with pytest.raises(ValueError, match="table 't': expected key_dtype to be one of .*'float32'"):
        ge.TableConfig("t", None, 4, key_dtype="float32")
    copy = ge.layers.GroupEmbedding.from_config(layer_of(key_dtype=tf.int32).get_config())
    assert copy.features[0].table.key_dtype == "int32"
