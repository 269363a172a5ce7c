# SPDX-License-Identifier: Apache-2.0
"""Ops that write and read snapshots: docs/snapshots.md describes the format.

They raise `tf.errors.InvalidArgumentError` for an invalid argument,
`tf.errors.FailedPreconditionError` for a snapshot that is not the next one of
the table's chain, and the errors of the file system.
"""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.ops._library import library

for _op in ("Save", "EndSave", "SetChain", "Restore"):
    tf.no_gradient(f"TfExt>SparseTable{_op}")


def sparse_table_save(
    handle: tf.Tensor,
    directory: str | tf.Tensor,
    snapshot_id: str | tf.Tensor,
    base: str | tf.Tensor = "",
    tracked: bool | tf.Tensor = False,
    shard: int | tf.Tensor = 0,
    max_bytes_per_second: int | tf.Tensor = 0,
    period: int | tf.Tensor = -1,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    r"""Writes the rows of a table, or of one shard of it, to files.

    The files are durable after `sync_files`; none is left after an error. They
    become a snapshot when a manifest names them.

    Args:
      handle: resource `[]`.
      directory: string `[]`, must exist.
      snapshot_id: string `[]`, 32 hexadecimal digits, unique to the snapshot.
      base: string `[]`; "" to write all rows; the id of the last snapshot of
        the table's chain to write the changes since then.
      tracked: bool `[]`, whether the snapshot starts or continues a chain. If
        so, `sparse_table_end_save` must follow.
      shard: int64 `[]`, the number in the names of the files.
      max_bytes_per_second: int64 `[]`, 0 for no limit.
      period: int64 `[]`, the current period of counters, which are written to
        the last file; -1: they are not written.
      name: optional name of the operation.

    Returns:
      `(names [f] string, files [f, 5] int64, chunk_bytes [] int64)`; `files`
      holds the tag, rows, erased signs, bytes and CRC32C of each file.

    Example:
      >>> from tf_ext.ops.snapshot import snapshot_ops
      >>> import tempfile
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> with tempfile.TemporaryDirectory() as directory:
      ...     names, files, _ = snapshot_ops.sparse_table_save(
      ...         handle, directory, "0123456789abcdef" * 2)
      >>> names.numpy()
      array([b'rows-0123456789abcdef-00000-000.chunks'], dtype=object)
    """
    return library().tf_ext_sparse_table_save(
        handle,
        directory,
        snapshot_id,
        base,
        tracked,
        shard,
        max_bytes_per_second,
        period,
        name=name,
    )


def sparse_table_end_save(
    handle: tf.Tensor,
    snapshot_id: str | tf.Tensor,
    committed: bool | tf.Tensor,
    name: str | None = None,
) -> tf.Operation | None:
    """Ends a tracked save.

    Does nothing for one that has ended, or, unless `committed`, has not begun.

    Args:
      handle: resource `[]`.
      snapshot_id: string `[]`, as passed to `sparse_table_save`.
      committed: bool `[]`, whether the manifest was written. If not, the next
        snapshot will include the same changes.
      name: optional name of the operation.
    """
    return library().tf_ext_sparse_table_end_save(
        handle, snapshot_id, committed, name=name
    )


def sparse_table_set_chain(
    handle: tf.Tensor, snapshot_id: str | tf.Tensor, name: str | None = None
) -> tf.Operation | None:
    """Starts or stops marking changes.

    Args:
      handle: resource `[]`.
      snapshot_id: string `[]`, the snapshot whose rows the table holds, which
        the next delta will continue; "" ends the chain.
      name: optional name of the operation.
    """
    return library().tf_ext_sparse_table_set_chain(
        handle, snapshot_id, name=name
    )


def sparse_table_restore(
    handle: tf.Tensor,
    paths: tf.Tensor,
    files: tf.Tensor,
    chunk_bytes: int | tf.Tensor,
    row_bytes: int | tf.Tensor,
    shard: int | tf.Tensor = 0,
    shards: int | tf.Tensor = 1,
    action: str | tf.Tensor = "load",
    file_shards: tf.Tensor | None = None,
    stored_shards: int | tf.Tensor = 1,
    *,
    field_names: Sequence[str],
    field_types: Sequence[tf.DType],
    field_counts: Sequence[int],
    field_offsets: Sequence[int],
    convert: bool = False,
    name: str | None = None,
) -> typing.Any:
    """Applies files of a snapshot to a table, or only checks them.

    Args:
      handle: resource `[]`.
      paths: string `[f]`.
      files: int64 `[f, 5]`, as returned by `sparse_table_save` for each.
      chunk_bytes: int64 `[]`.
      row_bytes: int64 `[]`, the bytes of a row in the files.
      shard: int64 `[]`, the shard whose rows are applied.
      shards: int64 `[]`, the number of shards of the table.
      action: string `[]`: "load" applies the files chunk by chunk; "verify"
        does not change the table. In an update in place (`update_ops`),
        "gather" collects the signs that are erased in the end; "update" sets
        all other rows.
      file_shards: int64 `[f]`, the snapshot's shard of each file; a row of
        another shard is damage. None: all files are of shard 0.
      stored_shards: int64 `[]`, the number of shards of the snapshot.
      field_names: list of strings, the fields to set, including "weights".
      field_types: list of dtypes.
      field_counts: list of ints, the number of values in a row.
      field_offsets: list of ints, the offsets in a row, in bytes.
      convert: bool, whether floats may be of other types than the table's; they
        are rounded to the nearest value.
      name: optional name of the operation.

    Returns:
      A named tuple: `rows` int64 `[]`, the number of rows set; `converted`
      int64 `[3]`, how many values were of another type than the table's, how
      many of them changed, and how many of those were limited to the largest
      finite value.

    Raises:
      tf.errors.DataLossError: if a file is damaged; names file and byte. Chunks
        that were read before have been applied.
    """
    if file_shards is None:
        file_shards = tf.zeros(tf.shape(paths), tf.int64)
    return library().tf_ext_sparse_table_restore(
        handle,
        paths,
        files,
        chunk_bytes,
        row_bytes,
        shard,
        shards,
        action,
        file_shards,
        stored_shards,
        field_names=field_names,
        field_types=field_types,
        field_counts=field_counts,
        field_offsets=field_offsets,
        convert=convert,
        name=name,
    )


def sync_files(
    directory: str | tf.Tensor,
    names: Sequence[str] | tf.Tensor,
    name: str | None = None,
) -> tf.Operation | None:
    """Makes files durable that `sparse_table_save` has written.

    File systems other than local ones do that when a file is closed.

    Args:
      directory: string `[]`, where the files are; it becomes durable, too.
      names: string `[f]`, the names of the files.
      name: optional name of the operation.
    """
    return library().tf_ext_sync_files(directory, names, name=name)


def write_file_atomically(
    path: str | tf.Tensor, contents: bytes | tf.Tensor, name: str | None = None
) -> tf.Operation | None:
    """Writes a file atomically and durably.

    Args:
      path: string `[]`.
      contents: string `[]`.
      name: optional name of the operation.
    """
    return library().tf_ext_write_file_atomically(path, contents, name=name)
