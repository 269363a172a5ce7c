# SPDX-License-Identifier: Apache-2.0
"""Converts snapshots to Parquet, for other programs to read."""

import contextlib
import os
import typing
from collections.abc import Iterable, Sequence

import numpy.typing as npt

from tf_ext.snapshot.files import Progress, read_again_if_replaced, read_chain
from tf_ext.snapshot.reader import Snapshot
from tf_ext.snapshot.storage import normalised

# Readers process one row group at a time and are slow on small ones.
_ROW_GROUP_BYTES = 64 << 20
# The types of columns, as `Snapshot.chunks` returns the fields.
_ARROW = {"bfloat16": "float32"}


def to_parquet(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    progress: Progress | None = None,
) -> int:
    """Writes the rows of a snapshot to a Parquet file.

    The columns are `sign`, an int64, and the row's fields: float32, float16 or
    int32, or fixed-size lists of these for fields with several values. Fields
    of bfloat16, which Parquet does not have, are float32. Label, step and
    configuration are in the file's metadata, with keys that start with
    "tf_ext.". A delta is merged with its bases.

    Args:
      path: path-like, the snapshot.
      out: path-like, a local file; it is replaced after all rows have been
        written.
      progress: optional function that is called with the bytes of each chunk
        that has been read.

    Returns:
      int, the number of rows written.

    Raises:
      ModuleNotFoundError: if pyarrow is not installed.
      DamagedSnapshotError: if the snapshot is damaged; names file and byte.
        `out` is unchanged.
      SnapshotConflictError: if saves repeatedly replaced the snapshot.
    """
    modules = import_pyarrow()
    path, out = normalised(path), normalised(out)
    if "://" in out:
        raise ValueError(
            "Argument `out` of to_parquet must be a local path. "
            f"Received: out={out!r}"
        )
    return read_again_if_replaced(
        path,
        lambda: read_chain(path),
        lambda chain: _convert(*modules, Snapshot(chain), out, progress),
    )


def _convert(
    pyarrow: typing.Any,
    parquet: typing.Any,
    snapshot: Snapshot,
    out: str,
    progress: Progress | None,
) -> int:
    schema = _schema(pyarrow, snapshot)
    part = f"{out}.part"
    batches = (
        record_batch(pyarrow, schema, [signs, *fields.values()])
        for signs, fields in snapshot.chunks(progress=progress)
    )
    try:
        with parquet.ParquetWriter(part, schema) as writer:
            written = write_batches(pyarrow, writer, batches)
        os.replace(part, out)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(part)
        raise
    return written


def import_pyarrow() -> tuple[typing.Any, typing.Any]:
    """Imports `pyarrow` and `pyarrow.parquet`, with a helpful error."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "pyarrow":
            raise
        raise ModuleNotFoundError(
            "Parquet files are written by pyarrow, which is not installed: "
            "pip install 'tf_ext[parquet]'",
            name="pyarrow",
        ) from None
    return pyarrow, pyarrow.parquet


def _schema(pyarrow: typing.Any, snapshot: Snapshot) -> typing.Any:
    columns = [("sign", pyarrow.int64())]
    for name, (dtype, count) in snapshot.fields.items():
        scalar = pyarrow.type_for_alias(_ARROW.get(dtype, dtype))
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


def record_batch(
    pyarrow: typing.Any,
    schema: typing.Any,
    columns: Sequence[npt.NDArray[typing.Any]],
) -> typing.Any:
    """Converts rows to an Arrow record batch.

    Args:
      pyarrow: the module.
      schema: pyarrow.Schema of numbers and of fixed-size lists.
      columns: list of arrays, `[n]` or `[n, count]`, in the schema's order.

    Returns:
      pyarrow.RecordBatch.
    """
    arrays = []
    for kind, values in zip(schema.types, columns, strict=True):
        array = pyarrow.array(values.reshape(-1))
        if pyarrow.types.is_fixed_size_list(kind):
            array = pyarrow.FixedSizeListArray.from_arrays(array, type=kind)
        arrays.append(array)
    return pyarrow.record_batch(arrays, schema=schema)


def write_batches(
    pyarrow: typing.Any, writer: typing.Any, batches: Iterable[typing.Any]
) -> int:
    """Writes record batches as row groups that are large enough for readers.

    Args:
      pyarrow: the module.
      writer: pyarrow.parquet.ParquetWriter.
      batches: pyarrow.RecordBatches, which may be small.

    Returns:
      int, the number of rows written.
    """
    written = 0
    group: list[typing.Any] = []

    def write() -> None:
        table = pyarrow.Table.from_batches(group, writer.schema)
        if len(table):
            writer.write_table(table, row_group_size=len(table))
        group.clear()

    for batch in batches:
        group.append(batch)
        written += len(batch)
        if sum(one.nbytes for one in group) >= _ROW_GROUP_BYTES:
            write()
    write()
    return written
