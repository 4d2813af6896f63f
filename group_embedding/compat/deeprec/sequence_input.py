"""`tf.contrib.feature_column.sequence_input_layer`: columns of sequences as one tensor."""

import tensorflow as tf
from tensorflow.python.feature_column import feature_column as fc_v1

v1 = tf.compat.v1


def sequence_input_layer(features, feature_columns, weight_collections=None, trainable=True):
    """The columns of sequences, side by side.

    Args:
        features: a dict from the name of a feature to its tensor, mostly a SparseTensor [batch,
            steps].
        feature_columns: columns of sequences, such as `embedding_column` of
            `sequence_categorical_column_with_identity`.
        weight_collections: collections that variables are added to, or None.
        trainable: whether optimizers train the variables.

    Returns:
        A tuple: a float tensor [batch, steps, sum of the columns' widths], and an int64 tensor
        [batch] of how many steps each sample has.
    """
    columns = fc_v1._normalize_feature_columns(feature_columns)
    builder = fc_v1._LazyBuilder(features)
    outputs, lengths = [], []
    with v1.variable_scope(None, "sequence_input_layer", features.values()):
        for column in sorted(columns, key=lambda column: column.name):
            with v1.variable_scope(None, column._var_scope_name):
                dense, length = column._get_sequence_dense_tensor(
                    builder, weight_collections=weight_collections, trainable=trainable
                )
                width = column._variable_shape.num_elements()
                outputs.append(tf.reshape(dense, [*_batch_and_steps(dense), width]))
                lengths.append(length)
        return tf.concat(outputs, -1), _the_same(lengths)


def _batch_and_steps(dense):
    shape = tf.shape(dense)
    return [shape[0], shape[1]]


def _the_same(lengths):
    """The lengths of the first column, once it is sure that the others have them too."""
    checks = [v1.assert_equal(lengths[0], other) for other in lengths[1:]]
    with tf.control_dependencies(checks):
        return tf.identity(lengths[0])
