# SPDX-License-Identifier: Apache-2.0
"""Ops that begin and end an update of a table in place.

In between, `sparse_table_restore` runs with the actions "gather" and "update".
"""

import tensorflow as tf

from tf_ext.ops._library import library

for _op in ("Held", "BeginUpdate", "EndUpdate"):
    tf.no_gradient(f"TfExt>SparseTable{_op}")


def sparse_table_held(handle: tf.Tensor, name: str | None = None) -> tf.Tensor:
    r"""Returns the id of the snapshot whose rows a table holds.

    Args:
      handle: resource `[]`.
      name: optional name of the operation.

    Returns:
      string `[]`, the snapshot's id; "" if there is none, or if rows have been
      changed by anything but updates since.

    Example:
      >>> from tf_ext.ops.snapshot import update_ops
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> number = update_ops.sparse_table_begin_update(handle)
      >>> held = update_ops.sparse_table_end_update(
      ...     handle, number, "0123456789abcdef" * 2)
      >>> update_ops.sparse_table_held(handle).numpy()
      b'0123456789abcdef0123456789abcdef'
    """
    return library().tf_ext_sparse_table_held(handle, name=name)


def sparse_table_begin_update(
    handle: tf.Tensor,
    base: str | tf.Tensor = "",
    whole: bool | tf.Tensor = False,
    name: str | None = None,
) -> tf.Tensor:
    """Begins an update, and aborts any that has not ended.

    Args:
      handle: resource `[]`.
      base: string `[]`, the id of the snapshot that the table must hold; ""
        allows any rows.
      whole: bool `[]`, whether rows that the update does not set are erased at
        its end.
      name: optional name of the operation.

    Returns:
      int64 `[]`, a number for `sparse_table_end_update`.

    Raises:
      tf.errors.FailedPreconditionError: if the table does not hold `base`, or
        has a chain of incremental snapshots and `whole` is True.
    """
    return library().tf_ext_sparse_table_begin_update(
        handle, base, whole, name=name
    )


def sparse_table_end_update(
    handle: tf.Tensor,
    number: int | tf.Tensor,
    snapshot_id: str | tf.Tensor,
    completed: bool | tf.Tensor = True,
    name: str | None = None,
) -> tf.Tensor:
    """Ends an update: erases the rows that the snapshot does not have.

    Args:
      handle: resource `[]`.
      number: int64 `[]`, from `sparse_table_begin_update`.
      snapshot_id: string `[]`, the snapshot whose rows the table holds now; ""
        if it holds those of none, because some of their fields were not read.
      completed: bool `[]`; False aborts the update, and nothing is erased.
      name: optional name of the operation.

    Returns:
      bool `[]`, whether the table holds the rows of the snapshot; False if
      anything else has changed rows since the update began.
    """
    return library().tf_ext_sparse_table_end_update(
        handle, number, completed, snapshot_id, name=name
    )
