"""Keras layers: the group lookup under `tf.keras`, Keras 2 and Keras 3 alike."""

from group_embedding.layers.evicted_callback import EvictedKeys
from group_embedding.layers.feature_plan import plan_features as plan_features
from group_embedding.layers.feature_plan import plan_tables as plan_tables
from group_embedding.layers.feature_plan import table_loads as table_loads
from group_embedding.layers.group_embedding import GroupEmbedding
from group_embedding.layers.layer_config_values import features_from_config as features_from_config
from group_embedding.layers.layer_config_values import features_to_config as features_to_config
from group_embedding.layers.statistics_callback import EmbeddingVariableStatistics
from group_embedding.variables.keras_variable import as_keras_variable

__all__ = ["EmbeddingVariableStatistics", "EvictedKeys", "GroupEmbedding", "as_keras_variable"]
