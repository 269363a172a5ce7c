"""Ops that write and read snapshots: docs/snapshots.md has their format.

They raise `tf.errors.InvalidArgumentError` for an argument that is wrong,
`tf.errors.FailedPreconditionError` for a snapshot that is not the next of the
table's chain, and what the file system reports.
"""

import tensorflow as tf

from tf_ext.ops._library import library

for _op in ("Save", "EndSave", "SetChain", "Restore"):
    tf.no_gradient(f"TfExt>SparseTable{_op}")


def sparse_table_save(
    handle,
    directory,
    snapshot_id,
    base="",
    tracked=False,
    shard=0,
    max_bytes_per_second=0,
    name=None,
):
    r"""Writes the rows of a table, or of one shard of it, to files.

    The files are durable afterwards; none is left after an error. They are a
    snapshot once a manifest names them.

    Args:
      handle: resource `[]`.
      directory: string `[]`, one that exists.
      snapshot_id: string `[]`, 32 hexadecimal digits, never used before.
      base: string `[]`; "" writes all rows, the id of the last snapshot of the
        table's chain what has changed since.
      tracked: bool `[]`, whether this is the first snapshot of a chain, or the
        next. `sparse_table_end_save` has to follow then.
      shard: int64 `[]`, for the names of the files.
      max_bytes_per_second: int64 `[]`, 0 for as fast as it goes.
      name: optional name of the operation.

    Returns:
      `(names [f] string, files [f, 5] int64, chunk_bytes [] int64)`; of each
      file its tag, rows, erased signs, bytes and CRC32C.

    Example:
      >>> import tempfile
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=zeros\nname=items\noptimizer=sgd")
      >>> with tempfile.TemporaryDirectory() as directory:
      ...     names, files, _ = tf_ext.ops.sparse_table_save(
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
        name=name,
    )


def sparse_table_end_save(handle, snapshot_id, committed, name=None):
    """Ends a tracked save.

    Args:
      handle: resource `[]`.
      snapshot_id: string `[]`, that of the save.
      committed: bool `[]`, whether its manifest was written. If not, what
        changed will be in the next one.
      name: optional name of the operation.
    """
    return library().tf_ext_sparse_table_end_save(
        handle, snapshot_id, committed, name=name
    )


def sparse_table_set_chain(handle, snapshot_id, name=None):
    """Begins or ends the marking of changes.

    Args:
      handle: resource `[]`.
      snapshot_id: string `[]`, the snapshot that the table equals and the next
        delta continues; "" ends the chain.
      name: optional name of the operation.
    """
    return library().tf_ext_sparse_table_set_chain(
        handle, snapshot_id, name=name
    )


def sparse_table_restore(
    handle,
    paths,
    files,
    chunk_bytes,
    row_bytes,
    shard=0,
    shards=1,
    verify_only=False,
    file_shards=None,
    stored_shards=1,
    *,
    field_names,
    field_types,
    field_counts,
    field_offsets,
    name=None,
):
    """Applies files of a snapshot to a table, or only checks them.

    Args:
      handle: resource `[]`.
      paths: string `[f]`.
      files: int64 `[f, 5]`, what `sparse_table_save` returned for each.
      chunk_bytes: int64 `[]`.
      row_bytes: int64 `[]`, bytes of a row in the files.
      shard: int64 `[]`, which rows are wanted: those of this shard.
      shards: int64 `[]`, of the table.
      verify_only: bool `[]`, whether the table stays as it is.
      file_shards: int64 `[f]`, which of the snapshot's shards each file holds
        rows of; any other row in it is damage. None: all are of shard 0.
      stored_shards: int64 `[]`, how many shards the snapshot has.
      field_names: list of strings, the fields to set, "weights" among them.
      field_types: list of dtypes.
      field_counts: list of ints, their values in a row.
      field_offsets: list of ints, where they are in a row, in bytes.
      name: optional name of the operation.

    Returns:
      int64 `[]`, the rows set.

    Raises:
      tf.errors.DataLossError: damage; file and byte are named. What was read
        before it has been applied.
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
        verify_only,
        file_shards,
        stored_shards,
        field_names=field_names,
        field_types=field_types,
        field_counts=field_counts,
        field_offsets=field_offsets,
        name=name,
    )


def write_file_atomically(path, contents, name=None):
    """Writes a file that is there whole or not at all, and durable.

    Args:
      path: string `[]`.
      contents: string `[]`.
      name: optional name of the operation.
    """
    return library().tf_ext_write_file_atomically(path, contents, name=name)
