"""The columns of `tensorflow.contrib.layers`, as columns of `tf.feature_column`."""

import tensorflow as tf

from group_embedding import feature_column
from group_embedding.compat.deeprec.linear_model import linear_model
from group_embedding.compat.deeprec.options import EmbeddingVariableOption

v1 = tf.compat.v1


def sparse_column_with_embedding(
    column_name,
    dtype=tf.string,
    partition_num=None,
    steps_to_live=None,
    init_data_source=None,
    ht_partition_num=1000,
    ev_option=None,
):
    """`tf.feature_column.categorical_column_with_embedding` under its older name.

    Args:
        column_name: the feature's name.
        dtype, partition_num, ev_option: see `categorical_column_with_embedding`.
        steps_to_live: of a GlobalStepEvict, if `ev_option` has no `evict_option`.
        init_data_source: must be None, as in CheckpointOption.
        ht_partition_num: as in EmbeddingVariableOption.

    Returns:
        A categorical column.
    """
    option = ev_option or EmbeddingVariableOption(ht_partition_num=ht_partition_num)
    if init_data_source is not None:
        raise ValueError(
            f"column '{column_name}': expected init_data_source to be None, got "
            f"{init_data_source!r}; save its rows as a checkpoint, and name it in CheckpointOption"
        )
    option = option.with_steps_to_live(steps_to_live)
    return feature_column.categorical_column_with_embedding(
        column_name, dtype, partition_num, option
    )


def embedding_column(
    sparse_id_column,
    dimension,
    combiner="mean",
    initializer=None,
    ckpt_to_load_from=None,
    tensor_name_in_ckpt=None,
    max_norm=None,
    trainable=True,
):
    """`tf.feature_column.embedding_column`, with the first argument's older name."""
    return v1.feature_column.embedding_column(
        sparse_id_column,
        dimension,
        combiner,
        initializer,
        ckpt_to_load_from,
        tensor_name_in_ckpt,
        max_norm,
        trainable,
    )


def shared_embedding_columns(
    sparse_id_columns,
    dimension,
    combiner="mean",
    shared_embedding_name=None,
    initializer=None,
    ckpt_to_load_from=None,
    tensor_name_in_ckpt=None,
    max_norm=None,
    trainable=True,
):
    """`tf.feature_column.shared_embedding_columns`, with its arguments' older names and order."""
    return v1.feature_column.shared_embedding_columns(
        sparse_id_columns,
        dimension,
        combiner,
        initializer,
        shared_embedding_name,
        ckpt_to_load_from,
        tensor_name_in_ckpt,
        max_norm,
        trainable,
    )


def input_from_feature_columns(
    columns_to_tensors, feature_columns, weight_collections=None, trainable=True, scope=None
):
    """`tf.feature_column.input_layer` under its older name.

    Args:
        columns_to_tensors: a dict from the name of a feature to its tensor.
        feature_columns: dense columns.
        weight_collections, trainable: see `input_layer`.
        scope: the name of the variable scope.

    Returns:
        A float tensor [batch, sum of the columns' widths].
    """
    with v1.variable_scope(scope, "input_from_feature_columns"):
        return v1.feature_column.input_layer(
            columns_to_tensors, feature_columns, weight_collections, trainable
        )


def weighted_sum_from_feature_columns(
    columns_to_tensors,
    feature_columns,
    num_outputs,
    weight_collections=None,
    trainable=True,
    scope=None,
):
    """`tf.feature_column.linear_model`, with its variables as further results.

    Args:
        columns_to_tensors: a dict from the name of a feature to its tensor.
        feature_columns: categorical and numeric columns.
        num_outputs: the width of the result.
        weight_collections, trainable: see `linear_model`.
        scope: the name of the variable scope.

    Returns:
        A tuple: a float tensor [batch, num_outputs], a dict from column to a list of its variables,
        and the bias.
    """
    variables = {}
    with v1.variable_scope(scope, "weighted_sum_from_feature_columns"):
        result = linear_model(
            columns_to_tensors,
            feature_columns,
            units=num_outputs,
            weight_collections=weight_collections,
            trainable=trainable,
            cols_to_vars=variables,
        )
    (bias,) = variables.pop("bias")
    return result, variables, bias
