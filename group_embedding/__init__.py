"""Sparse embeddings for recommender models on TensorFlow: many lookups in one fused op.

Importing it loads the library: lookups, tables, optimizers, layers, ranks and checkpoints. Models
and readers (`ge.models`, `ge.data`), serving (`ge.serving`) and the names of other libraries
(`ge.sok`, `group_embedding.deeprec`, ...) are loaded when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from group_embedding import (
    command_log,  # noqa: F401, before TensorFlow is imported
    import_paths,
)
from group_embedding.ops._library import library

# First: where TensorFlow, or a library for it, is missing, one sentence says so. And a SavedModel
# that is loaded later finds its ops registered.
library()

from group_embedding import checkpoint, feature_column, layers, optimizers, training, variables
from group_embedding.config import FeatureConfig, TableConfig
from group_embedding.feature_column import group_embedding_column_scope
from group_embedding.lookups import (
    group_embedding_lookup,
    group_embedding_lookup_sparse,
    route_ids,
)
from group_embedding.ranks import distributed
from group_embedding.ranks.distributed import enable_distributed_strategy
from group_embedding.variables import EmbeddingVariable, get_embedding_variable, keyed_table
from group_embedding.version import VERSION

if TYPE_CHECKING:  # what `_NAMES` loads when it is used
    from group_embedding import serving
    from group_embedding.compat import convert, hugectr, sok
    from group_embedding.compat.deeprec import parquet
    from group_embedding.compat.deeprec import tensorflow as deeprec
    from group_embedding.compat.deeprec.collective_strategy import CollectiveStrategy
    from group_embedding.compat.deeprec.options import (
        CacheStrategy,
        CBFFilter,
        CheckpointOption,
        CounterFilter,
        EmbeddingVariableOption,
        GlobalStepEvict,
        InitializerOption,
        L2WeightEvict,
        ProbabilityFilter,
        StorageOption,
        StorageType,
        TimeEvict,
    )
    from group_embedding.compat.deeprec.patch import patch_tensorflow
    from group_embedding.compat.deeprec.staged import make_prefetch_hook, prefetch_join, staged
    from group_embedding.feature_column import (
        categorical_column_with_embedding,
        sequence_categorical_column_with_embedding,
    )
    from group_embedding.lookups import RoutedIds, owner_of
    from group_embedding.planning import (
        PlacedTable,
        Plan,
        TablePlacements,
        TablePlan,
        place_tables,
        plan,
    )
    from group_embedding.ranks import exchange
    from group_embedding.ranks.distributed import (
        DistributedOptimizer,
        Saver,
        broadcast_variables,
        run_elastic,
    )
    from group_embedding.recommender import data
    from group_embedding.recommender import zoo as models
    from group_embedding.variables import (
        EmbeddingVariableStatisticsHook,
        EvictedKeysHook,
        KeyedOptions,
        Statistics,
        StatisticsServer,
        TableStatistics,
        hand_out_evicted,
        statistics,
    )

__version__ = VERSION

lookup = group_embedding_lookup
lookup_sparse = group_embedding_lookup_sparse
column_scope = group_embedding_column_scope

# What a first program needs.
__all__ = [
    "EmbeddingVariable",
    "FeatureConfig",
    "TableConfig",
    "checkpoint",
    "column_scope",
    "distributed",
    "enable_distributed_strategy",
    "feature_column",
    "get_embedding_variable",
    "group_embedding_column_scope",
    "group_embedding_lookup",
    "group_embedding_lookup_sparse",
    "keyed_table",
    "layers",
    "lookup",
    "lookup_sparse",
    "optimizers",
    "route_ids",
    "training",
    "variables",
]

# {where: names} of all others that programs write behind `ge.`; and modules.
_NAMES = {
    "compat.deeprec.collective_strategy": ["CollectiveStrategy"],
    "compat.deeprec.options": [*import_paths.OPTIONS],
    "compat.deeprec.patch": ["patch_tensorflow"],
    "compat.deeprec.staged": ["make_prefetch_hook", "prefetch_join", "staged"],
    "feature_column": [
        "categorical_column_with_embedding",
        "sequence_categorical_column_with_embedding",
    ],
    "lookups": ["RoutedIds", "owner_of"],
    "planning": [
        "PlacedTable",
        "Plan",
        "TablePlacements",
        "TablePlan",
        "place_tables",
        "plan",
    ],
    "ranks.distributed": [
        "DistributedOptimizer",
        "Saver",
        "broadcast_variables",
        "run_elastic",
    ],
    "variables": [
        "EmbeddingVariableStatisticsHook",
        "EvictedKeysHook",
        "KeyedOptions",
        "Statistics",
        "StatisticsServer",
        "TableStatistics",
        "hand_out_evicted",
        "statistics",
    ],
}
# Not `deeprec`: importing it turns TensorFlow 2's behaviour off, which no attribute does.
_MODULES = ("serving", *(p for p in import_paths.PATHS if p != "deeprec" and "." not in p))

import_paths.install()


def _load(name):
    if name in _MODULES:
        return importlib.import_module(f"group_embedding.{name}")
    where = next((module for module, names in _NAMES.items() if name in names), None)
    if where is None:
        raise AttributeError(f"module 'group_embedding' has no attribute '{name}'")
    return getattr(importlib.import_module(f"group_embedding.{where}"), name)


if not TYPE_CHECKING:  # a type checker would believe that there is any name

    def __getattr__(name):
        globals()[name] = value = _load(name)
        return value


def __dir__():
    return [*__all__, "__version__"]
