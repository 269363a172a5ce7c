"""Layers: from raw features to embeddings."""

from tf_ext.layers.embedding_features import EmbeddingFeatures

__all__ = ["EmbeddingFeatures"]
