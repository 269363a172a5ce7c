"""Optimizers: the model's, and the update rules of tables."""

from tf_ext.optimizers.optimizer import Optimizer
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
]
