"""DeepRec's lookup of one feature by a fused op, as a function."""

import tensorflow as tf


def fused_safe_embedding_lookup_sparse(
    embedding_weights,
    sparse_ids,
    sparse_weights=None,
    combiner="mean",
    default_id=None,
    name=None,
    partition_strategy="div",
    max_norm=None,
):
    """Looks one feature up as `tf.compat.v1.nn.safe_embedding_lookup_sparse` does.

    DeepRec has a fused op for it. The fused op of this package looks up many features at once:
    `tf.nn.group_embedding_lookup_sparse`.

    Args:
        embedding_weights, sparse_ids, sparse_weights, combiner, default_id, name,
            partition_strategy, max_norm: see `tf.compat.v1.nn.safe_embedding_lookup_sparse`.

    Returns:
        As for TensorFlow's function.
    """
    return tf.compat.v1.nn.safe_embedding_lookup_sparse(
        embedding_weights,
        sparse_ids,
        sparse_weights,
        combiner,
        default_id,
        name,
        partition_strategy,
        max_norm,
    )
