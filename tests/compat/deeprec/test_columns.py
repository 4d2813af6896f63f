"""`linear_model`, and the columns of `tf.contrib`, on tables of keys."""

import numpy as np
import pytest
import tensorflow as tf2

import group_embedding as ge

v1 = tf2.compat.v1
IDS = {
    "user": ([[0, 0], [0, 1], [2, 0]], [7, 3, 7], [3, 2]),
    "item": ([[0, 0], [1, 0]], [1, 1], [3, 1]),
    "city": ([[1, 0], [2, 0]], [4, 2], [3, 1]),
}


def sparse(tf, name):
    indices, values, shape = IDS[name]
    return tf.SparseTensor(indices, tf.constant(values, tf.int64), shape)


def needs_stock_linear_model(tf):
    if not hasattr(v1.layers, "dense"):
        pytest.skip("this TensorFlow's own linear_model needs Keras 2")


@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_linear_model_of_keys_is_that_of_rows(tf, units, combiner):
    # Given two columns of keys, one of them weighted, and the same of row numbers
    needs_stock_linear_model(tf)
    fc = tf.feature_column
    features = {name: sparse(tf, name) for name in IDS}
    features["weight"] = tf.constant([[1.0], [2.0]])
    keyed, rows = (
        [make("user"), make("city"), fc.weighted_categorical_column(make("item"), "weight")]
        for make in (
            lambda key: fc.categorical_column_with_embedding(key, tf.int64),
            lambda key: fc.categorical_column_with_identity(key, 9),
        )
    )
    # When both models are trained for three steps
    variables, outputs = {}, []
    for columns, kept in ((keyed, variables), (rows, None)):
        outputs.append(
            fc.linear_model(
                features, columns, units=units, sparse_combiner=combiner, cols_to_vars=kept
            )
        )
    target = tf.constant([[1.0], [2.0], [3.0]])
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    steps = [optimizer.minimize(tf.reduce_sum((o - target) ** 2)) for o in outputs]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(steps)
        found = session.run(outputs)
    # Then they say the same, and the variables of each column are known
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert (found[0] != 0).all()
    assert {"bias", *keyed} == set(variables)
    assert all(isinstance(variables[c][0], ge.EmbeddingVariable) for c in keyed)


def test_linear_model_of_keys_beside_other_columns(tf):
    # Given a column of keys, one of row numbers and one of numbers
    needs_stock_linear_model(tf)
    fc = tf.feature_column
    features = {name: sparse(tf, name) for name in ("user", "item")}
    features["age"] = tf.constant([[1.0], [2.0], [0.0]])
    columns = [
        fc.categorical_column_with_embedding("user", tf.int64),
        fc.categorical_column_with_identity("item", 9),
        fc.numeric_column("age"),
    ]
    # When a linear model of them is trained
    variables = {}
    output = fc.linear_model(features, columns, cols_to_vars=variables)
    train = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(output))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        found = session.run(output)
    # Then each sample has the sum of its weights: -1 per occurrence in the batch, and the bias, -3
    assert found.tolist() == [[-2 - 1 - 2 - 3 - 3], [-2 - 6 - 3], [-2 - 0 - 3]]
    assert {"bias", *columns} == set(variables)


def test_weighted_sum_of_a_contrib_column(tf):
    # Given a column of strings under contrib's names
    from tensorflow.contrib.layers.python.layers import feature_column, feature_column_ops

    column = feature_column.sparse_column_with_embedding("name", tf.string)
    names = tf.SparseTensor([[0, 0], [1, 0]], ["ann", "bob"], [2, 1])
    # When its weighted sum is taken
    output, variables, bias = feature_column_ops.weighted_sum_from_feature_columns(
        {"name": names}, [column], num_outputs=2
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = session.run(output)
    # Then it is [batch, num_outputs], of a table and a bias
    np.testing.assert_array_equal(found, np.zeros([2, 2]))
    assert isinstance(variables[column][0], ge.EmbeddingVariable)
    assert bias.shape.as_list() == [2]


def test_input_of_contrib_columns(tf):
    # Given an embedding column and two that share a table, under contrib's names
    from tensorflow.contrib import layers

    option = tf.EmbeddingVariableOption(filter_option=tf.CounterFilter(2))
    user = layers.sparse_column_with_embedding("user", tf.int64, steps_to_live=7, ev_option=option)
    columns = [layers.embedding_column(user, 2, initializer=tf.ones_initializer())]
    others = [layers.sparse_column_with_embedding(n, tf.int64) for n in ("item", "city")]
    columns += layers.shared_embedding_columns(
        others, 3, initializer=tf.ones_initializer(), shared_embedding_name="shared"
    )
    # When they are an input
    features = {name: sparse(tf, name) for name in IDS}
    output = layers.input_from_feature_columns(features, columns)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = session.run(output)
    # Then they are side by side by name, and options reach the table
    assert output.shape.as_list() == [3, 8]
    np.testing.assert_array_equal(found[:, :3], [[0] * 3, [1] * 3, [1] * 3])
    np.testing.assert_array_equal(found[:, 3:6], [[1] * 3, [1] * 3, [0] * 3])
    assert user.ev_option.evict_option == ge.GlobalStepEvict(7)
    assert len(ge_tables(tf)) == 2


def ge_tables(tf):
    return [v for v in tf.global_variables() if isinstance(v, ge.EmbeddingVariable)]
