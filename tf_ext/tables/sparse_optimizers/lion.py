# SPDX-License-Identifier: Apache-2.0
"""Lion."""

import typing

from tf_ext import _rates_by_name as rates_by_name
from tf_ext._keras import keras
from tf_ext.tables.sparse_optimizers.base import (
    LearningRate,
    SparseOptimizer,
)


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseLion(SparseOptimizer):
    """Lion: `keras.optimizers.Lion` (Chen et al., 2023).

    Each weight of a pushed row moves by the learning rate, whatever the
    magnitude of its gradient. This suits large batches and needs a learning
    rate several times smaller than Adam's. A row has one slot, where Adam's
    have two and a step count.

    Args:
      learning_rate: see `SparseOptimizer`.
      beta_1: float in [0, 1), the weight of the momentum in the update.
      beta_2: float in [0, 1), decay of the momentum.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseLion(0.005).slots(dim=4)
    [('momentum', tf.float32, 4)]
    """

    _rule = "lion"

    def __init__(
        self,
        learning_rate: LearningRate = None,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        weight_decay: float | None = None,
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        self._set(beta_1=beta_1, beta_2=beta_2)

    @classmethod
    def by_name(cls, dim: int) -> typing.Self:
        return cls(0.004 if dim == 1 else rates_by_name.embedding(0.16, dim))
