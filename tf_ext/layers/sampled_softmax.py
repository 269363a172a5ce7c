# SPDX-License-Identifier: Apache-2.0
"""The softmax loss over sampled items, or over all."""

import typing

import tensorflow as tf

from tf_ext._checks import is_finite, refuse
from tf_ext._keras import keras
from tf_ext.layers import softmax_blocks
from tf_ext.layers.item_frequency import codes_of
from tf_ext.layers.pair_scores import (
    Pairs,
    QueryLoss,
    floats,
    to_losses,
    to_pairs,
)

_NAME = "SampledSoftmax"


@keras.utils.register_keras_serializable(package="tf_ext")
class SampledSoftmax(QueryLoss):
    """Cross-entropies of finding the chosen item among sampled ones, or all.

        score(item) = query . item / temperature
        negatives = sum of exp(score(negative) - log_expected_count)
        loss = -log(exp(score(positive)) / (exp(score(positive)) + negatives))

    With `log_expected_counts`, the sum over the sample is an unbiased estimate
    of that over all items. Without, negatives that are all items make it the
    full softmax: `ids` and `negative_ids` leave out the chosen item, which has
    its own term. A sum over shared negatives is computed in blocks, and once
    more for the gradient, in 64 MB and what the vectors take, for any number of
    items and queries; the gradients of both are exact.

    Args:
      temperature: float above 0.
      **kwargs: `name`.

    Call arguments:
      queries: floats `[batch_size, dim]`, or `[batch_size, length, dim]` of
        sequences.
      positives: floats of the shape of `queries`, of the items that were
        chosen.
      negatives: floats `[n, dim]` if all share them, or else of the shape of
        `queries` with `n` before `dim`.
      log_expected_counts: floats of the shape of `negatives` without `dim`, as
        `tf_ext.layers.NegativeSampler` returns them. None for no correction.
      negatives_mask: bool of the shape of `queries`, with `n` instead of `dim`,
        False for what is no negative; as `tf_ext.layers.NegativeSampler`
        returns it. None if all are.
      sample_mask: bool of the shape of `queries` without `dim`, False for
        padding, whose loss is 0. None for no padding.
      ids: integers or strings of the shape of `queries` without `dim`, of the
        items that were chosen: the same among shared negatives are none. None
        if these are others.
      negative_ids: integers or strings `[n]`, with `ids`.

    Returns:
      When called, losses, float32 of the shape of `queries` without `dim`.

    Raises:
      ValueError: an argument is out of its range, or has another shape or dtype
        than these.

    References:
      [Bengio and Senécal, 2008](https://doi.org/10.1109/TNN.2007.912312),
      Adaptive importance sampling to accelerate training of a neural
      probabilistic language model.

    Example:
    >>> softmax = tf_ext.layers.SampledSoftmax()
    >>> queries = tf.constant([[1.0, 0.0], [0.0, 1.0]])
    >>> positives = tf.constant([[1.0, 0.0], [0.0, 1.0]])
    >>> negatives = tf.constant([[0.0, 0.0]])
    >>> softmax(queries, positives, negatives).numpy().round(2)
    array([0.31, 0.31], dtype=float32)

    One negative that stands for ten, and the full softmax over three items:

    >>> ten = tf.math.log([0.1])
    >>> softmax(queries, positives, negatives, ten).numpy().round(2)
    array([1.54, 1.54], dtype=float32)
    >>> items = tf.constant([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> full = softmax(queries, positives, items, ids=tf.constant([7, 8]),
    ...                negative_ids=tf.constant([7, 8, 9]))
    >>> full.numpy().round(2)
    array([0.55, 0.55], dtype=float32)
    """

    def __init__(self, temperature: float = 1.0, **kwargs: typing.Any) -> None:
        super().__init__(**kwargs)
        if not is_finite(temperature) or temperature <= 0:
            refuse(_NAME, "temperature", "a number above 0", temperature)
        self.temperature = float(temperature)

    def call(
        self,
        queries: tf.Tensor,
        positives: tf.Tensor,
        negatives: tf.Tensor,
        log_expected_counts: tf.Tensor | None = None,
        negatives_mask: tf.Tensor | None = None,
        sample_mask: tf.Tensor | None = None,
        ids: tf.Tensor | None = None,
        negative_ids: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """The losses; see the class."""
        pairs = to_pairs(_NAME, queries, positives, negatives, negatives_mask)
        pairs = pairs._replace(queries=pairs.queries / self.temperature)
        bias = None
        if log_expected_counts is not None:
            bias = _bias(log_expected_counts, tf.convert_to_tensor(negatives))
        if (ids is None) != (negative_ids is None) or (
            ids is not None and not pairs.shared
        ):
            allowed = "given with `ids` and with negatives that all share"
            refuse(_NAME, "negative_ids", allowed, negative_ids)
        if pairs.shared:
            sums = _of_shared(pairs, bias, queries, ids, negative_ids)
        else:
            logits = pairs.negative_scores()
            if bias is not None:
                logits -= tf.reshape(bias, tf.shape(logits))
            if pairs.mask is not None:
                masked = softmax_blocks.MASKED
                logits = tf.where(pairs.mask, logits, masked)
            sums = tf.reduce_logsumexp(logits, 1)
        losses = tf.nn.softplus(sums - pairs.positive_scores())
        return to_losses(_NAME, losses, queries, sample_mask)

    def get_config(self) -> dict[str, typing.Any]:
        """The constructor's arguments, for Keras's savers."""
        return super().get_config() | {"temperature": self.temperature}


def _of_shared(
    pairs: Pairs,
    bias: tf.Tensor | None,
    queries: typing.Any,
    ids: typing.Any,
    negative_ids: typing.Any,
) -> tf.Tensor:
    more = {}
    if bias is not None:
        more["bias"] = bias
    if pairs.mask is not None:
        more["mask"] = pairs.mask
    if ids is not None:
        ids = tf.convert_to_tensor(ids)
        shape = tf.convert_to_tensor(queries).shape[:-1]
        if not ids.shape.is_compatible_with(shape):
            refuse(_NAME, "ids", f"integers or strings {shape}", ids.shape)
        more["own"] = codes_of(_NAME, tf.reshape(ids, [-1]))
        more["codes"] = codes_of(_NAME, negative_ids)
        if not more["codes"].shape.is_compatible_with(
            pairs.negatives.shape[:1]
        ):
            allowed = f"of shape {pairs.negatives.shape[:1]}"
            refuse(_NAME, "negative_ids", allowed, more["codes"].shape)
    return softmax_blocks.logsumexp_of(pairs.queries, pairs.negatives, more)


def _bias(log_expected_counts: typing.Any, negatives: tf.Tensor) -> tf.Tensor:
    name, shape = "log_expected_counts", negatives.shape[:-1]
    of_shape = f"{shape}, one a negative"
    bias = floats(_NAME, name, log_expected_counts, of_shape, (shape.rank,))
    if not bias.shape.is_compatible_with(shape):
        refuse(_NAME, name, f"floats {of_shape}", bias.shape)
    return tf.stop_gradient(bias)
