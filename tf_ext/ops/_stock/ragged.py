# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on concatenated bags."""

import tensorflow as tf

_SHIFT = 32
_LOW = (1 << _SHIFT) - 1


def repeat(labels: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Repeats each label as often as its count says.

    `tf.repeat` would allocate a matrix of the number of labels times the
    largest count.

    Args:
      labels: int64 `[m]`, each at least 0 and less than 2^31.
      counts: int64 `[m]`, each less than 2^31.

    Returns:
      int64 `[n]`, where n is the sum of the counts.
    """
    return tf.bitwise.right_shift(_labelled(labels, counts), _constant(_SHIFT))


def repeat_and_count(
    labels: tf.Tensor, counts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Like `repeat`, and numbers the repetitions of each label.

    Args:
      labels: int64 `[m]`, each at least 0 and less than 2^31.
      counts: int64 `[m]`, each less than 2^31.

    Returns:
      `(labels, places)`, both int64 `[n]`. The places of each label start at 0.
    """
    both = _labelled(labels, counts)
    return (
        tf.bitwise.right_shift(both, _constant(_SHIFT)),
        tf.bitwise.bitwise_and(both, _constant(_LOW)),
    )


def splits_of(counts: tf.Tensor) -> tf.Tensor:
    """The row splits int64 `[m + 1]` of bags with the sizes int64 `[m]`."""
    return tf.concat([_constant([0]), tf.cumsum(counts)], 0)


def _labelled(labels: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Labels in the high bits, the index of the repetition in the low bits."""
    starts = tf.bitwise.left_shift(labels, _constant(_SHIFT))
    return tf.raw_ops.RaggedRange(
        starts=starts, limits=starts + counts, deltas=_constant(1)
    ).rt_dense_values


def _constant(value: int | list[int]) -> tf.Tensor:
    return tf.constant(value, tf.int64)
