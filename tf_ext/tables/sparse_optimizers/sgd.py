# SPDX-License-Identifier: Apache-2.0
"""Gradient descent."""

import typing

from tf_ext._keras import keras
from tf_ext.tables.sparse_optimizers.base import (
    LearningRate,
    SparseOptimizer,
)


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseSGD(SparseOptimizer):
    """Gradient descent, optionally with momentum: `keras.optimizers.SGD`.

    Args:
      learning_rate: see `SparseOptimizer`.
      momentum: float in [0, 1). If above 0, each row has a momentum slot.
      nesterov: bool, whether to use Nesterov momentum.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseSGD(0.1).slots(dim=4)
    []
    """

    # The rule that has all hyperparameters of the constructor.
    _rule = "momentum"
    momentum: float

    def __init__(
        self,
        learning_rate: LearningRate = None,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float | None = None,
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        self._set(momentum=momentum)
        self.nesterov = bool(nesterov)

    def _rule_in_force(self) -> str:
        return "momentum" if self.momentum else "sgd"

    @classmethod
    def by_name(cls, dim: int) -> typing.Self:
        del dim
        return cls(10.0)
