# SPDX-License-Identifier: Apache-2.0
"""Writes a table's rows to a Parquet file, for key-value stores."""

import contextlib
import json
import pathlib
import typing
from collections.abc import Iterator, Sequence

from tf_ext import _core
from tf_ext.feature_column.column import Column
from tf_ext.hashing import HASH_VERSION
from tf_ext.serving.row_sources import counted, of_snapshot, of_table
from tf_ext.snapshot import parquet as row_groups
from tf_ext.snapshot.files import Progress
from tf_ext.snapshot.reader import open_snapshot
from tf_ext.tables.config import exported_text
from tf_ext.tables.sparse_table import SparseTable


def write(
    path: pathlib.Path,
    table: SparseTable,
    columns: Sequence[Column],
    snapshot: str | None = None,
    progress: Progress | None = None,
) -> dict[str, typing.Any]:
    """Writes signs and vectors of all rows, in chunks.

    Args:
      path: pathlib.Path, the file.
      table: SparseTable.
      columns: list of the Columns that read the table.
      snapshot: string, the directory of a snapshot from which the rows are
        read instead of the table; its configuration must match the table's.
      progress: function that is called with the number of bytes of rows that
        were written, after each chunk; or None.

    Returns:
      dict, the manifest's description of the file.
    """
    pyarrow, parquet = row_groups.import_pyarrow()
    metadata = metadata_of(table, columns)
    origin: dict[str, typing.Any] = {}
    if snapshot is None:
        source = of_table(table, ["weights"])
    else:
        opened = open_snapshot(snapshot)
        source, manifest = of_snapshot(opened), opened.manifest
        table.rows.served.check_config(exported_text(manifest.config))
        origin = {"snapshot": manifest.id, "step": manifest.step}
    vector = pyarrow.list_(pyarrow.float32(), table.dim)
    schema = pyarrow.schema(
        [("sign", pyarrow.int64()), ("vector", vector)],
        metadata={f"tf_ext.{key}": value for key, value in metadata.items()},
    )

    def batches() -> Iterator[typing.Any]:
        with contextlib.closing(source.chunks()) as chunks:
            for rows in counted(chunks, progress):
                yield row_groups.record_batch(pyarrow, schema, rows)

    # Signs and weights rarely repeat, so dictionary encoding saves nothing.
    with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
        rows = row_groups.write_batches(pyarrow, writer, batches())
    return {
        "file": path.name,
        "name": table.name,
        "rows": rows,
        "dim": table.dim,
        "bytes": path.stat().st_size,
        **origin,
        "config": metadata["config"],
        "schema_crc32c": metadata["schema_crc32c"],
    }


def metadata_of(
    table: SparseTable, columns: Sequence[Column]
) -> dict[str, str]:
    """The file's metadata, which identifies the table and its columns."""
    entries = {
        "table": table.name,
        "dim": str(table.dim),
        "hash_version": str(HASH_VERSION),
        "config": table.rows.served.config,
        "columns": json.dumps(
            sorted({(one.name, one.hashing_identity) for one in columns})
        ),
    }
    text = "\n".join(f"{key}={entries[key]}" for key in sorted(entries))
    return {**entries, "schema_crc32c": f"{_core.crc32c(text.encode()):08x}"}
