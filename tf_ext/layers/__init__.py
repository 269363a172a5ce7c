# SPDX-License-Identifier: Apache-2.0
"""Layers: raw features to embeddings, normalisation, retrieval."""

from tf_ext.layers.batch_normalization import BatchNormalization
from tf_ext.layers.embedding_features import EmbeddingFeatures
from tf_ext.layers.in_batch_softmax import InBatchSoftmax
from tf_ext.layers.item_frequency import ItemFrequency
from tf_ext.layers.position_mapping import PositionMapping
from tf_ext.layers.retrieval import Retrieval

__all__ = [
    "BatchNormalization",
    "EmbeddingFeatures",
    "InBatchSoftmax",
    "ItemFrequency",
    "PositionMapping",
    "Retrieval",
]


def __dir__() -> list[str]:
    return sorted(__all__)
