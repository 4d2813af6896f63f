"""TensorFlow's functions of columns, with the arguments that DeepRec gives them."""

import contextlib

from tensorflow.python.feature_column import feature_column as fc_v1
from tensorflow.python.feature_column import feature_column_v2 as fc_v2

from group_embedding.feature_column.scope import group_embedding_column_scope, scope_is_open

_stock_embedding_column = fc_v2.embedding_column
_stock_linear_model = fc_v1.linear_model


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
            tensor_name_in_ckpt, max_norm, trainable, use_safe_embedding_lookup: as of TensorFlow.
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


def linear_model(
    features,
    feature_columns,
    units=1,
    sparse_combiner="sum",
    weight_collections=None,
    trainable=True,
    cols_to_vars=None,
    *,
    do_fusion=None,
):
    """`tf.compat.v1.feature_column.linear_model`.

    Args:
        features, feature_columns, units, sparse_combiner, weight_collections, trainable,
            cols_to_vars: as of TensorFlow.
        do_fusion: of DeepRec, where a fused op looks the weights up; here each column's weights
            are looked up as TensorFlow does, with the same result.

    Returns:
        A float tensor [batch, units].
    """
    del do_fusion  # it changes no result
    return _stock_linear_model(
        features,
        feature_columns,
        units,
        sparse_combiner,
        weight_collections,
        trainable,
        cols_to_vars,
    )
