# SPDX-License-Identifier: Apache-2.0
"""Optimizers: the model's, the update rules of tables, and PCGrad."""

from tf_ext.optimizers.optimizer import Optimizer
from tf_ext.optimizers.pcgrad import pcgrad
from tf_ext.tables.sparse_optimizers import (
    SparseAdagrad,
    SparseAdam,
    SparseFtrl,
    SparseLion,
    SparseOptimizer,
    SparseRMSprop,
    SparseRowWiseAdagrad,
    SparseSGD,
)

__all__ = [
    "Optimizer",
    "SparseAdagrad",
    "SparseAdam",
    "SparseFtrl",
    "SparseLion",
    "SparseOptimizer",
    "SparseRMSprop",
    "SparseRowWiseAdagrad",
    "SparseSGD",
    "pcgrad",
]


def __dir__() -> list[str]:
    return sorted(__all__)
