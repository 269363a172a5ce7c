# SPDX-License-Identifier: Apache-2.0
"""Ops on a table: creation, pull, push and maintenance.

All take the handle that `sparse_table_handle` returns and run on the CPU where
the table is placed. They raise `tf.errors.InvalidArgumentError` for a handle of
another kind of resource, an argument of the wrong shape or a value out of
range, and `tf.errors.NotFoundError` for a table that has been destroyed; the
table is unchanged in these cases. Signs are integers of up to 64 bits, of which
uint64 is reinterpreted as int64; floats, booleans and strings raise ValueError.
"""

from collections.abc import Sequence

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
    "waiting",
    "counter_bytes",
    "admitted",
    "evicted",
    "saturated",
    "updated",
)
"""The names of the values of `sparse_table_stats`, in order."""

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
    "Evict",
    "Clear",
    "Compact",
):
    tf.no_gradient(f"TfExt>SparseTable{_op}")


def sparse_table_handle(
    config: str,
    container: str = "",
    shared_name: str = "",
    name: str | None = None,
) -> tf.Tensor:
    r"""Creates a table, or finds one by name.

    Args:
      config: string, the table's configuration: one `key=value` per line.
        `dim`, `initializer`, `name` and `optimizer` are required.
      container: string, the resource container of a named table; "" is the
        default one.
      shared_name: string. If "", every execution creates a new table, which is
        freed with the last reference to its handle. Otherwise the table of
        this name on the device is returned; if there is none, it is created
        and lives until `tf.raw_ops.DestroyResourceOp` removes it.
      name: optional name of the operation.

    Returns:
      resource `[]`, the table's handle.

    Raises:
      tf.errors.InvalidArgumentError: if `config` is invalid.
      tf.errors.OpError: if a table of this name exists, but its dim, dtype,
        seed, initializer, hash version or fields differ.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> handle.dtype
      tf.resource
    """
    return library().tf_ext_sparse_table_handle(
        config=config, container=container, shared_name=shared_name, name=name
    )


def sparse_table_serving_handle(
    config: str, shared_name: str, name: str | None = None
) -> tf.Tensor:
    r"""Creates the table of a SavedModel, or finds it.

    Args:
      config: string, as for `sparse_table_handle`.
      shared_name: string, not empty. All ops of this name on a device share a
        table. It is freed with the last of its handles and of the functions
        and sessions that ran such an op.
      name: optional name of the operation.

    Returns:
      resource `[]`, the table's handle.

    Raises:
      tf.errors.InvalidArgumentError: if `config` is invalid or `shared_name`
        is empty.

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
    handle: tf.Tensor,
    signs: tf.Tensor,
    training: bool | tf.Tensor = False,
    *,
    dim: int,
    statistics: int = 0,
    name: str | None = None,
) -> tf.Tensor:
    r"""Reads the weights of signs, and their statistics.

    The op has no gradient: `EmbeddingFeatures` defines that of its lookup.

    Args:
      handle: resource `[]`.
      signs: int64 `[n]`, any values, possibly repeated.
      training: bool `[]`, whether absent signs are inserted, unless the table
        has admission. If not, their initial weights are returned, or zeros with
        `unknown=zeros` in the config, and the table does not change.
      dim: int, the number of weights in a row of the table.
      statistics: int, how many statistics are read: 0, or how many the table
        has.
      name: optional name of the operation.

    Returns:
      float32 `[n, dim + statistics]`: the weights, followed by the statistics,
      which are 0 for signs without a row.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=constant\ninitializer.value=0.5\n"
      ...     "name=items\noptimizer=sgd")
      >>> tf_ext.ops.sparse_table_pull(handle, [7, -1, 7], dim=2).numpy()
      array([[0.5, 0.5],
             [0.5, 0.5],
             [0.5, 0.5]], dtype=float32)
    """
    signs = to_signs(signs, "sparse_table_pull")
    return library().tf_ext_sparse_table_pull(
        handle, signs, training, dim=dim, statistics=statistics, name=name
    )


def sparse_table_push(
    handle: tf.Tensor,
    signs: tf.Tensor,
    gradients: tf.Tensor,
    statistics: tf.Tensor | None = None,
    *,
    hyperparameters: tf.Tensor,
    step: int | tf.Tensor = 1,
    time: int | tf.Tensor = 0,
    name: str | None = None,
) -> tf.Tensor:
    r"""Updates the rows of signs with the table's update rule.

    If any gradient is not finite, the push fails and no row is updated.

    Args:
      handle: resource `[]`.
      signs: int64 `[n]`. Absent ones are inserted first, if the table admits
        them. A repeated sign is updated once per occurrence, in order, so sum
        its gradients first.
      gradients: float32 `[n, dim]`.
      statistics: float32 `[n, s]` or `[0, 0]`, what is added to the fields
        `show` and `click` of each sign's row, finite and at least 0; s is how
        many of these the table has, or 1 if it has only admission, which counts
        the first, rounded. `[0, 0]`, as None: each sign occurred once, with a
        click of 0. Ignored by tables with neither.
      hyperparameters: float64 `[h]`, those of the update rule, in its order.
      step: int64 `[]`, the number of this update, counted from 1.
      time: int64 `[]`, in seconds since 1970, for a table whose `last_seen` is
        in seconds; ignored otherwise.
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
        handle,
        signs,
        gradients,
        statistics,
        hyperparameters,
        step,
        time,
        name=name,
    )


