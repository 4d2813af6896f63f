"""The owner of an id in one process, and ids that have none."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge


def tables_of_a_program():
    layer = ge.layers.GroupEmbedding(
        [
            ge.FeatureConfig("item", ge.TableConfig("item", 5, 2)),
            ge.FeatureConfig("user", ge.TableConfig("user", None, 2)),
        ]
    )
    layer.build()
    return [
        tf.Variable(tf.zeros([5, 2])),
        ge.get_embedding_variable("k", 2),
        *layer.tables.values(),
    ]


@pytest.mark.parametrize(
    "ids", [[[0, 1], [4, 2]], np.array([3], np.int32), tf.constant(4)], ids=str
)
def test_one_process_owns_all(ids):
    for table in tables_of_a_program():
        owners = ge.owner_of(table, ids)
        assert owners.dtype == tf.int64
        np.testing.assert_array_equal(owners, np.zeros_like(ids))


@pytest.mark.parametrize(
    "dtype, bad", [(np.int32, -1), (np.int64, 5), (np.uint64, 2**64 - 1)], ids=str
)
def test_an_id_outside_of_the_table_has_no_owner(dtype, bad):
    item = tf.Variable(tf.zeros([5, 2]), name="item")
    told = rf"(?s)'item': .*0 <= id < 5, got.*{bad}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=told):
        ge.owner_of(item, np.array([4, bad], dtype))


def test_ids_that_are_none_are_refused():
    item, user = (
        tf.Variable(tf.zeros([5, 2]), name="item"),
        ge.get_embedding_variable("user", 2, key_dtype=tf.int32),
    )
    with pytest.raises(TypeError, match="table 'item': expected integer ids, got float32"):
        ge.owner_of(item, tf.constant([1.0]))
    with pytest.raises(TypeError, match="table 'user': expected keys of int32.* got int64"):
        ge.owner_of(user, np.array([2**40]))
