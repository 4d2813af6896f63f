"""Grouped columns in the stock Keras layers `DenseFeatures` and `SequenceFeatures`."""

import contextlib
import textwrap

import numpy as np
import pytest
import tensorflow as tf

import group_embedding.feature_column
from group_embedding.feature_column import group_embedding_column_scope

if not hasattr(tf.keras.layers, "DenseFeatures"):
    pytest.skip(f"Keras {tf.keras.__version__} has no DenseFeatures", allow_module_level=True)

LAYERS = {
    "keras": tf.keras.layers.DenseFeatures,
    "compat.v1.keras": tf.compat.v1.keras.layers.DenseFeatures,
}


def scope(grouped):
    return group_embedding_column_scope() if grouped else contextlib.nullcontext()


def run(layer, features):
    """Output and gradients, op counts being taken elsewhere."""
    with tf.GradientTape() as tape:
        output = layer(features)
        loss = tf.reduce_sum(tf.square(output))
    gradients = tape.gradient(loss, layer.trainable_variables)
    return output.numpy(), [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]


def assert_same_layers(actual, expected, features):
    for one, other in zip(run(actual, features), run(expected, features)):
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, other
        )
    for attribute in ("weights", "trainable_weights"):
        names = [variable.name for variable in getattr(actual, attribute)]
        assert names == [variable.name for variable in getattr(expected, attribute)]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", ["plain", "weighted", "max_norm", "not trainable", "mixture"])
def test_is_one_op_and_all_else_is_as_without_the_scope(make, count_ops, layer, kind):
    # given
    def columns(grouped):
        with scope(grouped):
            made = {
                "plain": lambda: [make.a(combiner="sum"), make.b(), make.c(combiner="sqrtn")],
                "weighted": lambda: [make.a(), make.d()],
                "max_norm": lambda: [make.a(max_norm=0.3), make.b(max_norm=0.7), make.c()],
                "not trainable": lambda: [make.a(trainable=False), make.b()],
                "mixture": lambda: [make.a(), make.b(), make.price()],
            }[kind]()
        return [*made, make.c()] if kind == "mixture" else made

    expected, actual = (LAYERS[layer](columns(grouped), name="in") for grouped in (False, True))
    # when / then
    assert_same_layers(actual, expected, make.features())

    @tf.function
    def call(features):
        return actual(features)

    num_fused, num_stock = count_ops(call.get_concrete_function(make.features()).graph)
    assert num_fused == 1
    assert (num_stock > 0) == (kind == "mixture")


def test_shared_embeddings(make, count_ops):
    # given shared columns beside another one (they are for graphs only)
    def build(grouped):
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            with scope(grouped):
                columns = tf.feature_column.shared_embeddings(
                    [make.identity("a"), make.identity("c")],
                    4,
                    initializer=make.fixed(3),
                    max_norm=0.8,
                )
                columns.append(make.b())
            layer = tf.compat.v1.keras.layers.DenseFeatures(columns)
            output = layer(make.features())
            ops = count_ops(graph)
            variables = tf.compat.v1.global_variables()
            gradients = tf.gradients(tf.square(output), variables)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(tf.compat.v1.tables_initializer())
            values = session.run([output, [tf.convert_to_tensor(g) for g in gradients]])
            return values, [variable.name for variable in variables], ops

    # when
    expected, actual = build(False), build(True)
    # then
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), actual[0], expected[0]
    )
    assert actual[1] == expected[1]
    assert len(actual[1]) == 2
    assert actual[2] == (1, 0)


def test_example_in_the_documentation():
    # given the example of the scope's docstring
    example = textwrap.dedent(
        group_embedding_column_scope.__doc__.split("```python")[1].split("```")[0]
    )
    # when
    namespace = {"tf": tf, "ge": group_embedding.feature_column}
    exec(example, namespace)
    # then
    assert namespace["outputs"].shape == (2, 1 + 8 + 16)


