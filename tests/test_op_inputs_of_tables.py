"""Inputs that ops of keyed tables refuse; test_op_inputs.py has those of groups."""

import numpy as np
import pytest
import tensorflow as tf
from support.cases.op_calls import (  # noqa: F401
    HUGE,
    INT32_MAX,
    Refused,
    batch_of,
    look_up,
    on_the_cpu,
    tables,
    update,
)

import group_embedding as ge
from group_embedding.ops._library import library
from group_embedding.ops.save_table import full_save_id


def test_handles_of_something_else():
    # Given handles of a hash table, of a table of keys, of other variables, and none
    hash_table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    keyed = ge.get_embedding_variable("op_inputs_handles", 3)
    words = tf.Variable([["a", "b", "c"]])
    numbers = tf.Variable(tf.ones([5, 3], tf.int64))
    wide = tf.Variable(tf.zeros([0, INT32_MAX]))
    handles = [hash_table.resource_handle, keyed.table_handle, words.handle, numbers.handle]
    handles += [wide.handle, tf.stack([wide.handle] * 2), tf.stack([wide.handle])[:0]]
    for handle in handles:
        # When a table is expected, Then it is refused: to be read, to be written, to be asked
        with pytest.raises(Refused):
            look_up(tables=[handle, tables()[1]])
        with pytest.raises(Refused):
            update(variables=[Handle(handle), tf.Variable(tables()[1])], slots=[words, words])
        if handle is not keyed.table_handle:
            with pytest.raises((*Refused, tf.errors.NotFoundError)):
                library().find_keys(table=handle, keys=tf.constant([1], tf.int64))
    # And strings are still there
    assert words.numpy().tolist() == [[b"a", b"b", b"c"]]


def test_a_table_that_is_not_initialized_has_no_save():
    # Given two tables of a session, one of which is initialized
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        without, initialized = (ge.get_embedding_variable(f"saved_{i}", 2) for i in range(2))
        session.run(initialized.initializer)
        # When they are asked for the save that changes can be added to, Then neither has one
        assert session.run([full_save_id(t.table_handle) for t in (without, initialized)]) == [0, 0]


class Handle:
    def __init__(self, handle):
        self.handle = handle


@pytest.mark.parametrize("filter_option", [None, ge.CounterFilter(3)], ids=["all", "counter"])
@pytest.mark.parametrize("times", [-1, 0, -HUGE, 2**63 - 1])
def test_how_often_keys_came(filter_option, times):
    # Given a table of keys
    option = ge.EmbeddingVariableOption(filter_option=filter_option)
    table = ge.get_embedding_variable(f"op_inputs_{filter_option}_{times}", 3, ev_option=option)

    def locate(times, sizes=((1, 2),)):
        return library().locate_rows(
            tables=[table.table_handle],
            batch=batch_of((0, 2), (7, 8)),
            sizes=tf.constant(sizes, tf.int64),
            steps=tf.constant([1], tf.int64),
            times=tf.constant(times, tf.int64),
            table_of_feature=[0],
            learning=[True],
            training=True,
        )

    # When keys are said to have come as often as they cannot, Then it is refused
    with pytest.raises(
        Refused, match=f"times: expected 1 <= times <= .* got {times} at position 1"
    ):
        locate([4, times])
    # And nothing was counted
    assert table.total_count() == 0
    locate([4, 5])
    np.testing.assert_array_equal(table.get_frequency([7, 8]), [4, 5])
    for sizes in (((1, HUGE),), ((HUGE, 2),), ((1, -2),)):
        with pytest.raises(Refused, match="sizes"):
            locate([4, 5], sizes)


def test_vectors_where_scalars_are_expected(tmp_path):
    table = ge.get_embedding_variable("op_inputs_scalars", 3)
    handle, lib = table.table_handle, library()
    step = tf.constant(1, tf.int64)
    prefix = tf.constant(f"{tmp_path}/model")
    for wrong in (lambda scalar: scalar[None], lambda scalar: scalar[None][:0]):
        with pytest.raises(Refused, match="step: expected a scalar"):
            lib.evict_keys(table=handle, step=wrong(step), kind="global_step")
        slots = {"average_slot": "a", "step_slot": "b"}
        with pytest.raises(Refused, match="step: expected a scalar"):
            lib.write_averages(table=handle, momentum=0.5, step=wrong(step), **slots)
        with pytest.raises(Refused, match="momentum: expected a scalar"):
            lib.write_averages(table=handle, momentum=wrong(tf.constant(0.5)), step=step, **slots)
        with pytest.raises(Refused, match="prefix: expected a scalar"):
            lib.save_table(table=handle, prefix=wrong(prefix), snapshot=step)
        with pytest.raises(Refused, match="snapshot: expected a scalar"):
            lib.save_table(table=handle, prefix=prefix, snapshot=wrong(step))
        for op in (lib.restore_table, lib.verify_table):
            with pytest.raises(Refused, match="manifest: expected a scalar"):
                op(table=handle, prefix=prefix, manifest=wrong(prefix))
            with pytest.raises(Refused, match="prefix: expected a scalar"):
                op(table=handle, prefix=wrong(prefix), manifest=prefix)
