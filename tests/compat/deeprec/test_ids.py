"""Ids of which a graph of TensorFlow 1 knows no shape, and weights in a list."""

import numpy as np
import pytest
import tensorflow as tf2

import group_embedding as ge

v1 = tf2.compat.v1


def make_table(tf, kind):
    if kind == "keys":
        return tf.get_embedding_variable("table", 2, initializer=tf.ones_initializer())
    return tf.get_variable("table", [9, 2], initializer=tf.ones_initializer())


def run(tf, outputs, feed):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(outputs, feed)


@pytest.mark.parametrize("kind", ["keys", "rows"])
@pytest.mark.parametrize("ids", [5, [5, 3], [[5, 3, 3]]])
def test_dense_ids_of_unknown_rank(tf, kind, ids):
    # Given a placeholder that says nothing of its shape
    table, placeholder = make_table(tf, kind), tf.placeholder(tf.int64)
    outputs = [
        tf.nn.embedding_lookup(table, placeholder),
        tf.nn.group_embedding_lookup([table], [placeholder])[0],
    ]
    # When ids of any shape are fed
    found = run(tf, outputs, {placeholder: ids})
    # Then each becomes a row
    for rows in found:
        np.testing.assert_array_equal(rows, np.ones([*np.shape(ids), 2]))


@pytest.mark.parametrize("kind", ["keys", "rows"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_ids_of_unknown_rank_are_rows_of_ids(tf, kind, weighted):
    # Given placeholders that say nothing of their shape
    table, ids = make_table(tf, kind), tf.sparse_placeholder(tf.int64)
    weights = tf.sparse_placeholder(tf.float32)
    feed = {
        ids: tf.SparseTensorValue([[0, 0], [1, 0], [1, 1]], [5, 3, 5], [2, 2]),
        weights: tf.SparseTensorValue([[0, 0], [1, 0], [1, 1]], [4.0, 1.0, 2.0], [2, 2]),
    }
    # When they are looked up
    (output,) = tf.nn.group_embedding_lookup_sparse(
        [table], [ids], ["sum"], sp_weights=[weights] if weighted else None
    )
    found = run(tf, output, feed)
    # Then a dense layer can take the result, whose width is known
    assert output.shape.as_list() == [None, 2]
    sums = [[4.0], [3.0]] if weighted else [[1.0], [2.0]]
    np.testing.assert_array_equal(found, np.ones([2, 2]) * sums)


def test_sparse_ids_of_unknown_rank_with_another_rank_are_refused(tf):
    # Given a placeholder that says nothing of its shape
    table, ids = make_table(tf, "keys"), tf.sparse_placeholder(tf.int64)
    outputs = tf.nn.group_embedding_lookup_sparse([table], [ids], ["sum"])
    # When ids of rank 3 are fed
    # Then the step fails
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"rank_of_ids|expected shape \[2\]"):
        run(tf, outputs, {ids: tf.SparseTensorValue([[0, 0, 0]], [5], [1, 1, 1])})


@pytest.mark.parametrize("category", ["keys", "rows", "sequence"])
def test_columns_of_unknown_shape(tf, category):
    # Given columns in a scope, and a placeholder that says nothing of its shape
    fc, ids = tf.feature_column, tf.sparse_placeholder(tf.int64)
    make = {
        "keys": lambda: fc.categorical_column_with_embedding("item", tf.int64),
        "rows": lambda: fc.categorical_column_with_identity("item", 9),
        "sequence": lambda: fc.sequence_categorical_column_with_embedding("item", tf.int64),
    }[category]
    with fc.group_embedding_column_scope():
        column = fc.embedding_column(make(), 2, initializer=tf.ones_initializer())
    # When they are an input
    if category == "sequence":
        from tensorflow.contrib.feature_column import sequence_input_layer

        output, _ = sequence_input_layer({"item": ids}, [column])
    else:
        output = fc.input_layer({"item": ids}, [column])
    found = run(tf, output, {ids: tf.SparseTensorValue([[0, 0], [1, 0]], [5, 3], [2, 1])})
    # Then each sample has its row
    assert found.reshape([2, 2]).tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", ["keys", "rows"])
def test_weights_in_a_list_belong_to_ids_in_their_order(tf, kind, known):
    # Given weights [ids, 1], one for each id
    fc = tf.feature_column
    weights = np.array([[2.0], [5.0], [4.0], [8.0]], np.float32)
    weight = tf.constant(weights) if known else tf.placeholder(tf.float32, [None, 1])
    features = {
        "item": tf.SparseTensor(
            [[0, 0], [0, 1], [1, 1], [2, 2]], tf.constant([1, 3, 2, 3], tf.int64), [3, 3]
        ),
        "weight": weight,
    }

    def make(category):
        weighted = fc.weighted_categorical_column(category, "weight")
        return fc.embedding_column(weighted, 2, "sum", initializer=tf.ones_initializer())

    # When a column in a scope takes them, and one of stock TensorFlow
    stock = make(fc.categorical_column_with_identity("item", 9))
    with fc.group_embedding_column_scope():
        keys = kind == "keys"
        category = (
            fc.categorical_column_with_embedding("item", tf.int64)
            if keys
            else fc.categorical_column_with_identity("item", 9)
        )
        column = make(category)
    outputs = [fc.input_layer(features, [each]) for each in (column, stock)]
    found = run(tf, outputs, {} if known else {weight: weights})
    # Then they are the same: sums of weights
    np.testing.assert_array_equal(*found)
    assert found[0][:, 0].tolist() == [7, 4, 8]


def test_weights_in_a_list_of_another_length_are_refused(tf):
    # Given a weight too few
    fc, weight = tf.feature_column, tf.placeholder(tf.float32, [None, 1])
    category = fc.categorical_column_with_embedding("item", tf.int64)
    column = fc.embedding_column(fc.weighted_categorical_column(category, "weight"), 2)
    ids = tf.SparseTensor([[0, 0], [1, 0]], tf.constant([1, 3], tf.int64), [2, 2])
    output = fc.input_layer({"item": ids, "weight": weight}, [column])
    # When it is looked up
    # Then the step fails
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(tf, output, {weight: [[1.0]]})


@pytest.mark.parametrize("optimizer", ["GradientDescentOptimizer", "AdamOptimizer"])
def test_a_step_reads_rows_before_it_writes_them(tf, optimizer):
    # Given a loss whose gradient does not depend on the rows, and many ids
    table = tf.get_embedding_variable("table", 16, initializer=tf.ones_initializer())
    ids = tf.constant(np.arange(5000), tf.int64)
    (rows,) = ge.group_embedding_lookup([table], [ids])
    train = getattr(tf.train, optimizer)(0.5).minimize(tf.reduce_sum(rows))
    # When steps fetch what they looked up
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = [session.run([rows, train])[0] for _ in range(8)]
    # Then each has seen the rows that the step before it wrote
    for step, value in enumerate(found):
        np.testing.assert_allclose(value, 1 - 0.5 * step, rtol=1e-5, atol=1e-5)
