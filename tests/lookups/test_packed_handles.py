"""Ops whose tables are one input: handles that PackHandles makes one tensor of."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.ops._library import library
from group_embedding.ops.variable_handles import packing_handles


def look_up(tables, ids):
    with tf.GradientTape() as tape:
        vectors = ge.group_embedding_lookup_sparse(tables, ids, "sum")
        loss = sum(tf.reduce_sum(v * (1.0 + i)) for i, v in enumerate(vectors))
    gradients = tape.gradient(loss, tables)
    return vectors, [(g.values, g.indices) for g in gradients]


def test_lookups_of_packed_handles_equal_those_of_handles():
    # Given two tables by row and one of keys, and ids of each
    rng = np.random.default_rng(3)
    tables = [tf.Variable(rng.normal(size=(9, dim)).astype("float32")) for dim in (2, 3)]
    tables.insert(1, ge.get_embedding_variable("packed_keys", 2))
    tables[1].insert(tf.range(9, dtype=tf.int64), rng.normal(size=(9, 2)).astype("float32"))
    ids = [tf.RaggedTensor.from_row_splits(rng.integers(0, 9, 6), [0, 2, 2, 6])] * 3

    # When they are looked up with a handle for each table, and with one tensor of handles
    plain = tf.function(lambda: look_up(tables, ids))
    expected = plain()

    @tf.function
    def packed():
        with packing_handles():
            return look_up(tables, ids)

    # Then rows and gradients are the same
    tf.nest.map_structure(np.testing.assert_array_equal, packed(), expected)
    inputs = [len(f.get_concrete_function().captured_inputs) for f in (plain, packed)]
    assert inputs[1] < inputs[0]


def test_packed_handles_of_another_number_are_refused():
    # Given a tensor of the handles of three tables, and an op that has two
    handles = [tf.Variable(tf.ones([4, 2])).handle for _ in range(3)]
    packed = library().pack_handles(handles=handles)
    sizes = tf.zeros([3, 2], tf.int64)
    attrs = {"dims": [2, 2], "max_norms": [0.0, 0.0], "table_names": ["a", "b"]}

    # When it is called, then the error says what it expects
    with pytest.raises(tf.errors.InvalidArgumentError, match="tables: expected one for each"):
        library().group_lookup(
            tables=[packed],
            batch=tf.zeros([0]),
            sizes=sizes,
            keyed_tables=[],
            keyed=[],
            dtype=tf.float32,
            **attrs,
            num_outputs=2,
            table_of_feature=[0, 1],
            combiners=["sum", "sum"],
            feature_names=["a", "b"],
            concat=False,
            weighted=False,
            prune_negative=True,
            invalid_ids="raise",
        )


def test_handles_that_are_no_scalars_are_refused():
    # Given a tensor of handles
    handle = tf.Variable(tf.ones([4, 2])).handle
    packed = library().pack_handles(handles=[handle, handle])

    # When it is packed again, then the error names its shape
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected scalars, got shape \[2\]"):
        library().pack_handles(handles=[handle, packed])
