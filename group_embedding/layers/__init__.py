"""Keras layers: the group lookup under `tf.keras`, Keras 2 and Keras 3 alike."""

from group_embedding.layers.group_embedding import GroupEmbedding
from group_embedding.layers.statistics_callback import EmbeddingVariableStatistics
from group_embedding.variables.keras_variable import as_keras_variable

__all__ = ["EmbeddingVariableStatistics", "GroupEmbedding", "as_keras_variable"]
