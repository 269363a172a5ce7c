# SPDX-License-Identifier: Apache-2.0
"""The op that sums gradients by row.

It raises `tf.errors.InvalidArgumentError` for an argument of the wrong shape
and for inconsistent numbers.
"""

import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>SumSegments")


def sum_segments(
    values: tf.Tensor,
    segments: tf.Tensor,
    count: int | tf.Tensor,
    name: str | None = None,
) -> tf.Tensor:
    """Sums rows by segment, in order.

    The result is bit-identical for any number of threads.

    Args:
      values: float32 `[n, dim]`.
      segments: int32 `[n]`, 0 to `count - 1`.
      count: int64 scalar.
      name: optional name of the operation.

    Returns:
      float32 `[count, dim]`, zeros for segments without rows.

    Example:
      >>> tf_ext.ops.sum_segments(
      ...     [[1.0], [2.0], [4.0]], segments=[0, 2, 0], count=3).numpy()
      array([[5.],
             [0.],
             [2.]], dtype=float32)
    """
    return library().tf_ext_sum_segments(
        values, segments, tf.convert_to_tensor(count, tf.int64), name=name
    )
