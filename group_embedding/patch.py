"""DeepRec's names on TensorFlow's own modules, so that its scripts run with one line more."""

import sys
import types

import tensorflow as tf

from group_embedding import feature_column, variables
from group_embedding.distributed import enable_distributed_strategy
from group_embedding.lookup import group_embedding_lookup, group_embedding_lookup_sparse

_OF_COLUMNS = (
    "categorical_column_with_embedding",
    "group_embedding_column_scope",
    "sequence_categorical_column_with_embedding",
)
_OF_VARIABLES = (
    "CBFFilter",
    "CacheStrategy",
    "CheckpointOption",
    "CounterFilter",
    "EmbeddingVariableOption",
    "GlobalStepEvict",
    "InitializerOption",
    "L2WeightEvict",
    "StorageOption",
    "StorageType",
    "get_embedding_variable",
)
_PROTOS = "tensorflow.core.framework.embedding"


def patch_tensorflow():
    """Puts this package's functions where DeepRec has them.

    Afterwards `tf.get_embedding_variable` and its options, `tf.nn.group_embedding_lookup_sparse`,
    `tf.nn.group_embedding_lookup`, `tf.feature_column.group_embedding_column_scope`,
    `tf.feature_column.categorical_column_with_embedding` and the same for sequences, and
    `tf.config.experimental.enable_distributed_strategy` (also under `tf.compat.v1`) are the
    functions of this package, and `tensorflow.core.framework.embedding.config_pb2` can be imported
    for its StorageType and CacheStrategy. Nothing that TensorFlow has is replaced. Calling it again
    changes nothing.

    Example:

    >>> ge.patch_tensorflow()
    >>> tf.nn.group_embedding_lookup_sparse is ge.group_embedding_lookup_sparse
    True
    """
    for root in (tf, tf.compat.v1):
        root.nn.group_embedding_lookup_sparse = group_embedding_lookup_sparse
        root.nn.group_embedding_lookup = group_embedding_lookup
        root.config.experimental.enable_distributed_strategy = enable_distributed_strategy
        for name in _OF_VARIABLES:
            setattr(root, name, getattr(variables, name))
        for name in _OF_COLUMNS:
            setattr(root.feature_column, name, getattr(feature_column, name))
    config = types.ModuleType(f"{_PROTOS}.config_pb2", "DeepRec's place for these two.")
    config.StorageType, config.CacheStrategy = variables.StorageType, variables.CacheStrategy
    protos = types.ModuleType(_PROTOS)
    protos.config_pb2 = config
    for module in (protos, config):
        sys.modules.setdefault(module.__name__, module)
