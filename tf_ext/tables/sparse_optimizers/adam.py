# SPDX-License-Identifier: Apache-2.0
"""Adam, lazy and dense."""

import typing

from tf_ext import _rates_by_name as rates_by_name
from tf_ext._keras import keras
from tf_ext.tables.sparse_optimizers.base import (
    LearningRate,
    SparseOptimizer,
)


@keras.utils.register_keras_serializable(package="tf_ext")
class SparseAdam(SparseOptimizer):
    """`keras.optimizers.Adam` (Kingma and Ba, 2014), lazy or as of a matrix.

    With `absent="keep"`, rows and their moments change when they are pushed,
    and only then: lazy Adam. With `absent="decay"`, a table equals a matrix
    that Keras's Adam trains: in each step, the moments of rows that are absent
    from the batch decay, too, and move their weights on. Rows are caught up
    when they are next read, pushed, saved or exported, with the learning rates
    of the steps that they missed, at a cost that does not depend on how many
    these are. Pulls read the slots of rows, too, and so take longer than those
    of lazy Adam. With `l2`, a row is exact relative to the weights that it had
    when it was last pushed: fewer digits are right of what is left of it once
    it has shrunk to less than a thousandth of them.

    `absent="decay"` needs a `beta_1` of less than `sqrt(beta_2)`, and a
    `beta_2` of about 0.98 or more with the default `beta_1`. Regularize such
    rows with `SparseTable(l2=)`, which is the `weight_decay` of Keras's AdamW;
    `weight_decay` and `l1` are refused. There is no `amsgrad`.

    Args:
      learning_rate: see `SparseOptimizer`.
      beta_1: float in [0, 1), decay of the first moment.
      beta_2: float in [0, 1), decay of the second moment.
      epsilon: float >= 0, added to the square root.
      bias_correction: "row" corrects by the number of updates of each row, as
        for a dense variable, which matters for rare signs; with
        `absent="decay"`, that is the number of all pushes. "global" uses the
        model optimizer's iterations, as Keras does.
      weight_decay: see `SparseOptimizer`.
      absent: "keep" or "decay", what becomes of rows that are absent from a
        batch.

    Example:
    >>> import tf_ext
    >>> tf_ext.optimizers.SparseAdam().slots(dim=4)
    [('m', tf.float32, 4), ('v', tf.float32, 4), ('step', tf.int32, 1)]
    >>> dense = tf_ext.optimizers.SparseAdam(0.1, absent="decay")
    >>> table = tf_ext.SparseTable("user", 1, dense, "zeros")
    >>> table.push([1], [[1.0]])
    1
    >>> once = float(table.pull([1])[0, 0])
    >>> table.push([2], [[1.0]])
    1
    >>> once, float(table.pull([1])[0, 0])  # It moves on.
    (-0.0999..., -0.1670...)
    """

    _rule = "adam"
    beta_1: float
    beta_2: float
    epsilon: float

    def __init__(
        self,
        learning_rate: LearningRate = None,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        bias_correction: str = "row",
        weight_decay: float | None = None,
        absent: str = "keep",
    ) -> None:
        super().__init__(learning_rate, weight_decay)
        self._set(beta_1=beta_1, beta_2=beta_2, epsilon=epsilon)
        if absent not in ("keep", "decay"):
            raise ValueError(
                "Argument `absent` of SparseAdam must be 'keep' or 'decay'. "
                f"Received: absent={absent!r}"
            )
        self.absent = absent
        if bias_correction not in ("row", "global"):
            raise ValueError(
                "Argument `bias_correction` of SparseAdam must be 'row' or "
                f"'global'. Received: bias_correction={bias_correction!r}"
            )
        self.bias_correction = bias_correction
        if self.moves_absent_rows:
            self._check_dense()

    def _check_dense(self) -> None:
        """Raises unless the arguments go together with `absent="decay"`."""
        if self.weight_decay:
            raise ValueError(
                "Argument `weight_decay` of SparseAdam must be None with "
                "absent='decay': use SparseTable(l2=), by which rows decay "
                "while they are absent, too. Received: "
                f"weight_decay={self.weight_decay!r}"
            )
        try:
            self.slots(1)
        except ValueError as error:
            raise ValueError(
                "Arguments `beta_1` and `beta_2` of SparseAdam must go "
                f"together with absent='decay': {error}"
            ) from None

    @property
    def moves_absent_rows(self) -> bool:
        """Whether it moves rows that are absent from batches, too."""
        return self.absent == "decay"

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments; `absent` only if it is "decay"."""
        config = super().get_config()
        if not self.moves_absent_rows:
            del config["absent"]  # As in files of versions that lack it.
        return config

    def _rule_in_force(self) -> str:
        return "dense_adam" if self.moves_absent_rows else self._rule

    @classmethod
    def by_name(cls, dim: int) -> typing.Self:
        return cls(0.01 if dim == 1 else rates_by_name.embedding(0.4, dim))
