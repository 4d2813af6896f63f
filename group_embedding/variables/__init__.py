"""Tables whose rows are found by key, and their options."""

from typing import TYPE_CHECKING

from group_embedding import import_paths
from group_embedding.ops.read_rows import read_rows as read_rows
from group_embedding.variables import over_ranks as over_ranks
from group_embedding.variables.embedding_variable import EmbeddingVariable
from group_embedding.variables.evicted_keys import EvictedKeysHook, hand_out_evicted
from group_embedding.variables.evicted_keys import EvictedTo as EvictedTo
from group_embedding.variables.evicted_keys import hand_over_to as hand_over_to
from group_embedding.variables.get_variable import check_dim as check_dim
from group_embedding.variables.get_variable import check_dtype as check_dtype
from group_embedding.variables.get_variable import get_embedding_variable
from group_embedding.variables.get_variable import keyed_variables as keyed_variables
from group_embedding.variables.keras_variable import add_weight_as_it_is as add_weight_as_it_is
from group_embedding.variables.keras_variable import track_weight as track_weight
from group_embedding.variables.keras_xla import NotForXla as NotForXla
from group_embedding.variables.keras_xla import refuse_xla_trace as refuse_xla_trace
from group_embedding.variables.key_types import KEY_DTYPES as KEY_DTYPES
from group_embedding.variables.key_types import to_keys as to_keys
from group_embedding.variables.key_types import widened as widened
from group_embedding.variables.keyed_options import KeyedOptions
from group_embedding.variables.keyed_options import to_keyed_options as to_keyed_options
from group_embedding.variables.keyed_table import keyed_table
from group_embedding.variables.over_replicas import KeyedReplicas as KeyedReplicas
from group_embedding.variables.statistics_hook import EmbeddingVariableStatisticsHook
from group_embedding.variables.statistics_server import StatisticsServer
from group_embedding.variables.table_statistics import Statistics, TableStatistics, statistics

keyed_options = KeyedOptions

__all__ = [
    "EmbeddingVariable",
    "EmbeddingVariableStatisticsHook",
    "EvictedKeysHook",
    "KeyedOptions",
    "Statistics",
    "StatisticsServer",
    "TableStatistics",
    "get_embedding_variable",
    "hand_out_evicted",
    "keyed_options",
    "keyed_table",
    "statistics",
]

if not TYPE_CHECKING:  # a type checker would believe that there is any name
    __getattr__ = import_paths.names_of(__name__)  # DeepRec's options
