"""Feature columns that are looked up together: made inside the scope, used by stock TensorFlow."""

from group_embedding.feature_column.keyed import KeyedCategoricalColumn as KeyedCategoricalColumn
from group_embedding.feature_column.keyed import (
    categorical_column_with_embedding,
    sequence_categorical_column_with_embedding,
)
from group_embedding.feature_column.member import weights_of as weights_of
from group_embedding.feature_column.scope import group_embedding_column_scope
from group_embedding.feature_column.scope import scope_is_open as scope_is_open

__all__ = [
    "categorical_column_with_embedding",
    "group_embedding_column_scope",
    "sequence_categorical_column_with_embedding",
]
