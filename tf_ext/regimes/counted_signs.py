# SPDX-License-Identifier: Apache-2.0
"""Signs and their statistics in one tensor, from a pull to its push.

Of a gradient, only values and indices get from the tape to the optimizer. On
the way, values are scaled and clipped, by wrappers and by users. Indices are
left as they are, and concatenated where tapes, replicas and users add up the
slices of several pulls. So statistics are with the signs: each index has 128
bits, of which 64 are a sign and 32 each of its statistics. TensorFlow's only
type of that size is complex128; nothing computes with the numbers.
"""

import tensorflow as tf

DTYPE = tf.complex128
"""The type of signs with statistics."""

_STATISTICS = 2


def join(signs: tf.Tensor, statistics: tf.Tensor) -> tf.Tensor:
    """Puts statistics with signs.

    Args:
      signs: int64 `[n]`.
      statistics: float32 `[n, s]`, s at most 2.

    Returns:
      complex128 `[n]`.
    """
    missing = _STATISTICS - statistics.shape[1]
    if missing:
        statistics = tf.pad(statistics, [[0, 0], [0, missing]])
    bits = tf.bitcast(statistics, tf.int64)
    return tf.bitcast(tf.stack([signs, bits], 1), DTYPE)


def split(indices: tf.Tensor, width: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Separates signs from statistics.

    Args:
      indices: complex128 `[n]`, as of `join`, of one or more pulls. Or signs,
        int64 `[n]`, of slices that no pull made: each then is one occurrence,
        without a click.
      width: int, the number of statistics that are wanted.

    Returns:
      `(signs [n], statistics [n, width])`, int64 and float32.
    """
    if indices.dtype == DTYPE:
        signs, bits = tf.unstack(tf.bitcast(indices, tf.int64), axis=1)
        return signs, tf.bitcast(bits, tf.float32)[:, :width]
    once = tf.constant([[1.0, 0.0][:width]])
    return indices, tf.tile(once, [tf.size(indices), 1])
