"""Each kind of bad input is refused, in words that name the table or feature and what to do."""

import numpy as np
import pytest
import tensorflow as tf

import group_embedding as ge
from group_embedding.config import COMBINERS

InvalidArgument = tf.errors.InvalidArgumentError


@pytest.fixture(autouse=True)
def on_the_cpu():
    """Runs on the CPU, where an op raises its error itself; tests/test_gpu.py tests errors on a
    GPU."""
    with tf.device("/CPU:0"):
        yield


def table(rows=5, dim=3, name="user"):
    return tf.Variable(tf.ones([rows, dim]), name=name)


def sparse(indices, values, shape):
    return tf.SparseTensor(
        tf.constant(indices, tf.int64, [len(values), len(shape)]), tf.constant(values), shape
    )


def look_up(ids, tables=None, combiners="mean", **kwargs):
    ids = ids if isinstance(ids, list) else [ids]
    return ge.group_embedding_lookup_sparse(
        tables or [table() for _ in ids],
        ids,
        combiners,
        feature_names=["clicks"][: len(ids)],
        **kwargs,
    )


def two_ids():
    return sparse([[0, 0], [1, 0]], [1, 2], [2, 1])


with tf.device("/CPU:0"):
    IDS = two_ids()


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda: look_up(IDS, combiners="max"),
            ValueError,
            f"combiners must be one of {', '.join(map(repr, COMBINERS))}, got 'max'",
        ),
        (
            lambda: look_up(IDS, combiners=["sum", "sum"]),
            ValueError,
            "len of combiners must be equal to len of sp_ids: expected 1, got 2",
        ),
        (
            lambda: look_up(IDS, tables=[table(), table()]),
            ValueError,
            "len of sp_ids must be equal to len of params: expected 2, got 1",
        ),
        (
            lambda: look_up(IDS, sp_weights=[None, None]),
            ValueError,
            "len of sp_weights must be equal to len of sp_ids: expected 1, got 2",
        ),
        (
            lambda: ge.group_embedding_lookup_sparse([], [], "sum"),
            ValueError,
            "params must be specified: expected a list with one per lookup",
        ),
        (
            lambda: ge.group_embedding_lookup_sparse(None, None, "sum"),
            ValueError,
            "params must be specified: expected a list with one per lookup",
        ),
        (
            lambda: look_up(tf.constant([[1, 2]])),
            TypeError,
            "feature 'clicks': sp_id is neither SparseTensor nor RaggedTensor: got EagerTensor of "
            "int32",
        ),
        (
            lambda: look_up(sparse([[0, 0]], [1.5], [1, 1])),
            TypeError,
            "feature 'clicks': expected ids of int32, int64, uint32, uint64, got float32",
        ),
        (
            lambda: look_up(tf.SparseTensor([[0]], [1], [1])),
            ValueError,
            "feature 'clicks': expected ids of rank 2 or more, got rank 1",
        ),
        (
            lambda: look_up(tf.ragged.constant([[[1], [2]], [[3]]])),
            ValueError,
            "feature 'clicks': expected a RaggedTensor of rank 2, got shape (2, None, None)",
        ),
        (
            lambda: look_up(IDS, tables=[tf.Variable([1.0, 2.0], name="user")]),
            ValueError,
            "table 'user': expected shape [rows, dim] with a known dim, got (2,)",
        ),
        (
            lambda: look_up(IDS, tables=[tf.Variable(tf.ones([2, 4097]), name="user")]),
            ValueError,
            "table 'user': expected a dim from 1 to 4096, got 4097",
        ),
        (
            lambda: look_up(IDS, tables=[tf.Variable([[1]], name="user")]),
            TypeError,
            "params[0]: expected a table of floating numbers, got ids, ResourceVariable of int32",
        ),
        (
            lambda: look_up(IDS, max_norm=-1.0),
            ValueError,
            "table 'user': expected max_norm to be positive in float32, or None for no limit",
        ),
        (
            lambda: look_up(IDS, partition_strategy="hash"),
            ValueError,
            "partition_strategy must be one of 'mod', 'div', got 'hash'",
        ),
        (
            lambda: look_up(IDS, invalid_ids="skip"),
            ValueError,
            "invalid_ids must be one of 'raise', 'ignore', got 'skip'",
        ),
        (
            lambda: look_up(IDS, sp_weights=[sparse([[0, 0], [1, 0]], [1, 2], [2, 1])]),
            TypeError,
            "feature 'clicks': expected floating sp_weights, got int32",
        ),
        (
            lambda: look_up(IDS, sp_weights=[tf.ragged.constant([[1.0], [2.0]])]),
            TypeError,
            "feature 'clicks': expected sp_weights of the kind of sp_ids",
        ),
        (
            lambda: look_up(IDS, sp_weights=[sparse([[0, 0]], [1.0], [3, 1])]),
            ValueError,
            "feature 'clicks': expected sp_weights of shape (2, 1), as sp_ids, got (3, 1)",
        ),
        (
            lambda: look_up(IDS, sp_weights=[sparse([[0, 0]], [1.0], [2, 1])]),
            InvalidArgument,
            "feature 'clicks': expected 2 weights, one per id, got 1",
        ),
        (
            lambda: look_up(IDS, sp_weights=[sparse([[0, 0], [0, 0]], [1.0, 2.0], [2, 1])]),
            InvalidArgument,
            "feature 'clicks': the indices of sp_weights differ from those of sp_ids at position 1",
        ),
        (
            lambda: look_up(sparse([[0, 0], [1, 0]], [1, 5], [2, 1])),
            InvalidArgument,
            "table 'user', feature 'clicks': id 5 of sample 1 is outside the table; "
            "expected 0 <= id < 5",
        ),
        (
            lambda: look_up(sparse([[0, 0]], [2**62], [1, 1])),
            InvalidArgument,
            "table 'user', feature 'clicks': id 4611686018427387904 of sample 0 is outside",
        ),
        (
            lambda: look_up(tf.SparseTensor([[0, 0]], tf.constant([2**64 - 1], tf.uint64), [1, 1])),
            InvalidArgument,
            "table 'user', feature 'clicks': id 9223372036854775807 or above of sample 0 is",
        ),
        (
            lambda: ge.group_embedding_lookup([table()], [[-1]], feature_names=["clicks"]),
            InvalidArgument,
            "table 'user', feature 'clicks': id -1 of sample 0 is outside the table",
        ),
        (
            lambda: look_up(sparse([[1, 0], [0, 0]], [1, 2], [2, 1])),
            InvalidArgument,
            "feature 'clicks': row 0 at position 1 is smaller than the row before it",
        ),
        (
            lambda: look_up(sparse([[0, 0], [2, 0]], [1, 2], [2, 1])),
            InvalidArgument,
            "feature 'clicks': row 2 at position 1 is outside the range; expected 0 <= value < 2",
        ),
        (
            lambda: look_up(sparse([[-1, 0]], [1], [2, 1])),
            InvalidArgument,
            "feature 'clicks': row -1 at position 0 is outside the range",
        ),
        (
            lambda: look_up(tf.RaggedTensor.from_row_splits([1, 2], [0, 2, 1, 2], validate=False)),
            InvalidArgument,
            "feature 'clicks': row_splits has 1 at position 2; expected splits that start at 0",
        ),
        (
            lambda: look_up(tf.RaggedTensor.from_row_splits([1, 2], [0, 3], validate=False)),
            InvalidArgument,
            "feature 'clicks': row_splits has 3 at position 1",
        ),
        (
            lambda: look_up(
                [IDS, sparse([[0, 0]], [1], [3, 1])],
                concat=True,
            ),
            ValueError,
            "len of feature_names must be equal to len of sp_ids: expected 2, got 1",
        ),
        (
            lambda: ge.group_embedding_lookup_sparse(
                [table(), table()], [IDS, sparse([[0, 0]], [1], [3, 1])], "sum", concat=True
            ),
            InvalidArgument,
            "feature 'sp_ids[1]': expected 2 samples, as feature 'sp_ids[0]' has, got 3",
        ),
        (
            lambda: ge.group_embedding_lookup_sparse(
                [table(), tf.ones([3, 2], tf.float16)], [IDS, IDS], "sum", concat=True
            ),
            ValueError,
            "concat: expected tables of one dtype, got ['float32', 'float16']",
        ),
    ],
)
def test_message(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)


