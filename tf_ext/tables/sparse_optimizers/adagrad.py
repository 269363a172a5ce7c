# SPDX-License-Identifier: Apache-2.0
"""Adagrad, with an accumulator per weight or per row."""

import typing

from tf_ext import _rates_by_name as rates_by_name
from tf_ext._keras import keras
from tf_ext.tables.sparse_optimizers.base import (
    LearningRate,
    SparseOptimizer,
)


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseAdagrad(SparseOptimizer):
    """Adagrad: `keras.optimizers.Adagrad` (Duchi et al., 2011).

    Args:
      learning_rate: see `SparseOptimizer`.
      initial_accumulator_value: float >= 0, the accumulators' initial value.
      epsilon: float >= 0, added under the square root.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseAdagrad(0.05).slots(dim=4)
    [('accumulator', tf.float32, 4)]
    """

    _rule = "adagrad"

    def __init__(
        self,
        learning_rate: LearningRate = None,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        weight_decay: float | None = None,
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        self._set(
            initial_accumulator_value=initial_accumulator_value,
            epsilon=epsilon,
        )

    @classmethod
    def by_name(cls, dim: int) -> typing.Self:
        rate, start = rates_by_name.adagrad(dim)
        return cls(rate, start, epsilon=0.0)


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseRowWiseAdagrad(SparseAdagrad):
    """Adagrad with one accumulator per row, for the mean squared gradient.

    It takes `4 * (dim - 1)` bytes per row less than Adagrad. The rule is that
    of TorchRec and FBGEMM ("rowwise adagrad"), with Keras's epsilon.

    Args:
      learning_rate: see `SparseOptimizer`.
      initial_accumulator_value: float >= 0, the accumulators' initial value.
      epsilon: float >= 0, added under the square root.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseRowWiseAdagrad(0.05).slots(dim=4)
    [('accumulator', tf.float32, 1)]
    """

    _rule = "row_wise_adagrad"
