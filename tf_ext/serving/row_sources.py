# SPDX-License-Identifier: Apache-2.0
"""The sources of an export's rows: tables and snapshots."""

import contextlib
import dataclasses
import typing
from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np

from tf_ext.serving.row_dtypes import Array
from tf_ext.snapshot.files import Progress
from tf_ext.snapshot.manifest import SnapshotConflictError
from tf_ext.snapshot.reader import Snapshot
from tf_ext.tables.sparse_table import SparseTable

Chunks: typing.TypeAlias = Generator[tuple[Array, Array], None, None]


@dataclasses.dataclass(frozen=True)
class RowSource:
    """The source of a table's rows.

    Attributes:
      at_most: int, an upper bound of the number of rows.
      chunks: function that returns an iterator of `(signs [n], rows
        [n, dim + s])`, the weights and s statistics, as float32.
      snapshot: string, the id of the snapshot that contains the rows, or None.
    """

    at_most: int
    chunks: Callable[[], Chunks]
    snapshot: str | None = None


def of_table(
    table: SparseTable, names: Sequence[str] | None = None
) -> RowSource:
    """The rows of a table, without slots.

    Args:
      table: SparseTable.
      names: the fields of a row. None: those that an exported model holds.
    """
    names = table.rows.served.names if names is None else names

    def chunks() -> Chunks:
        with contextlib.closing(table.rows.served.chunks()) as rows:
            for signs, fields in rows:
                yield signs, _side_by_side(fields, names)

    return RowSource(table.size(), chunks)


def of_snapshot(
    snapshot: Snapshot, names: Sequence[str] = ("weights",)
) -> RowSource:
    """The rows of a snapshot with its deltas merged, without slots.

    They are read lazily. If another save has replaced the snapshot by then,
    SnapshotConflictError is raised, because the checks that `open_snapshot`
    made no longer apply.

    Args:
      snapshot: Snapshot.
      names: the fields of a row, all of floats.
    """
    opened = snapshot.manifest.id

    def check() -> None:
        if snapshot.manifest.id != opened:
            raise SnapshotConflictError(
                f"{snapshot.path} was replaced by another snapshot while it "
                "was exported. Export it again."
            )

    def chunks() -> Chunks:
        for signs, fields in snapshot.chunks(names):
            check()
            yield signs, _side_by_side(fields, names)
        check()

    at_most = sum(manifest.rows for _, manifest in snapshot.chain)
    return RowSource(at_most, chunks, opened)


def _side_by_side(fields: Mapping[str, Array], names: Sequence[str]) -> Array:
    """Some fields of rows, `[n, count]` each, as one matrix of float32."""
    parts = [fields[name].astype(np.float32, copy=False) for name in names]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, 1)


def counted(chunks: Chunks, progress: Progress | None) -> Chunks:
    """Yields the chunks, and reports the size of each after it was used."""
    for signs, rows in chunks:
        yield signs, rows
        if progress is not None:
            progress(signs.nbytes + rows.nbytes)
