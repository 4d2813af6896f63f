"""Sparse embeddings for recommender models on TensorFlow: many lookups in one fused op."""

from group_embedding import command_log  # noqa: F401, before TensorFlow is imported
from group_embedding.ops._library import library

# First: where TensorFlow, or a library for it, is missing, one sentence says so. And a SavedModel
# that is loaded later finds its ops registered.
library()

from group_embedding import (
    checkpoint,
    convert,
    data,
    exchange,
    hugectr,
    layers,
    models,
    optimizers,
    parquet,
    serving,
    sok,
    training,
)
from group_embedding.config import FeatureConfig, TableConfig
from group_embedding.distributed import (
    CollectiveStrategy,
    DistributedOptimizer,
    Saver,
    broadcast_variables,
    enable_distributed_strategy,
    run_elastic,
)
from group_embedding.feature_column import (
    categorical_column_with_embedding,
    group_embedding_column_scope,
    sequence_categorical_column_with_embedding,
)
from group_embedding.lookup.api import (
    group_embedding_lookup,
    group_embedding_lookup_sparse,
    route_ids,
)
from group_embedding.lookup.owner_of import owner_of
from group_embedding.lookup.routed_ids import RoutedIds
from group_embedding.patch import patch_tensorflow
from group_embedding.staged import make_prefetch_hook, prefetch_join, staged
from group_embedding.variables import (
    CacheStrategy,
    CBFFilter,
    CheckpointOption,
    CounterFilter,
    EmbeddingVariable,
    EmbeddingVariableOption,
    EmbeddingVariableStatisticsHook,
    GlobalStepEvict,
    InitializerOption,
    L2WeightEvict,
    StorageOption,
    StorageType,
    get_embedding_variable,
)
from group_embedding.version import VERSION

__version__ = VERSION

__all__ = [
    "CBFFilter",
    "CacheStrategy",
    "CheckpointOption",
    "CollectiveStrategy",
    "CounterFilter",
    "DistributedOptimizer",
    "EmbeddingVariable",
    "EmbeddingVariableOption",
    "EmbeddingVariableStatisticsHook",
    "FeatureConfig",
    "GlobalStepEvict",
    "InitializerOption",
    "L2WeightEvict",
    "RoutedIds",
    "Saver",
    "StorageOption",
    "StorageType",
    "TableConfig",
    "broadcast_variables",
    "categorical_column_with_embedding",
    "checkpoint",
    "convert",
    "data",
    "enable_distributed_strategy",
    "exchange",
    "get_embedding_variable",
    "group_embedding_column_scope",
    "group_embedding_lookup",
    "group_embedding_lookup_sparse",
    "hugectr",
    "layers",
    "make_prefetch_hook",
    "models",
    "optimizers",
    "owner_of",
    "parquet",
    "patch_tensorflow",
    "prefetch_join",
    "route_ids",
    "run_elastic",
    "sequence_categorical_column_with_embedding",
    "serving",
    "sok",
    "staged",
    "training",
]
