# SPDX-License-Identifier: Apache-2.0
"""FTRL-Proximal."""

import typing

from tf_ext import _rates_by_name as rates_by_name
from tf_ext._keras import keras
from tf_ext.tables.sparse_optimizers.base import (
    LearningRate,
    SparseOptimizer,
)


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseFtrl(SparseOptimizer):
    """FTRL-Proximal: `keras.optimizers.Ftrl` (McMahan et al., 2013).

    A push computes the weights of a row from its slot `linear`, which is 0 in
    new rows, as in Keras: initial weights, and those that are set without
    `linear`, are lost at the first push. They stay if `linear` is set, too, to
    `-w * (accumulator ** -learning_rate_power + beta) / learning_rate
    - 2 * w * l2_regularization_strength
    - sign(w) * l1_regularization_strength`.

    Args:
      learning_rate: see `SparseOptimizer`; greater than 0, as it is a divisor.
      learning_rate_power: float <= 0; -0.5 is the paper's square root.
      initial_accumulator_value: float >= 0, the accumulators' initial value.
      l1_regularization_strength: float >= 0; above 0, some weights become
        exactly zero.
      l2_regularization_strength: float >= 0.
      l2_shrinkage_regularization_strength: float >= 0, a penalty on the
        magnitude of pushed rows' weights.
      beta: float >= 0, the paper's beta.
      weight_decay: see `SparseOptimizer`.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseFtrl(0.05).slots(dim=1)
    [('accumulator', tf.float32, 1), ('linear', tf.float32, 1)]
    >>> table = tf_ext.SparseTable("user", 1, tf_ext.optimizers.SparseFtrl(0.5))
    >>> fields = {"weights": [[0.25]], "accumulator": [[4.0]]}
    >>> linear = -0.25 * 4.0 ** 0.5 / 0.5
    >>> _ = table.import_rows([7], fields | {"linear": [[linear]]})
    >>> _ = table.push([7], [[0.0]])
    >>> table.pull([7]).numpy()
    array([[0.25]], dtype=float32)
    """

    _rule = "ftrl"

    def __init__(
        self,
        learning_rate: LearningRate = None,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        weight_decay: float | None = None,
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        self._set(
            learning_rate_power=learning_rate_power,
            initial_accumulator_value=initial_accumulator_value,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
            l2_shrinkage_regularization_strength=(
                l2_shrinkage_regularization_strength
            ),
            beta=beta,
        )

    @classmethod
    def by_name(cls, dim: int) -> typing.Self:
        rate, start = rates_by_name.adagrad(dim)
        return cls(rate, initial_accumulator_value=start)
