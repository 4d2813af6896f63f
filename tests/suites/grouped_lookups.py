"""A pytest plugin: sparse lookups that tests of TensorFlow make go through the fused op.

    PYTHONPATH=tests/suites python -m pytest -p grouped_lookups .../embedding_ops_test.py

`tf.nn.safe_embedding_lookup_sparse` is what a group lookup means, so that function is replaced.
Two of its arguments have no twin here and become ops of TensorFlow in front of the lookup: a table
in several pieces is put together, and `default_id` becomes the id of samples without one.
"""

import tensorflow as tf
from tensorflow.python.ops import embedding_ops

import group_embedding as ge


def _whole(params, strategy):
    """One tensor [rows, dim] of a table, or of its pieces in the order of a partition strategy."""
    if isinstance(params, embedding_ops.variables.PartitionedVariable):
        params = list(params)
    if not isinstance(params, (list, tuple)):
        return params
    if len(params) == 1:
        return params[0]
    if strategy == "div":
        return tf.concat(params, 0)
    rows = sum(piece.shape[0] for piece in params)
    places = [row // len(params) for row in range(rows)]
    pieces = [params[row % len(params)][place] for row, place in enumerate(places)]
    return tf.stack(pieces)


def _is_empty(num_rows, ids, weights, combiner):
    """[..., 1], whether no id of a sample counts."""
    if weights is not None:
        counts = weights.values > 0 if combiner != "sum" else tf.ones_like(weights.values, tf.bool)
        weights = [weights.with_values(tf.cast(counts, tf.float32))]
    ones = tf.ones([num_rows, 1])
    (count,) = ge.group_embedding_lookup_sparse([ones], [ids], ["sum"], sp_weights=weights)
    return tf.equal(count, 0)


def safe_embedding_lookup_sparse(
    embedding_weights,
    sparse_ids,
    sparse_weights=None,
    combiner=None,
    default_id=None,
    name=None,
    partition_strategy="div",
    max_norm=None,
    allow_fast_lookup=False,
):
    """Has the signature of TensorFlow's function."""
    del allow_fast_lookup
    if embedding_weights is None:
        raise ValueError(f"Missing embedding_weights {embedding_weights}.")
    combiner, table = combiner or "mean", _whole(embedding_weights, partition_strategy)
    (looked_up,) = ge.group_embedding_lookup_sparse(
        [table],
        [sparse_ids],
        [combiner],
        sp_weights=None if sparse_weights is None else [sparse_weights],
        max_norm=max_norm,
        name=name,
    )
    if default_id is None:
        return looked_up
    is_empty = _is_empty(table.shape[0], sparse_ids, sparse_weights, combiner)
    return tf.where(is_empty, tf.gather(table, default_id), looked_up)


def safe_embedding_lookup_sparse_v2(
    embedding_weights,
    sparse_ids,
    sparse_weights=None,
    combiner="mean",
    default_id=None,
    max_norm=None,
    name=None,
    allow_fast_lookup=False,
):
    """Has the signature of TensorFlow's function."""
    return safe_embedding_lookup_sparse(
        embedding_weights, sparse_ids, sparse_weights, combiner, default_id, name, "div", max_norm
    )


def pytest_configure():
    embedding_ops.safe_embedding_lookup_sparse = safe_embedding_lookup_sparse
    embedding_ops.safe_embedding_lookup_sparse_v2 = safe_embedding_lookup_sparse_v2
    tf.nn.safe_embedding_lookup_sparse = safe_embedding_lookup_sparse_v2
    tf.compat.v1.nn.safe_embedding_lookup_sparse = safe_embedding_lookup_sparse
