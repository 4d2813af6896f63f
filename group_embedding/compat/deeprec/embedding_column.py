"""`tf.feature_column.embedding_column` with the argument that DeepRec adds."""

import contextlib

from tensorflow.python.feature_column import feature_column_v2 as fc_v2

from group_embedding.feature_column import group_embedding_column_scope, scope_is_open

_stock_embedding_column = fc_v2.embedding_column


def embedding_column(
    categorical_column,
    dimension,
    combiner="mean",
    initializer=None,
    ckpt_to_load_from=None,
    tensor_name_in_ckpt=None,
    max_norm=None,
    trainable=True,
    use_safe_embedding_lookup=True,
    *,
    do_fusion=None,
):
    """`tf.feature_column.embedding_column`, and whether the fused op looks the column up.

    Args:
        categorical_column, dimension, combiner, initializer, ckpt_to_load_from,
            tensor_name_in_ckpt, max_norm, trainable, use_safe_embedding_lookup: as in TensorFlow.
        do_fusion: True or one of DeepRec's words ("v1", "v2"): the column is looked up by the fused
            op of this package, also outside of `group_embedding_column_scope`. None, False: as
            TensorFlow does. A column that is made in a scope, or of keys, is always fused.

    Returns:
        An embedding column.
    """
    own = group_embedding_column_scope if do_fusion and not scope_is_open() else None
    with own() if own else contextlib.nullcontext():
        return _stock_embedding_column(
            categorical_column,
            dimension,
            combiner,
            initializer,
            ckpt_to_load_from,
            tensor_name_in_ckpt,
            max_norm,
            trainable,
            use_safe_embedding_lookup,
        )
