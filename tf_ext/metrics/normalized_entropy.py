# SPDX-License-Identifier: Apache-2.0
"""The log loss of predicted rates, relative to that of the mean rate."""

import typing

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext.metrics.calibration import PredictedRate


@keras.utils.register_keras_serializable(package="tf_ext")
class NormalizedEntropy(PredictedRate):
    """The mean log loss divided by that of always predicting the `CTR`.

        sum(w * log_loss(y_true, y_pred)) / sum(w * log_loss(y_true, CTR))

    Below 1 if predictions are better than the mean rate; lower is better.
    Unlike the log loss, values of data with different rates can be compared.
    The same in every regime, with any shares of samples. NaN before any sample,
    and while all labels are equal, as the divisor is 0 then.

    Args:
      name: string, the name of the metric.
      dtype: of the result; sums are float64.
      from_logits: bool, whether predictions are logits, of which the sigmoid
        is taken.

    Call arguments:
      y_true: numbers from 0 to 1, `[batch_size]` or `[batch_size, outputs]`.
      y_pred: probabilities, or logits, of the same shape. Probabilities of 0
        and 1 count as 1e-7 and 1 - 1e-7, as in Keras's log loss.
      sample_weight: as of `CTR`.

    Raises:
      ValueError: when called, shapes that do not match.
      tf.errors.InvalidArgumentError: so, if shapes are known in steps only.

    References:
      [He et al., 2014](https://doi.org/10.1145/2648584.2648589).

    Example:
    >>> entropy = tf_ext.metrics.NormalizedEntropy()
    >>> entropy.update_state([1, 0, 0, 0], [0.25, 0.25, 0.25, 0.25])
    >>> float(entropy.result())
    1.0
    """

    def __init__(
        self,
        name: str = "normalized_entropy",
        dtype: typing.Any = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(name, dtype, from_logits)
        self.loss = self._sum("loss")
        self.clicks = self._sum("clicks")
        self.shows = self._sum("shows")

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
        predictions = tf.clip_by_value(predictions, 1e-7, 1 - 1e-7)
        losses = _log_loss(labels, predictions)
        self.loss.assign_add(tf.reduce_sum(weights * losses))
        self.clicks.assign_add(tf.reduce_sum(weights * labels))
        self.shows.assign_add(tf.reduce_sum(weights))

    def result(self) -> tf.Tensor:
        """The value over all samples so far."""
        rate = self.clicks / self.shows
        return self._result(self.loss / (self.shows * _log_loss(rate, rate)))


def _log_loss(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    # NaN for the rate 0 or 1, of which the loss is 0.
    return -labels * tf.math.log(predictions) - (1 - labels) * tf.math.log1p(
        -predictions
    )
