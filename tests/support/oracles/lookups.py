"""TensorFlow's own lookups, one at a time, as the oracle for values and gradients."""

import numpy as np
import tensorflow as tf


def look_up(table, ids, weights, combiner, max_norm=None):
    """`tf.nn.safe_embedding_lookup_sparse`, which takes no RaggedTensor, and no float32 weights for
    a table of float16."""
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.to_sparse()
        weights = None if weights is None else weights.to_sparse()
    if weights is not None:
        weights = tf.SparseTensor(
            weights.indices, tf.cast(weights.values, table.dtype), weights.dense_shape
        )
    return tf.nn.safe_embedding_lookup_sparse(
        table, ids, weights, combiner=combiner, max_norm=max_norm
    )


def assert_same(actual, expected, tolerance, what):
    """Says where two arrays differ most, and by how much."""
    actual = np.asarray(tf.cast(actual, tf.float64))
    expected = np.asarray(tf.cast(expected, tf.float64))
    assert actual.shape == expected.shape, (
        f"{what}: shape {actual.shape}, expected {expected.shape}"
    )
    if actual.size == 0:
        return
    error = np.abs(actual - expected) / np.maximum(1.0, np.abs(expected))
    assert not np.isnan(error).any(), f"{what}: NaN at {np.argwhere(np.isnan(error))[0]}"
    worst = np.unravel_index(np.argmax(error), error.shape)
    assert error[worst] <= tolerance, (
        f"{what}: at {worst} got {actual[worst]}, expected {expected[worst]}"
    )


def dense(gradient):
    """A gradient as one dense tensor."""
    return None if gradient is None else tf.cast(tf.convert_to_tensor(gradient), tf.float32)


def assert_unique_and_sorted(gradient, what):
    assert isinstance(gradient, tf.IndexedSlices), f"{what}: {type(gradient).__name__}"
    indices = np.asarray(gradient.indices)
    assert (np.diff(indices) > 0).all(), f"{what}: indices {indices}"