def test_partitioned_variable():
    with tf.Graph().as_default():
        parts = tf.compat.v1.get_variable(
            "user", [6, 3], partitioner=tf.compat.v1.fixed_size_partitioner(2)
        )
        with pytest.raises(
            TypeError,
            match="table 'user': expected a variable in one piece, got a "
            "PartitionedVariable of 2 parts",
        ):
            look_up(two_ids(), tables=[parts])
        whole = tf.compat.v1.get_variable(
            "item", [6, 3], partitioner=tf.compat.v1.fixed_size_partitioner(1)
        )
        assert look_up(two_ids(), tables=[whole])[0].shape == [2, 3]


def test_uninitialized_variable():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("user", [6, 3], use_resource=True)
        out = look_up(two_ids(), tables=[variable])
        with pytest.raises(tf.errors.FailedPreconditionError, match="user"):
            session.run(out)


def test_wrong_ids_that_are_known_only_when_the_function_runs():
    users = table()

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    def call(ids):
        return look_up(ids, tables=[users])

    with pytest.raises(InvalidArgument, match="id 9 of sample 0"):
        call(sparse([[0, 0]], np.array([9]), [1, 1]))
    # The next, good, call is not touched by it.
    np.testing.assert_array_equal(call(sparse([[0, 0]], np.array([4]), [1, 1]))[0], np.ones([1, 3]))


def test_ignored_ids_read_zeros_and_get_no_gradient():
    # Given an id past the end beside a good one
    users = tf.Variable([[2.0], [4.0]])
    ids = sparse([[0, 0], [0, 1], [1, 0]], [1, 2**62, 7], [2, 2])
    # When such ids are to be ignored
    with tf.GradientTape() as tape:
        out = look_up(ids, tables=[users], invalid_ids="ignore")[0]
    # Then it is a row of zeros, counted by the mean
    np.testing.assert_array_equal(out, [[2.0], [0.0]])
    gradient = tape.gradient(out, users)
    np.testing.assert_array_equal(gradient.indices, [1])
    np.testing.assert_array_equal(gradient.values, [[0.5]])
    dense = ge.group_embedding_lookup([users], [[-1, 0]], invalid_ids="ignore")[0]
    np.testing.assert_array_equal(dense, [[0.0], [2.0]])
