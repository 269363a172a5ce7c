# SPDX-License-Identifier: Apache-2.0
"""Keras metrics of predicted rates: CTR, PCTR, COPC and calibration error.

All are computed from sums over samples, which is what Keras and `tf_ext.Model`
add up over batches, replicas and workers: results do not depend on how samples
are divided. The sums are float64, because float32 stops to count at 2^24.
"""

import typing

import numpy as np
import tensorflow as tf

from tf_ext._checks import check_count
from tf_ext._keras import keras


class _Rate(keras.metrics.Metric):
    """The base of these metrics: sums of samples' values.

    Args:
      name: string, the name of the metric.
      dtype: of the result.
      from_logits: bool, whether predictions are logits.
    """

    def __init__(
        self, name: str, dtype: typing.Any, from_logits: bool = False
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.from_logits = bool(from_logits)

    def _sum(self, name: str, shape: tuple[int, ...] = ()) -> typing.Any:
        return self.add_weight(
            name=name, shape=shape, initializer="zeros", dtype="float64"
        )

    def reset_state(self) -> None:
        """Forgets all samples; tf_keras would assign scalars only."""
        for variable in self.variables:
            variable.assign(np.zeros(variable.shape))

    def _result(self, value: typing.Any) -> tf.Tensor:
        return tf.cast(value, self.dtype or tf.float32)

    def _samples(
        self,
        y_true: typing.Any,
        y_pred: typing.Any,
        sample_weight: typing.Any,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """`(labels, predictions, weights)`, all float64 and of one shape."""
        name = type(self).__name__
        y_pred = tf.cast(y_pred, tf.float64)
        labels = _aligned(name, "y_true", tf.cast(y_true, tf.float64), y_pred)
        if labels.shape.rank != 0:
            if not labels.shape.is_compatible_with(y_pred.shape):
                raise _other_shape(name, "y_true", labels, y_pred)
            tf.debugging.assert_equal(
                tf.shape(labels),
                tf.shape(y_pred),
                f"Argument `y_true` of {name} must have the shape of y_pred",
            )
        if sample_weight is None:
            weights = tf.ones_like(y_pred)
        else:
            weights = _aligned(
                name,
                "sample_weight",
                tf.cast(sample_weight, tf.float64),
                y_pred,
            )
            weights = tf.broadcast_to(weights, tf.shape(y_pred))
        if self.from_logits:
            y_pred = tf.sigmoid(y_pred)
        return labels, y_pred, weights


class _Ratio(_Rate):
    """The base of ratios of two sums over samples.

    PARTS names them: "clicks" of the labels, "predicted" clicks, or "shows".
    """

    PARTS: typing.ClassVar[tuple[str, str]]

    def __init__(
        self, name: str, dtype: typing.Any, from_logits: bool = False
    ) -> None:
        super().__init__(name, dtype, from_logits)
        self.numerator, self.denominator = map(self._sum, self.PARTS)

    def update_state(
        self,
        y_true: typing.Any,
        y_pred: typing.Any,
        sample_weight: typing.Any = None,
    ) -> None:
        """Adds a batch; see the class."""
        labels, predictions, weights = self._samples(
            y_true, y_pred, sample_weight
        )
        values = {
            "clicks": weights * labels,
            "predicted": weights * predictions,
            "shows": weights,
        }
        sums = (self.numerator, self.denominator)
        for total, part in zip(sums, self.PARTS, strict=True):
            total.assign_add(tf.reduce_sum(values[part]))

    def result(self) -> tf.Tensor:
        """The value over all samples so far."""
        return self._result(self.numerator / self.denominator)


class PredictedRate(_Rate):
    """The base of metrics that may be given logits."""

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments, for Keras's savers."""
        return {**super().get_config(), "from_logits": self.from_logits}


def _aligned(
    name: str, argument: str, value: tf.Tensor, y_pred: tf.Tensor
) -> tf.Tensor:
    """The value with an axis of 1 more or less at its end, as Keras allows.

    `[batch]` times `[batch, 1]` would silently become `[batch, batch]`.
    """
    rank, wanted = value.shape.rank, y_pred.shape.rank
    if rank is None or wanted is None:
        # One axis of 1 more, or one axis less, which then must be of 1.
        shape = tf.concat([tf.shape(value), [1]], 0)[: tf.rank(y_pred)]
        return tf.reshape(value, shape)
    if rank in (0, wanted):
        return value
    if rank + 1 == wanted:
        return value[..., tf.newaxis]
    if rank == wanted + 1 and value.shape[-1] in (1, None):
        return tf.squeeze(value, -1)
    raise _other_shape(name, argument, value, y_pred)


def _other_shape(
    name: str, argument: str, value: tf.Tensor, y_pred: tf.Tensor
) -> ValueError:
    return ValueError(
        f"Argument `{argument}` of {name} must have the shape of y_pred, up to "
        f"a last axis of 1. Received: {argument} of shape {value.shape}, "
        f"y_pred of shape {y_pred.shape}"
    )


@keras.utils.register_keras_serializable(package="tf_ext")
class CTR(_Ratio):
    """The click-through rate of the labels: `sum(w * y_true) / sum(w)`.

    The same in every regime, with any shares of samples. NaN before any sample.

    Args:
      name: string, the name of the metric.
      dtype: of the result; sums are float64.

    Call arguments:
      y_true: numbers or booleans, `[batch_size]` or `[batch_size, outputs]`:
        clicks of each sample.
      y_pred: of the same shape; only its shape is used.
      sample_weight: numbers that broadcast to this shape; None: 1 each.

    Raises:
      ValueError: when called, shapes that do not match.
      tf.errors.InvalidArgumentError: so, if shapes are known in steps only.

    Example:
    >>> ctr = tf_ext.metrics.CTR()
    >>> ctr.update_state([1, 0, 0], [0.5, 0.2, 0.2], sample_weight=[1, 1, 2])
    >>> float(ctr.result())
    0.25
    """

    PARTS = ("clicks", "shows")

    def __init__(self, name: str = "ctr", dtype: typing.Any = None) -> None:
        super().__init__(name, dtype)


@keras.utils.register_keras_serializable(package="tf_ext")
class PCTR(PredictedRate, _Ratio):
    """The predicted click-through rate: `sum(w * y_pred) / sum(w)`.

    The same in every regime, with any shares of samples. NaN before any sample.

    Args:
      name: string, the name of the metric.
      dtype: of the result; sums are float64.
      from_logits: bool, whether predictions are logits, of which the sigmoid
        is taken.

    Call arguments:
      y_true: as of `CTR`; only its shape is used.
      y_pred: numbers, `[batch_size]` or `[batch_size, outputs]`: predicted
        clicks of each sample.
      sample_weight: as of `CTR`.

    Raises:
      ValueError: when called, shapes that do not match.
      tf.errors.InvalidArgumentError: so, if shapes are known in steps only.

    Example:
    >>> pctr = tf_ext.metrics.PCTR()
    >>> pctr.update_state([1, 0], [0.75, 0.25], sample_weight=[3, 1])
    >>> float(pctr.result())
    0.625
    """

    PARTS = ("predicted", "shows")

    def __init__(
        self,
        name: str = "pctr",
        dtype: typing.Any = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name, dtype, from_logits)


@keras.utils.register_keras_serializable(package="tf_ext")
class COPC(PredictedRate, _Ratio):
    """Clicks over predicted clicks: `sum(w * y_true) / sum(w * y_pred)`.

    1 if the model predicts as many clicks as there are, above 1 if it predicts
    too few. It is `CTR / PCTR`. The same in every regime, with any shares of
    samples. NaN before any sample.

    Args:
      name: string, the name of the metric.
      dtype: of the result; sums are float64.
      from_logits: bool, whether predictions are logits, of which the sigmoid
        is taken.

    Call arguments:
      y_true: as of `CTR`.
      y_pred: as of `PCTR`.
      sample_weight: as of `CTR`.

    Raises:
      ValueError: when called, shapes that do not match.
      tf.errors.InvalidArgumentError: so, if shapes are known in steps only.

    Example:
    >>> copc = tf_ext.metrics.COPC()
    >>> copc.update_state([1, 0], [0.25, 0.5], sample_weight=[3, 0.5])
    >>> float(copc.result())
    3.0
    """

    PARTS = ("clicks", "predicted")

    def __init__(
        self,
        name: str = "copc",
        dtype: typing.Any = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name, dtype, from_logits)


@keras.utils.register_keras_serializable(package="tf_ext")
class CalibrationError(PredictedRate):
    """The expected calibration error of probabilities, by equal-width bins.

    Predictions from 0 to 1 are divided into `num_bins` bins of equal width,
    which include their upper ends, `(i / n, (i + 1) / n]`, the first one also
    0. The error is the mean over samples of the absolute difference between
    the rate of clicks and the mean prediction in the sample's bin:

        sum over bins |sum(w * y_true) - sum(w * y_pred)| / sum(w)

    With one bin it is `|CTR - PCTR|`. So it is if all predictions are in one
    bin: models of small rates need more bins than the usual 10 or 15. The same
    in every regime, with any shares of samples. NaN before any sample, and as
    soon as a prediction is not a probability.

    Args:
      num_bins: int, at least 1.
      name: string, the name of the metric.
      dtype: of the result; sums are float64.
      from_logits: bool, whether predictions are logits, of which the sigmoid
        is taken.

    Call arguments:
      y_true: as of `CTR`.
      y_pred: numbers from 0 to 1, or logits, `[batch_size]` or
        `[batch_size, outputs]`.
      sample_weight: as of `CTR`.

    Raises:
      ValueError: `num_bins` below 1; when called, shapes that do not match.
      tf.errors.InvalidArgumentError: so, if shapes are known in steps only.

    References:
      [Guo et al., 2017](https://arxiv.org/abs/1706.04599), with weights.

    Example:
    >>> error = tf_ext.metrics.CalibrationError(num_bins=2)
    >>> error.update_state([1, 0, 1, 1], [0.25, 0.25, 0.75, 0.75])
    >>> float(error.result())
    0.25
    """

    def __init__(
        self,
        num_bins: int = 10,
        name: str = "calibration_error",
        dtype: typing.Any = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name, dtype, from_logits)
        check_count("CalibrationError", "num_bins", num_bins, 1)
        self.num_bins = int(num_bins)
        self.differences = self._sum("differences", (self.num_bins,))
        self.shows = self._sum("shows")

    def update_state(
        self,
        y_true: typing.Any,
        y_pred: typing.Any,
        sample_weight: typing.Any = None,
    ) -> None:
        """Adds a batch; see the class."""
        labels, predictions, weights = (
            tf.reshape(values, [-1])
            for values in self._samples(y_true, y_pred, sample_weight)
        )
        differences = tf.where(
            (predictions >= 0) & (predictions <= 1),
            weights * (labels - predictions),
            np.nan,
        )
        # Edges as numbers of NumPy, as scikit-learn has them: products such as
        # 10 * 0.3 are rounded to either side.
        edges = np.linspace(0.0, 1.0, self.num_bins + 1)[:-1]
        bins = tf.searchsorted(edges, predictions, "left") - 1
        self.differences.assign_add(
            tf.math.unsorted_segment_sum(
                differences, tf.maximum(bins, 0), self.num_bins
            )
        )
        self.shows.assign_add(tf.reduce_sum(weights))

    def result(self) -> tf.Tensor:
        """The value over all samples so far."""
        total = tf.reduce_sum(tf.abs(tf.convert_to_tensor(self.differences)))
        return self._result(total / self.shows)

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments, for Keras's savers."""
        return {**super().get_config(), "num_bins": self.num_bins}
