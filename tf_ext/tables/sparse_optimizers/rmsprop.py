# SPDX-License-Identifier: Apache-2.0
"""RMSprop."""

import typing

from tf_ext import _rates_by_name as rates_by_name
from tf_ext._keras import keras
from tf_ext.tables.sparse_optimizers.base import (
    LearningRate,
    SparseOptimizer,
)


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseRMSprop(SparseOptimizer):
    """RMSprop: `keras.optimizers.RMSprop` (Tieleman and Hinton, 2012).

    Args:
      learning_rate: see `SparseOptimizer`.
      rho: float in [0, 1), decay of the mean of squared gradients.
      momentum: float in [0, 1). If above 0, each row has a momentum slot.
      epsilon: float >= 0, added under the square root.
      centered: bool, whether the mean gradient is subtracted, which takes
        one more slot.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseRMSprop(momentum=0.9).slots(dim=4)
    [('velocity', tf.float32, 4), ('momentum', tf.float32, 4)]
    """

    _rule = "rmsprop"
    momentum: float

    def __init__(
        self,
        learning_rate: LearningRate = None,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        weight_decay: float | None = None,
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        self._set(rho=rho, momentum=momentum, epsilon=epsilon)
        self.centered = bool(centered)

    def _value(self, name: str) -> typing.Any:
        if name == "momentum_field":
            return self.momentum > 0
        return super()._value(name)

    @classmethod
    def by_name(cls, dim: int) -> typing.Self:
        rate = 0.005 if dim == 1 else rates_by_name.embedding(0.2, dim)
        return cls(rate, epsilon=1e-15)
