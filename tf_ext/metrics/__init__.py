# SPDX-License-Identifier: Apache-2.0
"""Metrics of click models and rankings: Keras metrics, and NumPy functions."""

from tf_ext.metrics.calibration import COPC, CTR, PCTR, CalibrationError
from tf_ext.metrics.normalized_entropy import NormalizedEntropy
from tf_ext.metrics.user_means import UserMean, gauc, ndcg_at_k, recall_at_k

__all__ = [
    "COPC",
    "CTR",
    "PCTR",
    "CalibrationError",
    "NormalizedEntropy",
    "UserMean",
    "gauc",
    "ndcg_at_k",
    "recall_at_k",
]


def __dir__() -> list[str]:
    return sorted(__all__)
