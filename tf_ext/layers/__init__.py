"""Layers: from raw features to embeddings, and batch normalisation."""

from tf_ext.layers.batch_normalization import BatchNormalization
from tf_ext.layers.embedding_features import EmbeddingFeatures

__all__ = ["BatchNormalization", "EmbeddingFeatures"]
