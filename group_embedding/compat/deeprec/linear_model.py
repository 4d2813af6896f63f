"""`tf.feature_column.linear_model` that takes columns of keys, too."""

import functools
import operator

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as fc_v1
from tensorflow.python.feature_column import feature_column_v2 as fc_v2

from group_embedding.feature_column import KeyedCategoricalColumn, weights_of
from group_embedding.lookups import group_embedding_lookup_sparse
from group_embedding.variables import get_embedding_variable

v1 = tf.compat.v1
_stock_linear_model = fc_v1.linear_model


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
    """TensorFlow 1's `tf.feature_column.linear_model`, also of columns of keys.

    The weights of a column of keys are an EmbeddingVariable of dim `units`, and start as zeros
    unless its `ev_option` has an initializer. All such columns are looked up by one op.

    Args:
        features: a dict from the name of a feature to its tensor.
        feature_columns: categorical and numeric columns.
        units: the width of the result.
        sparse_combiner: how the weights of a sample's ids become one: "sum", "mean", "sqrtn".
        weight_collections: collections that variables are added to, or None.
        trainable: whether optimizers train the variables.
        cols_to_vars: None or a dict that gets the variables of each column, and those of "bias".
        do_fusion: of DeepRec. Weights of keys are looked up by the fused op whatever it says, and
            those of other columns as TensorFlow does: the results are the same.

    Returns:
        A float tensor [batch, units].
    """
    del do_fusion  # it changes no result
    columns = fc_v1._normalize_feature_columns(feature_columns)
    keyed = sorted(filter(_has_keys, columns), key=lambda column: column.name)
    others = [column for column in columns if not _has_keys(column)]
    found = {} if cols_to_vars is None else cols_to_vars
    sums = []
    if others:
        arguments = (units, sparse_combiner, weight_collections, trainable, cols_to_vars)
        sums.append(_stock_linear_model(features, others, *arguments))
    if keyed:
        collections = {v1.GraphKeys.GLOBAL_VARIABLES, *(weight_collections or ())}
        with v1.variable_scope(None, "linear_model"):
            options = {"trainable": trainable, "collections": sorted(collections)}
            sums += _weights(features, keyed, units, sparse_combiner, options, found)
            if not others:
                zeros = v1.zeros_initializer()
                bias = v1.get_variable("bias_weights", [units], initializer=zeros, **options)
                found["bias"] = [bias]
                sums.append(bias)
    return functools.reduce(operator.add, sums)


def _has_keys(column):
    if isinstance(column, fc_v2.WeightedCategoricalColumn):
        return _has_keys(column.categorical_column)
    return isinstance(column, KeyedCategoricalColumn)


def _weights(features, columns, units, combiner, options, cols_to_vars):
    """The combined weights of each keyed column, [batch, units]."""
    builder = fc_v1._LazyBuilder(features)
    tables, ids, weights = [], [], []
    for column in columns:
        with v1.variable_scope(None, column._var_scope_name):
            pair = column._get_sparse_tensors(builder)
            tables.append(_make_table(column, units, options))
        cols_to_vars[column] = tables[-1:]
        ids.append(pair.id_tensor)
        weights.append(weights_of(pair.id_tensor, pair.weight_tensor))
    names = [column.name for column in columns]
    return group_embedding_lookup_sparse(
        tables, ids, combiner, sp_weights=weights, feature_names=names
    )


def _make_table(column, units, options):
    while isinstance(column, fc_v2.WeightedCategoricalColumn):
        column = column.categorical_column
    zeros = v1.zeros_initializer()
    return get_embedding_variable(
        "weights", units, initializer=zeros, ev_option=column.ev_option, **options
    )