def test_layers_that_take_parts_of_a_group(make, count_ops):
    # given two layers that share a column, and a column that is in none
    with group_embedding_column_scope():
        a, b, c, _ = make.a(), make.b(), make.c(), make.d()
    layers = [tf.keras.layers.DenseFeatures([a, b]), tf.keras.layers.DenseFeatures([b, c])]
    features = make.features()
    del features["d"]

    # when
    @tf.function
    def call(features):
        return [layer(features) for layer in layers]

    outputs = call(features)
    # then
    expected = [
        tf.keras.layers.DenseFeatures([make.a(), make.b()])(features),
        tf.keras.layers.DenseFeatures([make.b(), make.c()])(features),
    ]
    for actual, other in zip(outputs, expected):
        np.testing.assert_allclose(actual, other, rtol=1e-6)
    assert count_ops(call.get_concrete_function(features).graph) == (2, 0)


def test_a_layer_called_again_with_other_features(make):
    # given
    with group_embedding_column_scope():
        layer = tf.keras.layers.DenseFeatures([make.a(), make.c()])
    stock = tf.keras.layers.DenseFeatures([make.a(), make.c()])
    # when / then
    for ids in ([[1], [2]], [[3], [7]], [[0], [0]]):
        features = {"a": tf.constant(ids), "c": tf.constant(ids)}
        np.testing.assert_allclose(layer(features), stock(features), rtol=1e-6)


def test_cols_to_output_tensors(make):
    # given
    with group_embedding_column_scope():
        columns = [make.b(), make.a()]
    layer = tf.keras.layers.DenseFeatures(columns)
    # when
    outputs = {}
    output = layer(make.features(), outputs)
    # then
    assert list(outputs) == [columns[1], columns[0]]
    np.testing.assert_array_equal(tf.concat(list(outputs.values()), 1), output)


@pytest.mark.parametrize("num_parts", [1, 2])
def test_partitioner(make, count_ops, num_parts):
    # given
    def build(grouped):
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            with scope(grouped):
                columns = [make.a(), make.c()]
            layer = tf.compat.v1.keras.layers.DenseFeatures(
                columns, partitioner=tf.compat.v1.fixed_size_partitioner(num_parts)
            )
            output = layer(make.features())
            session.run(tf.compat.v1.global_variables_initializer())
            names = [variable.name for variable in tf.compat.v1.global_variables()]
            return session.run(output), names, count_ops(graph)

    # when
    expected, actual = build(False), build(True)
    # then
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)
    assert actual[1] == expected[1]
    assert actual[2][0] == (1 if num_parts == 1 else 0)


def test_checkpoints_go_both_ways(make, tmp_path):
    # given a layer of each kind, with different values
    features = make.features()
    stock = tf.keras.layers.DenseFeatures([make.a(), make.b()])
    with group_embedding_column_scope():
        zeros = tf.compat.v1.zeros_initializer()
        grouped = tf.keras.layers.DenseFeatures(
            [make.a(initializer=zeros), make.b(initializer=zeros)]
        )
    expected = stock(features)
    grouped(features)
    # when
    path = tf.train.Checkpoint(layer=stock).save(str(tmp_path / "stock"))
    tf.train.Checkpoint(layer=grouped).restore(path).assert_consumed()
    # then
    np.testing.assert_allclose(grouped(features), expected, rtol=1e-6)
    path = tf.train.Checkpoint(layer=grouped).save(str(tmp_path / "grouped"))
    tf.train.Checkpoint(layer=stock).restore(path).assert_consumed()


def test_ckpt_to_load_from(make, tmp_path):
    # given a checkpoint of one table
    path = tf.train.Checkpoint(table=tf.Variable(tf.fill([8, 4], 3.0))).save(str(tmp_path / "t"))
    source = {
        "ckpt_to_load_from": path,
        "tensor_name_in_ckpt": "table/.ATTRIBUTES/VARIABLE_VALUE",
    }
    # when
    with group_embedding_column_scope():
        layer = tf.keras.layers.DenseFeatures([make.embedding(make.identity("c"), 4, **source)])
    # then
    np.testing.assert_array_equal(layer(make.features()), np.full([4, 4], 3.0))


