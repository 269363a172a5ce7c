# SPDX-License-Identifier: Apache-2.0
"""Stochastic rounding of the initial weights of small rows, with stock ops.

The steps are those of cc/core/rules/narrow_loops.h. All are exact: integer
operations, and sums of two floats.
"""

import tensorflow as tf

_MAGNITUDE = 0x7FFFFFFF
_SIGN = 0x8000
# Of a float32, how many bits are dropped, and the largest finite value.
_DROPPED = {"float16": 13, "bfloat16": 16}
_LARGEST = {"float16": 0x7BFF, "bfloat16": 0x7F7F}
# 2^-14, below which values of float16 are multiples of 2^-24.
_SMALLEST_NORMAL = 113 << 23


def round_rows(
    rows: tf.Tensor, dtype: str, keys: tf.Tensor, multipliers: tf.Tensor
) -> tf.Tensor:
    """Rounds rows to the type in which a table stores weights.

    Args:
      rows: float32 `[n, dim]`, finite.
      dtype: string, "float16" or "bfloat16".
      keys: uint64 `[n]`, the `RowRoundingKey` of each row.
      multipliers: uint64 `[dim]`, the `PositionMultipliers`.

    Returns:
      float32 `[n, dim]`, values that the type has.
    """
    dropped = _DROPPED[dtype]
    added = _random_bits(keys, multipliers, dropped)
    bits = tf.bitcast(rows, tf.int32)
    magnitude = tf.bitwise.bitwise_and(bits, _int32(_MAGNITUDE))
    sign = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, 16), _SIGN)
    if dtype == "bfloat16":
        half = tf.bitwise.right_shift(magnitude + added, dropped)
        half = tf.minimum(half, _LARGEST[dtype])
        half = tf.bitwise.left_shift(tf.bitwise.bitwise_or(half, sign), 16)
        return tf.bitcast(half, tf.float32)
    # See Float16::Narrow.
    is_tiny = tf.cast(magnitude < _SMALLEST_NORMAL, tf.int32)
    least = tf.bitcast(_SMALLEST_NORMAL * is_tiny, tf.float32)
    moved = tf.bitcast(tf.bitcast(magnitude, tf.float32) + least, tf.int32)
    half = tf.bitwise.right_shift(moved + added, dropped)
    half = half - ((112 << 10) + (1 << 10) * is_tiny)
    half = tf.bitwise.bitwise_or(tf.minimum(half, _LARGEST[dtype]), sign)
    half = tf.bitcast(tf.cast(half, tf.uint16), tf.float16)
    return tf.cast(half, tf.float32)


def _int32(value: int) -> tf.Tensor:
    return tf.constant(value, tf.int32)


def _random_bits(
    keys: tf.Tensor, multipliers: tf.Tensor, count: int
) -> tf.Tensor:
    """`count` random bits for each value, int32 `[n, dim]`."""
    # Even and odd positions use different parts of the key.
    is_odd = tf.bitwise.bitwise_and(tf.range(tf.size(multipliers)), 1)
    shifts = tf.cast(is_odd * 16, tf.uint64)
    factors = _lower_bits(tf.bitwise.right_shift(keys[:, tf.newaxis], shifts))
    added = tf.bitwise.right_shift(keys[:, tf.newaxis], shifts + 32)
    sums = _lower_bits(factors * multipliers + added)
    shift = tf.constant(16 - count, tf.uint64)
    return tf.cast(tf.bitwise.right_shift(sums, shift), tf.int32)


def _lower_bits(values: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.bitwise_and(values, tf.constant(2**16 - 1, tf.uint64))
