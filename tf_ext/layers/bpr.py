# SPDX-License-Identifier: Apache-2.0
"""Bayesian personalized ranking."""

import tensorflow as tf

from tf_ext._keras import keras
from tf_ext.layers.pair_scores import PairLoss, Pairs


@keras.utils.register_keras_serializable(package="tf_ext")
class BPR(PairLoss):
    """The loss of Bayesian personalized ranking: positives above negatives.

        loss = mean over negatives of -log(sigmoid(query . positive
                                                   - query . negative))

    Args:
      **kwargs: `name`.

    Call arguments:
      queries: floats `[batch_size, dim]`, or `[batch_size, length, dim]` of
        sequences.
      positives: floats of the shape of `queries`, of the items that were
        chosen.
      negatives: floats `[n, dim]` if all share them, or else of the shape of
        `queries` with `n` before `dim`.
      negatives_mask: bool of the shape of `queries`, with `n` instead of `dim`,
        False for what is no negative; as `tf_ext.layers.NegativeSampler`
        returns it. None if all are.
      sample_mask: bool of the shape of `queries` without `dim`, False for
        padding, whose loss is 0. None for no padding.

    Returns:
      When called, losses, float32 of the shape of `queries` without `dim`.

    Raises:
      ValueError: an argument has another shape or dtype than these.

    References:
      [Rendle et al., 2009](https://arxiv.org/abs/1205.2618), BPR: Bayesian
      personalized ranking from implicit feedback, equation of BPR-OPT. It has
      one negative a positive.

    Example:
    >>> bpr = tf_ext.layers.BPR()
    >>> queries = tf.constant([[1.0, 0.0], [0.0, 1.0]])
    >>> positives = tf.constant([[2.0, 0.0], [0.0, 0.0]])
    >>> negatives = tf.constant([[0.0, 1.0]])  # of both
    >>> bpr(queries, positives, negatives).numpy().round(2)
    array([0.13, 1.31], dtype=float32)
    """

    _name_in_errors = "BPR"

    def losses_of(self, pairs: Pairs) -> tf.Tensor:
        """The losses of queries, `[p]`."""
        margins = pairs.negative_scores()
        margins -= pairs.positive_scores()[:, tf.newaxis]
        return pairs.mean_of_negatives(tf.nn.softplus(margins))
