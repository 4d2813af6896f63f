"""DeepRec's names on TensorFlow's own modules, so that its scripts run with one line more."""

import tensorflow as tf

from group_embedding import variables
from group_embedding.distributed import enable_distributed_strategy
from group_embedding.feature_column import group_embedding_column_scope
from group_embedding.lookup import group_embedding_lookup, group_embedding_lookup_sparse

_OF_VARIABLES = (
    "CBFFilter",
    "CheckpointOption",
    "CounterFilter",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "InitializerOption",
    "L2WeightEvict",
    "StorageOption",
    "get_embedding_variable",
)


def patch_tensorflow():
    """Puts this package's functions where DeepRec has them.

    Afterwards `tf.get_embedding_variable` and its options, `tf.nn.group_embedding_lookup_sparse`,
    `tf.nn.group_embedding_lookup`, `tf.feature_column.group_embedding_column_scope` and
    `tf.config.experimental.enable_distributed_strategy` (also under `tf.compat.v1`) are the
    functions of this package. Nothing that TensorFlow has is replaced. Calling it again changes
    nothing.

    Example:

    >>> ge.patch_tensorflow()
    >>> tf.nn.group_embedding_lookup_sparse is ge.group_embedding_lookup_sparse
    True
    """
    for root in (tf, tf.compat.v1):
        root.nn.group_embedding_lookup_sparse = group_embedding_lookup_sparse
        root.nn.group_embedding_lookup = group_embedding_lookup
        root.feature_column.group_embedding_column_scope = group_embedding_column_scope
        root.config.experimental.enable_distributed_strategy = enable_distributed_strategy
        for name in _OF_VARIABLES:
            setattr(root, name, getattr(variables, name))
