# SPDX-License-Identifier: Apache-2.0
"""The op for the clock of tables with `l2` or `l1`."""

import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>SparseTableShrinkageClock")


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
      >>> from tf_ext.ops.table import shrinkage_ops
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nl2=0.1\nname=items\noptimizer=sgd")
      >>> int(shrinkage_ops.sparse_table_shrinkage_clock(handle))
      0
      >>> int(shrinkage_ops.sparse_table_shrinkage_clock(handle, 5))
      5
    """
    return library().tf_ext_sparse_table_shrinkage_clock(
        handle, clock, name=name
    )
