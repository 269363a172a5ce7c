# SPDX-License-Identifier: Apache-2.0
"""Ops that release the tables that a killed run left on servers."""

import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>SparseTableSetOwner")
tf.no_gradient("TfExt>ReleaseSparseTables")


def sparse_table_set_owner(
    handle: tf.Tensor,
    owner: str | tf.Tensor,
    run: str | tf.Tensor,
    name: str | None = None,
) -> tf.Operation | None:
    r"""Records the owner of a table, so that a later run can release it.

    Args:
      handle: resource `[]`.
      owner: string `[]`, an address that is unique among running programs.
      run: string `[]`, the id of one run at this address.
      name: optional name of the operation.

    Raises:
      tf.errors.InvalidArgumentError: if `owner` or `run` is empty or no scalar.

    Example:
      >>> from tf_ext.ops.table import owner_ops
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> owner_ops.sparse_table_set_owner(handle, "10.0.0.1:2222", "first")
    """
    return library().tf_ext_sparse_table_set_owner(
        handle, owner, run, name=name
    )


def release_sparse_tables(
    owner: str | tf.Tensor, run: str | tf.Tensor, name: str | None = None
) -> tf.Tensor:
    r"""Releases the tables that earlier runs left in the op's process.

    These are the tables of `owner` with another run; tables of other owners,
    and those without an owner, are kept. A table is freed when the ops that use
    it have returned. Later ops on it raise
    `tf.errors.FailedPreconditionError`.

    Args:
      owner: string `[]`, the owner of the tables.
      run: string `[]`, the run whose tables are kept.
      name: optional name of the operation.

    Returns:
      int64 `[2]`: the number of tables released, and the bytes of their rows
      and indexes.

    Raises:
      tf.errors.InvalidArgumentError: if `owner` or `run` is empty or no scalar.

    Example:
      >>> from tf_ext.ops.table import owner_ops
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> owner_ops.sparse_table_set_owner(handle, "10.0.0.2:2222", "first")
      >>> tables, _ = owner_ops.release_sparse_tables(
      ...     "10.0.0.2:2222", "second").numpy()
      >>> int(tables)
      1
    """
    return library().tf_ext_release_sparse_tables(owner, run, name=name)
