"""Sparse embeddings for recommender models on TensorFlow: many lookups in one fused op."""

from group_embedding.lookup import group_embedding_lookup, group_embedding_lookup_sparse

__version__ = "0.1.0"
__all__ = ["group_embedding_lookup", "group_embedding_lookup_sparse"]
