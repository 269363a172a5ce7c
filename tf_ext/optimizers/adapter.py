# SPDX-License-Identifier: Apache-2.0
"""The interface of a training step to the optimizers of both Kerases."""

import collections
import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.regimes import TableGradient

Clipping = collections.namedtuple(
    "Clipping", ["clipnorm", "global_clipnorm", "clipvalue"]
)


class Rates(typing.NamedTuple):
    """The values from which the rates of tables are computed.

    Attributes:
      iterations: int64 scalar tensor, steps made before this one.
      learning_rate: scalar tensor, the wrapped optimizer's.
      factor: float64 scalar tensor, for tables with their own rates.
    """

    iterations: tf.Tensor
    learning_rate: tf.Tensor
    factor: tf.Tensor


class Adapter:
    """The interface of a step to the optimizer of one Keras.

    Attributes:
      clipping: Clipping.
      skips_nonfinite: bool, whether a step whose gradients are not all finite
        is skipped instead of raising an error.
      accumulation: Accumulation, or None without micro-steps.
    """

    accumulation: typing.Any = None

    def __init__(self, clipping: Clipping, skips_nonfinite: bool) -> None:
        self.clipping = clipping
        self.skips_nonfinite = skips_nonfinite

    def loss_scale(self) -> float | tf.Tensor | None:
        """The factor of the loss: a float, a scalar tensor or None."""
        return None

    def after_update(self) -> None:
        """Called after a step whose gradients are finite."""

    def after_skip(self) -> None:
        """Called instead of a step that is skipped."""

    def rates(self) -> Rates:
        """The `Rates` of this step."""
        raise NotImplementedError

    def apply_dense(
        self, grads: Sequence[typing.Any], variables: Sequence[typing.Any]
    ) -> None:
        """Updates variables on one replica, and counts the step."""
        raise NotImplementedError


class Accumulation:
    """Sums of micro-steps' gradients.

    Attributes:
      steps: int, the number of micro-steps per step.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def add(
        self,
        grads: Sequence[typing.Any],
        variables: Sequence[typing.Any],
        tables: Sequence[TableGradient],
    ) -> None:
        """Adds a micro-step: lists, the last one of TableGradient."""
        raise NotImplementedError

    def is_complete(self) -> tf.Tensor:
        """Whether this is the last micro-step: bool scalar tensor."""
        raise NotImplementedError

    def sums(
        self, variables: Sequence[typing.Any]
    ) -> tuple[list[tf.Tensor], list[TableGradient]]:
        """`(gradients of variables, list of TableGradient)`."""
        raise NotImplementedError

    def clear(self, variables: Sequence[typing.Any]) -> None:
        """Begins a new step."""
        raise NotImplementedError

    def wait(self) -> None:
        """Counts a micro-step that is not the last one."""
        raise NotImplementedError
