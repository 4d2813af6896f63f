"""Lookups of EmbeddingVariables: alone, beside variables, with every key there is."""

import numpy as np
import pytest
import tensorflow as tf
from support.oracles import lookups as oracle

import group_embedding as ge

EXTREMES = {
    tf.int32: [0, -1, 2**31 - 1, -(2**31)],
    tf.int64: [0, -1, 2**63 - 1, -(2**63)],
    tf.uint32: [0, 1, 2**31, 2**32 - 1],
    tf.uint64: [0, 1, 2**63, 2**64 - 1],
}


@pytest.mark.parametrize("key_dtype", EXTREMES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("rank", ["sparse", "dense"])
def test_extreme_keys(make_table, train, read, key_dtype, rank):
    # Given a table that was trained on the extremes of its key type
    table = make_table(key_dtype=key_dtype)
    keys = EXTREMES[key_dtype]
    train(table, [keys[0]] * 2 + keys)
    # When they are looked up, and another key too
    if rank == "dense":
        rows = read(table, [*keys, 5])
    else:
        ids = tf.RaggedTensor.from_row_splits(
            tf.constant([*keys, 5], key_dtype), tf.range(6, dtype=tf.int64)
        )
        rows = ge.group_embedding_lookup_sparse([table], [ids], "sum")[0].numpy()
    # Then each has a row of its own, and the other reads what keys start as
    np.testing.assert_array_equal(rows, np.outer([-2, 0, 0, 0, 1], [1, 1]))
    np.testing.assert_array_equal(
        table.export().keys, np.sort(np.array(keys, key_dtype.as_numpy_dtype))
    )


def test_missing_keys_read_their_row_of_the_matrix(make_table, read):
    # Given a matrix of three rows
    matrix = np.arange(6.0).reshape(3, 2)
    table = make_table(initializer=tf.constant(matrix, tf.float32), rows=3)
    # When keys are read that have no row
    rows = read(table, [0, 4, -1, 2**40])
    # Then they are, unsigned, modulo 3
    places = [0, 1, (2**64 - 1) % 3, 2**40 % 3]
    np.testing.assert_array_equal(rows, matrix[places])


@pytest.mark.covering(1)
@pytest.mark.parametrize("concat", [False, True])
@pytest.mark.parametrize("max_norm", [None, 1.5])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16], ids=lambda d: d.name)
def test_mixed_with_variables(make_table, concat, max_norm, dtype):
    # Given a variable, and a table with the same rows, under keys that are the row's number
    generator = np.random.default_rng(1)
    values = generator.normal(size=[6, 3])
    variable = tf.Variable(values, dtype=dtype)
    table = make_table(3, value_dtype=dtype)
    table.insert(np.arange(6), values)
    ids = tf.RaggedTensor.from_row_lengths(generator.integers(0, 6, 9), [3, 0, 5, 1])
    weights = ids.with_values(tf.constant(generator.uniform(0.5, 2, 9), tf.float32))
    # When both are looked up in one call, forward and backward
    params, combiners = [table, variable, table, variable], ["mean", "sum", "sqrtn", "sqrtn"]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(weights.values)
        outputs = ge.group_embedding_lookup_sparse(
            params, [ids] * 4, combiners, sp_weights=[weights] * 4, max_norm=max_norm, concat=concat
        )
        outputs = tf.split(outputs, 4, axis=-1) if concat else outputs
        expected = [oracle.look_up(variable, ids, weights, c, max_norm) for c in combiners]
        losses = [tf.reduce_sum(o * o) for o in outputs], [tf.reduce_sum(o * o) for o in expected]
    # Then each equals TensorFlow's lookup of the variable
    tolerance = 1e-5 if dtype == tf.float32 else 3e-2
    for actual, wanted in zip(outputs, expected):
        oracle.assert_same(actual, wanted, tolerance, "output")
    oracle.assert_same(
        tape.gradient(losses[0], weights.values),
        tape.gradient(losses[1], weights.values),
        10 * tolerance,
        "gradient of weights",
    )
    gradient = tape.gradient([losses[0][0], losses[0][2]], table)
    wanted = tape.gradient([losses[1][0], losses[1][2]], variable)
    oracle.assert_same(
        np.sort(tf.cast(gradient.values, tf.float32), axis=None),
        np.sort(tf.cast(_rows_of(wanted), tf.float32), axis=None),
        10 * tolerance,
        "gradient of the table",
    )


def _rows_of(gradient):
    """Summed by row, those without a gradient left out."""
    dense = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, 6)
    return tf.gather(dense, tf.unique(tf.sort(gradient.indices)).y)


def test_one_lookup_op_serves_both_kinds(make_table):
    # Given a variable and two tables, on one device
    keyed = [make_table(name="a"), make_table(5, name="b")]
    with tf.device(keyed[0].device):
        tables = [tf.Variable(tf.ones([3, 2])), *keyed]
    ids = tf.ragged.constant([[0, 1], [2]], dtype=tf.int64)
    # When a function looks all up
    function = tf.function(lambda: ge.group_embedding_lookup_sparse(tables, [ids] * 3, "sum"))
    graph = function.get_concrete_function().graph
    # Then it has one op of each stage
    types = [op.type for op in graph.get_operations()]
    assert [
        types.count(op)
        for op in (
            "GroupEmbedding>GroupIds",
            "GroupEmbedding>LocateRows",
            "GroupEmbedding>GroupLookup",
        )
    ] == [1, 1, 1]


def test_tensorflows_own_lookups(make_table, train):
    # Given a table with a trained key
    table = make_table()
    train(table, [-3])
    keys = tf.constant([[-3, 4]], tf.int64)
    sparse = tf.sparse.from_dense(tf.constant([[-3, 4]], tf.int64))
    # When TensorFlow's functions read it
    results = [
        tf.gather(table, keys),
        tf.nn.embedding_lookup(table, keys),
        table.sparse_read(keys),
        tf.nn.embedding_lookup_sparse(table, sparse, None, combiner="sum"),
    ]
    # Then they read rows of keys
    for result in results[:3]:
        np.testing.assert_array_equal(result, [[[0, 0], [1, 1]]])
    np.testing.assert_array_equal(results[3], [[1, 1]])


def test_negative_keys_are_not_left_out(make_table):
    # Given keys that would be padding of a variable
    table = make_table()
    ids = tf.ragged.constant([[-1, -1]], dtype=tf.int64)
    # When they are looked up beside a variable
    rows = ge.group_embedding_lookup_sparse([table, tf.ones([2, 2])], [ids, ids], "sum")
    # Then the table reads them
    np.testing.assert_array_equal(rows[0], [[2, 2]])
    np.testing.assert_array_equal(rows[1], [[0, 0]])


def test_ids_of_another_type(make_table):
    # Not all values of int32 are keys of such a table.
    table = make_table(key_dtype=tf.uint32)
    with pytest.raises(
        TypeError, match="'ids\\[0\\]': expected ids of uint32.*'user',.* got int32"
    ):
        ge.group_embedding_lookup([table], [[1, 2]])
