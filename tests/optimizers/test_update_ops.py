"""GroupUpdate and GroupUpdateSlices as ops: what they refuse, and who may read what they write."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.ops import group_update as ops
from group_embedding.ops._library import library

HEADER = Path(__file__).resolve().parents[2] / "cc/optimizer/hyper.h"


def hyper(**values):
    neutral = dict.fromkeys(ops.HYPER_NAMES, 0.0)
    return ops.hyper_vector(
        {**neutral, "apply": 1.0, "gradient_scale": 1.0, "clip_value": 1e30, **values}
    )


def update_slices(table, indices, values, *, rule="sgd", slots=(), **options):
    return ops.group_update_slices(
        [tf.IndexedSlices(tf.constant(values, table.dtype), tf.constant(indices))],
        [ops.WrittenTable(table, tuple(slots))],
        ops.Rule(rule, hyper(learning_rate=0.5, **options), False),
    )


def test_hyper_names_are_those_of_the_core():
    # Given the core's list
    names = re.search(r"kHyperNames\[\] = \{(.*?)\}", HEADER.read_text(), re.DOTALL).group(1)
    # Then Python's is the same
    assert tuple(re.findall(r'"(\w+)"', names)) == ops.HYPER_NAMES


def test_repeated_indices_are_summed():
    # Given a table and gradients of which two are of one row
    table = tf.Variable(tf.zeros([4, 2]), name="user")
    # When they are applied
    update_slices(table, [3, 1, 3], [[1.0, 2], [4, 6], [10, 20]])
    # Then the row moves by their sum
    np.testing.assert_array_equal(table, [[0, 0], [-2, -3], [0, 0], [-5.5, -11]])


def test_apply_zero_changes_nothing():
    table, slot = tf.Variable(tf.zeros([4, 2])), tf.Variable(tf.ones([4, 2]))
    update_slices(table, [1], [[1.0, 2]], rule="adagrad", slots=[slot], apply=0.0)
    np.testing.assert_array_equal(table, np.zeros([4, 2]))
    np.testing.assert_array_equal(slot, np.ones([4, 2]))


@pytest.mark.parametrize("index", [-1, 4])
def test_index_outside_the_table(index):
    with tf.device("CPU:0"):
        table = tf.Variable(tf.zeros([4, 2]), name="user")
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=rf"table 'user': index {index} at position 1 .* expected 0 <= index < 4",
        ):
            update_slices(table, [0, index], [[1.0, 1], [1, 1]])


@pytest.mark.gpu
@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("index", [-1, 4])
def test_index_outside_the_table_is_passed_over_on_a_gpu(index):
    table = tf.Variable(tf.zeros([4, 2]))
    update_slices(table, [0, index], [[1.0, 1], [1, 1]])
    np.testing.assert_array_equal(table[1:], np.zeros([3, 2]))
    np.testing.assert_array_equal(table[0], [-0.5, -0.5])


@pytest.mark.parametrize(
    "shape, dtype, message",
    [
        ([4, 3], tf.float32, r"table 'user', slot 0: expected shape \[4,2\], got \[4,3\]"),
        ([4, 1], tf.float32, r"table 'user', slot 0: expected shape \[4,2\], got \[4,1\]"),
    ],
)
def test_slot_of_another_shape(shape, dtype, message):
    table = tf.Variable(tf.zeros([4, 2]), name="user")
    slot = tf.Variable(tf.zeros(shape, dtype))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        update_slices(table, [0], [[1.0, 1]], rule="adagrad", slots=[slot])


def test_gradient_of_another_dim():
    table = tf.Variable(tf.zeros([4, 2]), name="user")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"table 'user': .* \[indices, 2\], got \[1,3\]"
    ):
        update_slices(table, [0], [[1.0, 1, 1]])


def test_unknown_rule():
    table = tf.Variable(tf.zeros([4, 2]))
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"rule: expected one of 'sgd', .*'lamb', .*got 'nadam'",
    ):
        update_slices(table, [0], [[1.0, 1]], rule="nadam")


def test_rule_has_no_such_slot():
    table = tf.Variable(tf.zeros([4, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="rule 'sgd' has 0 slots, got slot 0"):
        update_slices(table, [0], [[1.0, 1]], slots=[tf.Variable(tf.zeros([4, 2]))])


def test_uninitialized_table():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.compat.v1.get_variable("user", [4, 2])
        step = update_slices(table, [0], [[1.0, 1]])
        with pytest.raises(tf.errors.FailedPreconditionError, match="table 'user'.*initializer"):
            session.run(step)


def test_wrong_number_of_slots():
    table = tf.Variable(tf.zeros([4, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="slots: expected 1, got 0"):
        library().group_update_slices(
            tables=[table.handle],
            slots=[],
            indices=tf.constant([0], tf.int64),
            values=[tf.ones([1, 2])],
            hyper=hyper(),
            rule="adagrad",
            rule_slots=[0],
            table_names=["user"],
            keyed_tables=[],
        )


def test_readers_keep_what_they_read():
    # Given readers that share the buffers of a table and its slot
    table, slot = tf.Variable(tf.zeros([4, 2])), tf.Variable(tf.ones([4, 2]))
    readers = [table.read_value(), slot.read_value()]
    # When both are written, twice
    update_slices(table, [1], [[1.0, 2]], rule="adagrad", slots=[slot])
    later = table.read_value()
    seen = later.numpy()
    update_slices(table, [1], [[1.0, 2]], rule="adagrad", slots=[slot])
    # Then what was read has not changed, and the variables have
    np.testing.assert_array_equal(readers[0], np.zeros([4, 2]))
    np.testing.assert_array_equal(readers[1], np.ones([4, 2]))
    np.testing.assert_array_equal(later, seen)
    assert (table.numpy()[1] != seen[1]).all() and (slot.numpy()[1] == [3, 9]).all()


def test_readers_keep_what_they_read_under_a_fused_update():
    # Given a reader of a table, and another inside the step
    table = tf.Variable(tf.ones([4, 2]))
    reader = table.read_value()
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))

    @tf.function
    def step():
        before = table.read_value()
        with tf.GradientTape() as tape:
            (output,) = ge.group_embedding_lookup([table], [[0, 1]])
            loss = tf.reduce_sum(output)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return before, table.read_value()

    # When a step is taken
    before, after = step()
    # Then each sees the table as it was when it read
    np.testing.assert_array_equal(reader, np.ones([4, 2]))
    np.testing.assert_array_equal(before, np.ones([4, 2]))
    np.testing.assert_array_equal(after[:, 0], [0, 0, 1, 1])


def test_gradients_by_finite_differences():
    # Given a table that SGD with rate 1 moves by minus its gradient
    start = np.random.default_rng(2).normal(size=[5, 3]).astype(np.float32)
    ids = tf.ragged.constant([[0, 2, 2], [], [4, 0]], dtype=tf.int64)
    weights = ids.with_values(tf.constant([0.5, 2.0, 1.0, 3.0, 1.5]))

    def loss_of(table):
        outputs = ge.group_embedding_lookup_sparse(
            [table] * 3, [ids] * 3, ["sum", "mean", "sqrtn"], sp_weights=[weights] * 3
        )
        return tf.add_n([tf.reduce_sum(tf.sin(output)) for output in outputs])

    table = tf.Variable(start)
    optimizer = ge.optimizers.wrap(tf.keras.optimizers.SGD(1.0))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = loss_of(table)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    # When a step is taken
    step()
    # Then each element moved by the difference of losses around it
    moved, nudge = start - table.numpy(), 1e-2
    for place in np.ndindex(start.shape):
        up, down = start.copy(), start.copy()
        up[place] += nudge
        down[place] -= nudge
        difference = (loss_of(tf.constant(up)) - loss_of(tf.constant(down))) / (2 * nudge)
        np.testing.assert_allclose(moved[place], difference, atol=2e-3)
