# SPDX-License-Identifier: Apache-2.0
"""Ops for what changes rows while they are absent from pushes."""

import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>SparseTableShrinkageClock")
tf.no_gradient("TfExt>SparseTableAbsentState")


def sparse_table_shrinkage_clock(
    handle: tf.Tensor, clock: int | tf.Tensor = -1, name: str | None = None
) -> tf.Tensor:
    r"""Returns or sets how far rows with `l2` or `l1` are shrunk when read.

    Each push advances the clock, and a row holds up to which time it has been
    shrunk: its field "shrunk". A table with neither ignores what it is set to,
    and returns 0.

    Args:
      handle: resource `[]`.
      clock: int64 `[]`, what it is set to; -1: it stays as it is.
      name: optional name of the operation.

    Returns:
      int64 `[]`, what it is afterwards.

    Example:
      >>> from tf_ext.ops.table import clock_ops
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nl2=0.1\nname=items\noptimizer=sgd")
      >>> int(clock_ops.sparse_table_shrinkage_clock(handle))
      0
      >>> int(clock_ops.sparse_table_shrinkage_clock(handle, 5))
      5
    """
    return library().tf_ext_sparse_table_shrinkage_clock(
        handle, clock, name=name
    )


def sparse_table_absent_state(
    handle: tf.Tensor, state: str | tf.Tensor = "", name: str | None = None
) -> tf.Tensor:
    r"""Returns or sets what moves rows that are absent from pushes.

    The rule dense_adam does; rows hold up to which push they have been moved:
    their field "caught_up". Tables with other rules ignore what they are set
    to, and return "".

    Args:
      handle: resource `[]`.
      state: string `[]`, what it is set to, a result of this op; "": it stays
        as it is.
      name: optional name of the operation.

    Returns:
      string `[]`, what it is afterwards.

    Example:
      >>> from tf_ext.ops.table import clock_ops
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=dense_adam")
      >>> state = clock_ops.sparse_table_absent_state(handle)
      >>> len(state.numpy())
      56
    """
    return library().tf_ext_sparse_table_absent_state(handle, state, name=name)
