# SPDX-License-Identifier: Apache-2.0
"""The interface of a training step to the optimizers of both Kerases."""

import collections
import typing
from collections.abc import Sequence

import tensorflow as tf

Clipping = collections.namedtuple(
    "Clipping", ["clipnorm", "global_clipnorm", "clipvalue"]
)


class Rates(typing.NamedTuple):
    """The values from which the rates of tables are computed.

    Attributes:
      iterations: int64 scalar tensor, steps made before this one.
      batches: int64 scalar tensor, at which schedules are: as `iterations`, but
        micro-steps count, as they do in Keras.
      learning_rate: scalar tensor, the wrapped optimizer's.
      factor: float64 scalar tensor, for tables with their own rates.
    """

    iterations: tf.Tensor
    batches: tf.Tensor
    learning_rate: tf.Tensor
    factor: tf.Tensor


class Adapter:
    """The interface of a step to the optimizer of one Keras.

    Attributes:
      clipping: Clipping.
      skips_nonfinite: bool, whether a step whose gradients are not all finite
        is skipped instead of raising an error.
      accumulation: `keras3.Accumulation`, or None without micro-steps.
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