def test_model_trains_saves_and_loads(make, tmp_path):
    # given one model with the scope and one without, of the same weights
    def model(grouped):
        inputs = {
            "c": tf.keras.Input([1], name="c", dtype=tf.int64),
            "b": tf.keras.Input([1], name="b", dtype=tf.string),
        }
        initializer = tf.compat.v1.zeros_initializer()
        with scope(grouped):
            columns = [make.c(initializer=initializer), make.b(initializer=initializer)]
        hidden = tf.keras.layers.DenseFeatures(columns)(inputs)
        output = tf.keras.layers.Dense(1, kernel_initializer="ones")(hidden)
        made = tf.keras.Model(inputs, output)
        made.compile("adagrad", "mse")
        return made

    features = {key: value for key, value in make.features().items() if key in "bc"}
    labels = tf.constant([[1.0], [2.0], [3.0], [4.0]])
    stock, grouped = model(False), model(True)
    # when
    for trained in (stock, grouped):
        trained.fit(features, labels, epochs=3, verbose=0, shuffle=False)
    # then
    for actual, expected in zip(grouped.get_weights(), stock.get_weights()):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    # and what is saved is read back without the scope, or into a group
    grouped.save(tmp_path / "model", save_format="tf")
    expected = grouped.predict(features, verbose=0)
    for is_grouped in (False, True):
        with scope(is_grouped):
            loaded = tf.keras.models.load_model(tmp_path / "model")
        np.testing.assert_allclose(loaded.predict(features, verbose=0), expected, rtol=1e-6)
    assert grouped.layers[2].get_config() == stock.layers[2].get_config() | {
        "name": grouped.layers[2].name
    }


def test_mixed_precision_gives_the_stock_dtype(make):
    # given layers that compute in float16
    def layer(grouped):
        with scope(grouped):
            columns = [make.a(), make.b()]
        return tf.keras.layers.DenseFeatures(columns, dtype="mixed_float16")

    # when
    expected, actual = (layer(grouped)(make.features()) for grouped in (False, True))
    # then
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, atol=2e-3)


def sequences():
    return {
        "s": tf.sparse.from_dense(np.array([[1, 2, 0], [3, 0, 0], [4, 5, 6]])),
        "t": tf.sparse.from_dense(np.array([[7, 7, 0], [1, 0, 0], [2, 3, 4]])),
        "length": tf.sparse.from_dense([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0], [4.0, 5.0, 6.0]]),
    }


def sequence_columns(make, grouped):
    with scope(grouped):
        columns = [
            make.embedding(tf.feature_column.sequence_categorical_column_with_identity(key, 8), dim)
            for key, dim in (("s", 4), ("t", 3))
        ]
    return [*columns, tf.feature_column.sequence_numeric_column("length")]


def test_sequence_features(make, count_ops):
    # given
    expected, actual = (
        tf.keras.experimental.SequenceFeatures(sequence_columns(make, grouped), name="in")
        for grouped in (False, True)
    )
    # when
    call = tf.function(lambda features: actual(features))
    # then
    for features in (sequences(), tf.nest.map_structure(tf.identity, sequences())):
        for one, other in zip(call(features), expected(features)):
            np.testing.assert_allclose(one, other, rtol=1e-6)
    assert call(sequences())[0].shape == (3, 3, 8)
    assert count_ops(call.get_concrete_function(sequences()).graph) == (1, 0)
    names = [variable.name for variable in actual.variables]
    assert names == [variable.name for variable in expected.variables]


def test_shared_sequence_features(make, count_ops):
    # given
    def build(grouped):
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            with scope(grouped):
                columns = tf.feature_column.shared_embeddings(
                    [
                        tf.feature_column.sequence_categorical_column_with_identity(key, 8)
                        for key in ("s", "t")
                    ],
                    4,
                    initializer=make.fixed(3),
                )
            layer = tf.keras.experimental.SequenceFeatures(columns)
            outputs = layer(sequences())
            session.run(tf.compat.v1.global_variables_initializer())
            return session.run(outputs), count_ops(graph)

    # when
    expected, actual = build(False), build(True)
    # then
    for one, other in zip(actual[0], expected[0]):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert actual[1] == (1, 0)


def test_columns_of_the_wrong_kind_raise_the_stock_errors(make):
    for grouped in (False, True):
        # given
        with scope(grouped):
            plain = make.a()
        sequence = sequence_columns(make, grouped)[0]
        # when / then
        with pytest.raises(ValueError, match="must not be of type SequenceCategoricalColumn"):
            tf.keras.layers.DenseFeatures([plain, sequence])({**make.features(), **sequences()})
        with pytest.raises(ValueError, match="must be of type SequenceCategoricalColumn"):
            tf.keras.experimental.SequenceFeatures([plain, sequence])(
                {**make.features(), **sequences()}
            )
