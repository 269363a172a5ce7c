"""Ops on a table: make, pull, push, and what maintains it.

All take the handle that `sparse_table_handle` returns and run on the CPU of the
device where the table is. They raise `tf.errors.InvalidArgumentError` for a
handle of something else, an argument of the wrong shape or a value out of
range, and `tf.errors.NotFoundError` for a table that has been destroyed; the
table then stays as it was. Signs are integers of up to 64 bits, uint64 by their
bits; floats, booleans and strings are a ValueError.
"""

import tensorflow as tf

from tf_ext.ops._library import library
from tf_ext.ops._signs import to_signs

TABLE_STATS = (
    "rows",
    "free_rows",
    "stripes",
    "row_bytes",
    "slab_bytes",
    "index_bytes",
    "max_stripe_rows",
    "min_stripe_rows",
    "max_probe_length",
)
"""What the values of `sparse_table_stats` are, in order."""

for _op in (
    "Handle",
    "ServingHandle",
    "Pull",
    "Push",
    "Size",
    "Stats",
    "Config",
    "Export",
    "Import",
    "Erase",
    "Clear",
):
    tf.no_gradient(f"TfExt>SparseTable{_op}")


def sparse_table_handle(config, container="", shared_name="", name=None):
    r"""Makes a table, or finds one by name.

    Args:
      config: string, what the table is: one `key=value` a line. `dim`,
        `initializer`, `name` and `optimizer` have to be there.
      container: string, the resource container of a named table; "" is the
        default one.
      shared_name: string. If "", every execution makes a new table, which is
        freed with the last reference to its handle. Otherwise the table of
        this name on the device: the one that is there, or a new one, which
        lives until `tf.raw_ops.DestroyResourceOp` removes it.
      name: optional name of the operation.

    Returns:
      resource `[]`, the table's handle.

    Raises:
      tf.errors.InvalidArgumentError: `config` is wrong.
      tf.errors.OpError: a table of the name is there, with another dim, dtype,
        seed, initializer, hash version, or other fields.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> handle.dtype
      tf.resource
    """
    return library().tf_ext_sparse_table_handle(
        config=config, container=container, shared_name=shared_name, name=name
    )


def sparse_table_serving_handle(config, shared_name, name=None):
    r"""Makes the table of a saved model, or finds it.

    Args:
      config: string, as of `sparse_table_handle`.
      shared_name: string, not empty. All ops of this name on a device have the
        same table. It is freed with the last of its handles and of the
        functions and sessions that ran such an op.
      name: optional name of the operation.

    Returns:
      resource `[]`, the table's handle.

    Raises:
      tf.errors.InvalidArgumentError: `config` is wrong, or no name.

    Example:
      >>> handle = tf_ext.ops.sparse_table_serving_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=none", "items")
      >>> int(tf_ext.ops.sparse_table_size(handle))
      0
    """
    return library().tf_ext_sparse_table_serving_handle(
        config=config, shared_name=shared_name, name=name
    )


def sparse_table_pull(
    handle, signs, counts=None, training=False, *, dim, name=None
):
    r"""Reads the weights of signs.

    It has no gradient: the layer that pulls arranges for one.

    Args:
      handle: resource `[]`.
      signs: int64 `[n]`, any values, repeated ones too.
      counts: int64 `[n]` or `[0]`, how often each sign is in the batch, for
        policies that admit a sign after some number of occurrences. None is
        `[0]`.
      training: bool `[]`, whether absent signs are inserted. If not, they read
        the weights that they would start with, and the table does not change.
      dim: int, the table's number of weights in a row.
      name: optional name of the operation.

    Returns:
      float32 `[n, dim]`.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=constant\ninitializer.value=0.5\n"
      ...     "name=items\noptimizer=sgd")
      >>> tf_ext.ops.sparse_table_pull(handle, [7, -1, 7], dim=2).numpy()
      array([[0.5, 0.5],
             [0.5, 0.5],
             [0.5, 0.5]], dtype=float32)
    """
    if counts is None:
        counts = tf.zeros([0], tf.int64)
    signs = to_signs(signs, "sparse_table_pull")
    return library().tf_ext_sparse_table_pull(
        handle, signs, counts, training, dim=dim, name=name
    )


def sparse_table_push(
    handle,
    signs,
    gradients,
    statistics=None,
    *,
    hyperparameters,
    step=1,
    name=None,
):
    r"""Updates the rows of signs by the table's update rule.

    A push is refused whole if one gradient is not finite.

    Args:
      handle: resource `[]`.
      signs: int64 `[n]`. Absent ones are inserted first. A sign that is there
        twice is updated twice, in order: sum its gradients first.
      gradients: float32 `[n, dim]`.
      statistics: float32 `[n, s]` or `[0, 0]`, what else is known of each sign,
        for rules that ask for it. None is `[0, 0]`.
      hyperparameters: float64 `[h]`, those of the update rule, in its order.
      step: int64 `[]`, the number of this update, counted from 1.
      name: optional name of the operation.

    Returns:
      int64 `[]`, the number of updates made.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> int(tf_ext.ops.sparse_table_push(
      ...     handle, [7], [[1.0, -2.0]], hyperparameters=[0.5, 0.0]))
      1
      >>> tf_ext.ops.sparse_table_pull(handle, [7], dim=2).numpy()
      array([[-0.5,  1. ]], dtype=float32)
    """
    if statistics is None:
        statistics = tf.zeros([0, 0], tf.float32)
    signs = to_signs(signs, "sparse_table_push")
    return library().tf_ext_sparse_table_push(
        handle, signs, gradients, statistics, hyperparameters, step, name=name
    )