def sparse_table_size(handle: tf.Tensor, name: str | None = None) -> tf.Tensor:
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


def sparse_table_stats(handle: tf.Tensor, name: str | None = None) -> tf.Tensor:
    r"""Returns statistics of a table.

    Args:
      handle: resource `[]`.
      name: optional name of the operation.

    Returns:
      int64 `[len(TABLE_STATS)]`, in the order of `TABLE_STATS`.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> stats = tf_ext.ops.sparse_table_stats(handle).numpy()
      >>> int(dict(zip(tf_ext.ops.TABLE_STATS, stats))["row_bytes"])
      16
    """
    return library().tf_ext_sparse_table_stats(handle, name=name)


def sparse_table_config(
    handle: tf.Tensor, name: str | None = None
) -> tf.Tensor:
    r"""Returns the configuration of a table.

    Args:
      handle: resource `[]`.
      name: optional name of the operation.

    Returns:
      string `[]`, the config in canonical form: one `key=value` per line,
      sorted by key.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "optimizer=sgd\nname=items\ninitializer=zeros\ndim=2")
      >>> tf_ext.ops.sparse_table_config(handle).numpy().splitlines()[0]
      b'dim=2'
    """
    return library().tf_ext_sparse_table_config(handle, name=name)


def sparse_table_export(
    handle: tf.Tensor,
    cursor: int | tf.Tensor = 0,
    limit: int | tf.Tensor = -1,
    *,
    field_names: Sequence[str],
    field_dtypes: Sequence[tf.DType],
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    r"""Copies rows out of a table.

    An iteration starts with cursor 0, continues with each `next_cursor` and
    ends when that is -1. A row that exists during the whole iteration is
    returned exactly once, even if other rows are inserted and erased meanwhile.
    The fields of a row are copied atomically.

    Args:
      handle: resource `[]`.
      cursor: int64 `[]`, 0 or the last call's `next_cursor`. Any other number
        of at least 0 is a position in the order of the hashes of signs: the
        rows that follow a random one are a random sample.
      limit: int64 `[]`, the maximum number of rows to copy; negative: all.
        Fewer may be copied before the end, too.
      field_names: list of strings, the fields to copy: "weights" and the slots
        of the update rule.
      field_dtypes: list of dtypes, those in which the fields are stored, or
        `tf.float32` for any field of floats.
      name: optional name of the operation.

    Returns:
      A named tuple: `signs` int64 `[n]`; `next_cursor` int64 `[]`; `fields`, a
      list of `[n, count]`, one for each field name.

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
    handle: tf.Tensor,
    signs: tf.Tensor,
    fields: Sequence[tf.Tensor],
    *,
    field_names: Sequence[str],
    clear: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    r"""Sets rows of a table.

    All arguments are checked before the table is changed.

    Args:
      handle: resource `[]`.
      signs: int64 `[n]`. Absent ones are inserted; their fields that are not
        passed get the values of a new row. The last occurrence of a repeated
        sign wins.
      fields: list of `[n, count]`, one for each field name, of the dtype in
        which the field is stored, or float32. Values of float32 are rounded to
        the nearest value of a smaller type, and limited to its finite values.
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


def sparse_table_erase(
    handle: tf.Tensor, signs: tf.Tensor, name: str | None = None
) -> tf.Tensor:
    r"""Removes rows from a table.

    Args:
      handle: resource `[]`.
      signs: int64 `[n]`; absent ones are ignored.
      name: optional name of the operation.

    Returns:
      int64 `[]`, the number of rows removed.

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


def sparse_table_clear(handle: tf.Tensor, name: str | None = None) -> tf.Tensor:
    r"""Removes all rows of a table and frees their memory.

    Args:
      handle: resource `[]`.
      name: optional name of the operation.

    Returns:
      int64 `[]`, the number of rows removed.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> rows = tf_ext.ops.sparse_table_pull(
      ...     handle, [3, 4], training=True, dim=2)
      >>> int(tf_ext.ops.sparse_table_clear(handle))
      2
    """
    return library().tf_ext_sparse_table_clear(handle, name=name)


def sparse_table_compact(
    handle: tf.Tensor, name: str | None = None
) -> tf.Tensor:
    r"""Returns the memory of erased rows to the system.

    No row changes, and other ops can use the table meanwhile. An erasure or
    eviction compacts the table automatically if at least half of the rows in
    memory are free and take at least 32 MiB.

    Args:
      handle: resource `[]`.
      name: optional name of the operation.

    Returns:
      int64 `[]`, the number of bytes that were returned.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> rows = tf_ext.ops.sparse_table_pull(
      ...     handle, tf.range(9000, dtype=tf.int64), training=True, dim=2)
      >>> int(tf_ext.ops.sparse_table_erase(handle, range(10, 9000)))
      8990
      >>> bool(tf_ext.ops.sparse_table_compact(handle) > 100_000)
      True
    """
    return library().tf_ext_sparse_table_compact(handle, name=name)
