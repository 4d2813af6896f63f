"""The names of `tensorflow.contrib` that DeepRec's scripts use, by module."""

import tensorflow as tf

from group_embedding.compat.deeprec import contrib_columns, sequence_input
from group_embedding.compat.deeprec.rnn import _Linear
from group_embedding.keras_compat import IS_KERAS_3

v1 = tf.compat.v1

_CELLS = ("BasicLSTMCell", "BasicRNNCell", "GRUCell", "LSTMCell", "LSTMStateTuple", "MultiRNNCell")
_COLUMNS = {
    each.__name__: each
    for each in (
        contrib_columns.embedding_column,
        contrib_columns.shared_embedding_columns,
        contrib_columns.sparse_column_with_embedding,
    )
}
_COLUMN_OPS = {
    each.__name__: each
    for each in (
        contrib_columns.input_from_feature_columns,
        contrib_columns.weighted_sum_from_feature_columns,
    )
}
_EMBEDDING_OPS = {"safe_embedding_lookup_sparse": v1.nn.safe_embedding_lookup_sparse}
_INITIALIZERS = {"xavier_initializer": v1.glorot_uniform_initializer}

MODULES = (
    ("layers", {**_COLUMNS, **_COLUMN_OPS, **_EMBEDDING_OPS, **_INITIALIZERS}),
    ("layers.python.layers.embedding_ops", _EMBEDDING_OPS),
    ("layers.python.layers.feature_column", _COLUMNS),
    ("layers.python.layers.feature_column_ops", _COLUMN_OPS),
    ("feature_column", {"sequence_input_layer": sequence_input.sequence_input_layer}),
    ("rnn", {} if IS_KERAS_3 else {name: getattr(v1.nn.rnn_cell, name) for name in _CELLS}),
    ("rnn.python.ops.core_rnn_cell", {"_Linear": _Linear}),
)
