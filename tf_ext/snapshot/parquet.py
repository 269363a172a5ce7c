"""Writes snapshots as Parquet, for other programs to read."""

import contextlib
import os

from tf_ext.snapshot.files import read_again_if_replaced, read_chain
from tf_ext.snapshot.reader import Snapshot
from tf_ext.snapshot.storage import normalised

# Readers take a row group at a time; small ones would make them slow.
_ROW_GROUP_BYTES = 64 << 20


def to_parquet(path, out, progress=None):
    """Writes the rows of a snapshot to a Parquet file.

    The columns are `sign` and the row's fields: int64, then float32 or int32,
    or lists of a fixed size of them for fields of several values. Label, step
    and configuration are in the file's metadata, under names that begin with
    `tf_ext.`. A delta is merged with those that it continues.

    Args:
      path: path-like, the snapshot.
      out: path-like, the file, on this machine; it is replaced once all rows
        are written.
      progress: function that is called with the bytes of each chunk that was
        read. None: nothing is.

    Returns:
      int, the rows written.

    Raises:
      ModuleNotFoundError: pyarrow is not installed.
      DamagedSnapshotError: damage; file and byte are named. `out` is as it was.
      SnapshotConflictError: saves replaced the snapshot again and again.
    """
    modules = _import_pyarrow()
    path, out = normalised(path), normalised(out)
    if "://" in out:
        raise ValueError(f"{out} is not a path of this machine.")
    return read_again_if_replaced(
        path,
        lambda: read_chain(path),
        lambda chain: _convert(*modules, Snapshot(chain), out, progress),
    )


def _convert(pyarrow, parquet, snapshot, out, progress):
    schema = _schema(pyarrow, snapshot)
    part = f"{out}.part"
    written, group = 0, []
    try:
        with parquet.ParquetWriter(part, schema) as writer:
            for signs, fields in snapshot.chunks(progress=progress):
                group.append(_batch(pyarrow, schema, signs, fields))
                written += len(signs)
                if sum(batch.nbytes for batch in group) >= _ROW_GROUP_BYTES:
                    _write(pyarrow, writer, schema, group)
                    group = []
            _write(pyarrow, writer, schema, group)
        os.replace(part, out)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(part)
        raise
    return written


def _import_pyarrow():
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] != "pyarrow":
            raise
        raise ModuleNotFoundError(
            "Parquet files are written by pyarrow, which is not installed: "
            "pip install 'tf_ext[parquet]'",
            name="pyarrow",
        ) from None
    return pyarrow, pyarrow.parquet


def _schema(pyarrow, snapshot):
    columns = [("sign", pyarrow.int64())]
    for name, (dtype, count) in snapshot.fields.items():
        scalar = pyarrow.type_for_alias(dtype)
        columns.append(
            (name, scalar if count == 1 else pyarrow.list_(scalar, count))
        )
    manifest = snapshot.manifest
    return pyarrow.schema(
        columns,
        metadata={
            "tf_ext.label": manifest.label,
            "tf_ext.step": "" if manifest.step is None else str(manifest.step),
            "tf_ext.config": manifest.config,
        },
    )


def _batch(pyarrow, schema, signs, fields):
    arrays = [pyarrow.array(signs)]
    for name, values in fields.items():
        flat = pyarrow.array(values.reshape(-1))
        kind = schema.field(name).type
        if values.shape[1] != 1:
            flat = pyarrow.FixedSizeListArray.from_arrays(flat, type=kind)
        arrays.append(flat)
    return pyarrow.record_batch(arrays, schema=schema)


def _write(pyarrow, writer, schema, group):
    if group:
        table = pyarrow.Table.from_batches(group, schema)
        writer.write_table(table, row_group_size=len(table))
