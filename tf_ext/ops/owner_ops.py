"""The ops that free what a killed run left in a server's process."""

import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>SparseTableSetOwner")
tf.no_gradient("TfExt>ReleaseSparseTables")


def sparse_table_set_owner(handle, owner, run, name=None):
    r"""Says who made a table, so that a later run can release it.

    Args:
      handle: resource `[]`.
      owner: string `[]`, an address that no two running programs have.
      run: string `[]`, that of one process at this address.
      name: optional name of the operation.

    Raises:
      tf.errors.InvalidArgumentError: `owner` or `run` is empty or no scalar.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> tf_ext.ops.sparse_table_set_owner(handle, "10.0.0.1:2222", "first")
    """
    return library().tf_ext_sparse_table_set_owner(
        handle, owner, run, name=name
    )


def release_sparse_tables(owner, run, name=None):
    r"""Releases the tables that earlier runs left in the op's process.

    These are the tables of `owner` that are of another run; those of other
    owners, and those that `sparse_table_set_owner` was not called for, stay.
    A table is freed when the ops end that work on it. Later ones raise
    `tf.errors.FailedPreconditionError`.

    Args:
      owner: string `[]`, whose tables.
      run: string `[]`, the run whose tables stay.
      name: optional name of the operation.

    Returns:
      int64 `[2]`: the number of tables released, and the bytes of their rows
      and indexes.

    Raises:
      tf.errors.InvalidArgumentError: `owner` or `run` is empty or no scalar.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> tf_ext.ops.sparse_table_set_owner(handle, "10.0.0.2:2222", "first")
      >>> tables, _ = tf_ext.ops.release_sparse_tables(
      ...     "10.0.0.2:2222", "second").numpy()
      >>> int(tables)
      1
    """
    return library().tf_ext_release_sparse_tables(owner, run, name=name)
