# SPDX-License-Identifier: Apache-2.0
"""Lazy Adam."""

import typing

from tf_ext import _rates_by_name as rates_by_name
from tf_ext._keras import keras
from tf_ext.tables.sparse_optimizers.base import (
    LearningRate,
    SparseOptimizer,
)


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseAdam(SparseOptimizer):
    """Lazy Adam: `keras.optimizers.Adam` (Kingma and Ba, 2014).

    Args:
      learning_rate: see `SparseOptimizer`.
      beta_1: float in [0, 1), decay of the first moment.
      beta_2: float in [0, 1), decay of the second moment.
      epsilon: float >= 0, added to the square root.
      bias_correction: "row" corrects by the number of updates of each row, as
        for a dense variable, which matters for rare signs; "global" uses the
        model optimizer's iterations, as Keras does.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseAdam().slots(dim=4)
    [('m', tf.float32, 4), ('v', tf.float32, 4), ('step', tf.int32, 1)]
    """

    _rule = "adam"

    def __init__(
        self,
        learning_rate: LearningRate = None,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        bias_correction: str = "row",
        weight_decay: float | None = None,
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        self._set(beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
        if bias_correction not in ("row", "global"):
            raise ValueError(
                "Argument `bias_correction` of SparseAdam must be 'row' or "
                f"'global'. Received: bias_correction={bias_correction!r}"
            )
        self.bias_correction = bias_correction

    @classmethod
    def by_name(cls, dim: int) -> typing.Self:
        return cls(0.01 if dim == 1 else rates_by_name.embedding(0.4, dim))
