"""`lookup_sparse(use_low_frequency_filter=True)`: new keys get rows with a probability alone."""

import tensorflow as tf

from group_embedding.compat.sok.dynamic_variable import DynamicVariable


def filtered(param, ids, weights, combiner):
    """One lookup without the new keys that were not drawn.

    Args:
        param: a table.
        ids: a SparseTensor or RaggedTensor of keys.
        weights: None, or the same with weights.
        combiner: 'sum', 'mean' or 'sqrtn'.

    Returns:
        ids: without those keys.
        weights: without theirs.
        combiner: the combiner of the remaining keys.
        divisors: what to divide each sample's result by, float32 [samples], as the keys that were
            left out count with their weights; or None.
    """
    if not isinstance(param, DynamicVariable) or param.config.filter_ratio >= 1:
        return ids, weights, combiner, None
    keys, place = tf.unique(ids.values)
    drawn = tf.random.uniform(tf.shape(keys)) < param.config.filter_ratio
    stays = tf.gather(tf.logical_or(_have_rows(param, keys), drawn), place)
    divisors = _divisors(ids, weights, combiner)
    weights = None if weights is None else _retained(weights, stays)
    return _retained(ids, stays), weights, "sum", divisors


def _have_rows(table, keys):
    """Returns, for each of this rank's keys, whether it has a row on the rank that owns it."""
    if table.placement is None:
        return table.lookup_tier(keys) >= 0
    spread_over = table.exchange
    counts = spread_over.allgather([tf.reshape(tf.size(keys), [1])], "filter_counts")[0]
    (of_all,) = spread_over.allgather([keys], "filter_keys")
    have = table.lookup_tier(of_all, gather=True) >= 0
    first = tf.reduce_sum(counts[: spread_over.rank])
    return have[first : first + tf.size(keys)]


def _divisors(ids, weights, combiner):
    if combiner == "sum":
        return None
    if isinstance(ids, tf.SparseTensor):
        sample, num_samples = ids.indices[:, 0], ids.dense_shape[0]
    else:
        sample, num_samples = ids.value_rowids(), ids.nrows()
    if weights is None:
        weight = tf.ones(tf.shape(ids.values), tf.float32)
    else:
        weight = tf.cast(weights.values, tf.float32)
    if combiner == "mean":
        return tf.math.unsorted_segment_sum(weight, sample, num_samples)
    return tf.sqrt(tf.math.unsorted_segment_sum(weight**2, sample, num_samples))


def _retained(rows, stays):
    if isinstance(rows, tf.SparseTensor):
        return tf.sparse.retain(rows, stays)
    return tf.ragged.boolean_mask(rows, rows.with_values(stays))
