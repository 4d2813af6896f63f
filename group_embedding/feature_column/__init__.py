"""Feature columns that are looked up together: made inside the scope, used by stock TensorFlow."""

from group_embedding.feature_column.scope import group_embedding_column_scope

__all__ = ["group_embedding_column_scope"]