def sparse_table_size(handle, name=None):
    r"""Counts the rows of a table.

    Args:
      handle: resource `[]`.
      name: optional name of the operation.

    Returns:
      int64 `[]`.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> int(tf_ext.ops.sparse_table_size(handle))
      0
    """
    return library().tf_ext_sparse_table_size(handle, name=name)


def sparse_table_stats(handle, name=None):
    r"""Measures a table.

    Args:
      handle: resource `[]`.
      name: optional name of the operation.

    Returns:
      int64 `[len(TABLE_STATS)]`; what they are is in `TABLE_STATS`.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> stats = tf_ext.ops.sparse_table_stats(handle).numpy()
      >>> int(dict(zip(tf_ext.ops.TABLE_STATS, stats))["row_bytes"])
      16
    """
    return library().tf_ext_sparse_table_stats(handle, name=name)


def sparse_table_config(handle, name=None):
    r"""Tells what a table is.

    Args:
      handle: resource `[]`.
      name: optional name of the operation.

    Returns:
      string `[]`, the config in canonical form: one `key=value` a line, sorted
      by key.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "optimizer=sgd\nname=items\ninitializer=zeros\ndim=2")
      >>> tf_ext.ops.sparse_table_config(handle).numpy().splitlines()[0]
      b'dim=2'
    """
    return library().tf_ext_sparse_table_config(handle, name=name)


def sparse_table_export(
    handle, cursor=0, limit=-1, *, field_names, field_dtypes, name=None
):
    r"""Copies rows out of a table.

    A walk starts with cursor 0, goes on with each `next_cursor` and ends when
    that is -1. Rows that are there from its start to its end are seen exactly
    once, whatever is inserted and erased meanwhile. The fields of a row are
    copied at one moment.

    Args:
      handle: resource `[]`.
      cursor: int64 `[]`, 0 or the last call's `next_cursor`.
      limit: int64 `[]`, the largest number of rows to copy; negative: all.
      field_names: list of strings, the fields to copy: "weights", and what the
        update rule keeps.
      field_dtypes: list of `tf.float32` and `tf.int32`, the fields' types.
      name: optional name of the operation.

    Returns:
      A named tuple: `signs` int64 `[n]`; `next_cursor` int64 `[]`; `fields`, a
      list with `[n, count]` for each of the names.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> rows = tf_ext.ops.sparse_table_pull(
      ...     handle, [3, 4], training=True, dim=2)
      >>> signs, next_cursor, [weights] = tf_ext.ops.sparse_table_export(
      ...     handle, field_names=["weights"], field_dtypes=[tf.float32])
      >>> sorted(signs.numpy().tolist()), int(next_cursor), weights.shape
      ([3, 4], -1, TensorShape([2, 2]))
    """
    return library().tf_ext_sparse_table_export(
        handle,
        cursor,
        limit,
        field_names=field_names,
        Tfields=field_dtypes,
        name=name,
    )


def sparse_table_import(
    handle, signs, fields, *, field_names, clear=False, name=None
):
    r"""Sets rows of a table.

    All arguments are checked before the table is touched.

    Args:
      handle: resource `[]`.
      signs: int64 `[n]`. Absent ones are inserted; those of their fields that
        are not given start as a new row's. If a sign is there twice, the last
        wins.
      fields: list with float32 or int32 `[n, count]` for each of the names.
      field_names: list of strings, the fields to set.
      clear: bool `[]`, whether all rows are removed first.
      name: optional name of the operation.

    Returns:
      int64 `[]`, n.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> int(tf_ext.ops.sparse_table_import(
      ...     handle, [5], [[[1.0, 2.0]]], field_names=["weights"]))
      1
      >>> tf_ext.ops.sparse_table_pull(handle, [5], dim=2).numpy()
      array([[1., 2.]], dtype=float32)
    """
    signs = to_signs(signs, "sparse_table_import")
    return library().tf_ext_sparse_table_import(
        handle, signs, clear, fields, field_names=field_names, name=name
    )


def sparse_table_erase(handle, signs, name=None):
    r"""Removes rows from a table.

    Args:
      handle: resource `[]`.
      signs: int64 `[n]`; absent ones are passed over.
      name: optional name of the operation.

    Returns:
      int64 `[]`, the number of rows that were there.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> rows = tf_ext.ops.sparse_table_pull(
      ...     handle, [3, 4], training=True, dim=2)
      >>> int(tf_ext.ops.sparse_table_erase(handle, [4, 5]))
      1
    """
    signs = to_signs(signs, "sparse_table_erase")
    return library().tf_ext_sparse_table_erase(handle, signs, name=name)


def sparse_table_clear(handle, name=None):
    r"""Removes all rows of a table and gives their memory back.

    Args:
      handle: resource `[]`.
      name: optional name of the operation.

    Returns:
      int64 `[]`, the number of rows that were there.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> rows = tf_ext.ops.sparse_table_pull(
      ...     handle, [3, 4], training=True, dim=2)
      >>> int(tf_ext.ops.sparse_table_clear(handle))
      2
    """
    return library().tf_ext_sparse_table_clear(handle, name=name)
