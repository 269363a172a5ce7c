# SPDX-License-Identifier: Apache-2.0
"""Layers: raw features to embeddings, normalisation, losses, retrieval."""

from tf_ext.layers.batch_normalization import BatchNormalization
from tf_ext.layers.bpr import BPR
from tf_ext.layers.cosine_contrastive import CosineContrastive
from tf_ext.layers.embedding_features import EmbeddingFeatures
from tf_ext.layers.in_batch_softmax import InBatchSoftmax
from tf_ext.layers.item_frequency import ItemFrequency
from tf_ext.layers.negative_sampler import NegativeSampler
from tf_ext.layers.position_mapping import PositionMapping
from tf_ext.layers.retrieval import Retrieval
from tf_ext.layers.sampled_softmax import SampledSoftmax

__all__ = [
    "BPR",
    "BatchNormalization",
    "CosineContrastive",
    "EmbeddingFeatures",
    "InBatchSoftmax",
    "ItemFrequency",
    "NegativeSampler",
    "PositionMapping",
    "Retrieval",
    "SampledSoftmax",
]


def __dir__() -> list[str]:
    return sorted(__all__)
