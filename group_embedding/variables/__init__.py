"""Tables whose rows are found by key, and their options."""

from group_embedding.variables.embedding_variable import EmbeddingVariable
from group_embedding.variables.get_variable import get_embedding_variable
from group_embedding.variables.options import (
    CacheStrategy,
    CBFFilter,
    CheckpointOption,
    CounterFilter,
    EmbeddingVariableOption,
    GlobalStepEvict,
    InitializerOption,
    L2WeightEvict,
    StorageOption,
    StorageType,
)
from group_embedding.variables.statistics_hook import EmbeddingVariableStatisticsHook

__all__ = [
    "CBFFilter",
    "CacheStrategy",
    "CheckpointOption",
    "CounterFilter",
    "EmbeddingVariable",
    "EmbeddingVariableOption",
    "EmbeddingVariableStatisticsHook",
    "GlobalStepEvict",
    "InitializerOption",
    "L2WeightEvict",
    "StorageOption",
    "StorageType",
    "get_embedding_variable",
]
