# SPDX-License-Identifier: Apache-2.0
"""The cosine contrastive loss of SimpleX."""

import typing

import tensorflow as tf

from tf_ext._checks import is_finite, refuse
from tf_ext._keras import keras
from tf_ext.layers.pair_scores import PairLoss, Pairs

_NAME = "CosineContrastive"


@keras.utils.register_keras_serializable(package="tf_ext")
class CosineContrastive(PairLoss):
    """The cosine contrastive loss: negatives only count above a margin.

        loss = 1 - cos(query, positive)
               + negative_weight * mean of max(0, cos(query, negative) - margin)

    It needs hundreds of negatives a positive, most of which are below the
    margin. Both arguments have to be searched for each data set: the paper
    tries margins from 0 to 1, and weights from 1 to 1000.

    Args:
      margin: float, at least -1 and less than 1.
      negative_weight: float above 0.
      **kwargs: `name`.

    Its call arguments and its result are those of `tf_ext.layers.BPR`.

    Raises:
      ValueError: an argument is out of its range, or has another shape or dtype
        than these.

    References:
      [Mao et al., 2021](https://arxiv.org/abs/2109.12613), SimpleX: A simple
      and strong baseline for collaborative filtering, equation 1.

    Example:
    >>> loss = tf_ext.layers.CosineContrastive(margin=0.5, negative_weight=10)
    >>> queries = tf.constant([[1.0, 0.0]])
    >>> positives = tf.constant([[2.0, 0.0]])
    >>> negatives = tf.constant([[3.0, 0.0], [0.0, 1.0]])
    >>> loss(queries, positives, negatives).numpy()
    array([2.5], dtype=float32)
    """

    _name_in_errors = _NAME

    def __init__(
        self, margin: float, negative_weight: float, **kwargs: typing.Any
    ) -> None:
        super().__init__(**kwargs)
        if not is_finite(margin) or not -1 <= margin < 1:
            allowed = "a number of at least -1 and less than 1"
            refuse(_NAME, "margin", allowed, margin)
        if not is_finite(negative_weight) or negative_weight <= 0:
            allowed = "a number above 0"
            refuse(_NAME, "negative_weight", allowed, negative_weight)
        self.margin = float(margin)
        self.negative_weight = float(negative_weight)

    def losses_of(self, pairs: Pairs) -> tf.Tensor:
        """The losses of queries, `[p]`."""
        pairs = pairs._replace(
            queries=tf.nn.l2_normalize(pairs.queries, -1),
            positives=tf.nn.l2_normalize(pairs.positives, -1),
            negatives=tf.nn.l2_normalize(pairs.negatives, -1),
        )
        above = tf.nn.relu(pairs.negative_scores() - self.margin)
        losses = 1.0 - pairs.positive_scores()
        return losses + self.negative_weight * pairs.mean_of_negatives(above)

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments, for Keras's savers."""
        return super().get_config() | {
            "margin": self.margin,
            "negative_weight": self.negative_weight,
        }
