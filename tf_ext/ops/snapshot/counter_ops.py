# SPDX-License-Identifier: Apache-2.0
"""Ops that save and restore counters of signs, for admission by count.

They raise `tf.errors.InvalidArgumentError` for a table without such counters.
"""

import typing

import tensorflow as tf

from tf_ext.ops._library import library

for _op in ("ExportCounters", "ImportCounters", "RestoreCounters"):
    tf.no_gradient(f"TfExt>SparseTable{_op}")


def sparse_table_export_counters(
    handle: tf.Tensor,
    cursor: int | tf.Tensor,
    limit: int | tf.Tensor,
    period: int | tf.Tensor,
    name: str | None = None,
) -> typing.Any:
    r"""Copies the counters of signs without a row out of a table.

    Args:
      handle: resource `[]`.
      cursor: int64 `[]`, 0 or the last call's `next_cursor`.
      limit: int64 `[]`, the number of counters after which the call ends; it
        returns whole 64ths of a table, so there may be more. -1 for all.
      period: int64 `[]`, the current period: the latest of all shards.
      name: optional name of the operation.

    Returns:
      A named tuple: `signs`, int64 `[n]`; `counts`, int32 `[n, 1]`, negative if
      a sign was last counted in the period before; `next_cursor`, int64 `[]`,
      -1 at the end; `its_period`, int64 `[]`, the period of this shard.

    Example:
      >>> from tf_ext.ops.snapshot import counter_ops
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "admission=count\nadmission.n=3\ndim=1\ninitializer=zeros\n"
      ...     "name=items\noptimizer=sgd")
      >>> updated = tf_ext.ops.sparse_table_push(
      ...     handle, [7], [[1.0]], [[2.0]], hyperparameters=[0.5, 0.0])
      >>> found = counter_ops.sparse_table_export_counters(handle, 0, -1, 0)
      >>> found.signs.numpy().tolist(), found.counts.numpy().tolist()
      ([7], [[2]])
    """
    return library().tf_ext_sparse_table_export_counters(
        handle, cursor, limit, period, name=name
    )


def sparse_table_import_counters(
    handle: tf.Tensor,
    signs: tf.Tensor,
    counts: tf.Tensor,
    period: int | tf.Tensor,
    clear: bool | tf.Tensor = False,
    name: str | None = None,
) -> tf.Tensor:
    """Sets counters of signs that have no row.

    Args:
      handle: resource `[]`.
      signs: int64 `[n]`; the last occurrence of a repeated sign wins.
      counts: int32 `[n, 1]`, as exported; those that would have admitted their
        sign are reduced to 1 less.
      period: int64 `[]`, the period as of which they were exported.
      clear: bool `[]`, whether all counters are removed first.
      name: optional name of the operation.

    Returns:
      int64 `[]`, n.
    """
    return library().tf_ext_sparse_table_import_counters(
        handle, signs, counts, period, clear, name=name
    )


def sparse_table_restore_counters(
    handle: tf.Tensor,
    paths: tf.Tensor,
    files: tf.Tensor,
    file_shards: tf.Tensor,
    stored_shards: int | tf.Tensor,
    shard: int | tf.Tensor,
    shards: int | tf.Tensor,
    n: int | tf.Tensor,
    period: int | tf.Tensor,
    load: bool | tf.Tensor,
    name: str | None = None,
) -> tf.Tensor:
    """Sets counters from files of a snapshot, or only checks the files.

    Args:
      handle: resource `[]`.
      paths: string `[f]`.
      files: int64 `[f, 5]`, as returned by `sparse_table_save` for each.
      file_shards: int64 `[f]`, the snapshot's shard of each file.
      stored_shards: int64 `[]`, the number of shards of the snapshot.
      shard: int64 `[]`, the shard whose counters are set.
      shards: int64 `[]`, the number of shards of the table.
      n: int64 `[]`, at how many occurrences the saved table admits a sign.
      period: int64 `[]`, the period as of which they were saved.
      load: bool `[]`, whether the table is changed.
      name: optional name of the operation.

    Returns:
      int64 `[]`, the number of counters of the shard.

    Raises:
      tf.errors.DataLossError: if a file is damaged; chunks that were read
        before have been applied.
    """
    return library().tf_ext_sparse_table_restore_counters(
        handle,
        paths,
        files,
        file_shards,
        stored_shards,
        shard,
        shards,
        n,
        period,
        load,
        name=name,
    )
