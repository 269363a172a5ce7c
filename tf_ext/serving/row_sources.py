# SPDX-License-Identifier: Apache-2.0
"""The sources of an export's rows: tables and snapshots."""

import contextlib
import dataclasses
import typing
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_ext._batch_source import source_with
from tf_ext._keras import keras
from tf_ext.serving.row_dtypes import Array
from tf_ext.serving.stock_table import StockTable
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


class WarmupRows:
    """The rows that warm-up batches read, for a model whose tables are empty.

    Args:
      model: keras.Model.
      batches: list of inputs of the model.
      tables: dict from the model's tables to the StockTables of the export.
    """

    def __init__(
        self,
        model: keras.Model,
        batches: list[typing.Any],
        tables: dict[SparseTable, StockTable],
    ) -> None:
        self._model, self._batches = model, batches
        self._tables = {id(table): stock for table, stock in tables.items()}
        self._rows: dict[int, dict[int, Array]] = {i: {} for i in self._tables}
        asked: dict[int, list[Array]] = {i: [] for i in self._tables}

        def ask(
            table: SparseTable, signs: tf.Tensor, statistics: int
        ) -> tf.Tensor:
            asked[id(table)].append(signs.numpy())
            return tf.zeros([len(signs), table.dim + statistics])

        self._run(ask)
        self._asked = {
            i: np.unique(np.concatenate([np.zeros(0, np.int64), *signs]))
            for i, signs in asked.items()
        }

    def watched(
        self, table: SparseTable, chunks: Iterable[tuple[Array, Array]]
    ) -> Chunks:
        """Yields a table's rows, and keeps those that the batches read."""
        kept, asked = self._rows[id(table)], self._asked[id(table)]
        for signs, rows in chunks:
            if len(asked):
                for place in np.flatnonzero(np.isin(signs, asked)):
                    kept[int(signs[place])] = rows[place].copy()
            yield signs, rows

    def answers(self) -> list[typing.Any]:
        """The outputs of the model for the batches."""

        def look_up(
            table: SparseTable, signs: tf.Tensor, statistics: int
        ) -> tf.Tensor:
            numbers, kept = signs.numpy(), self._rows[id(table)]
            rows = self._tables[id(table)].unknown_rows(numbers)
            for place, sign in enumerate(numbers.tolist()):
                if sign in kept:
                    rows[place] = kept[sign]
            return tf.constant(rows[:, : table.dim + statistics])

        return self._run(look_up)

    def _run(self, lookup: Callable[..., tf.Tensor]) -> list[typing.Any]:
        with source_with(lookup=lookup):
            return [
                self._model(batch, training=False) for batch in self._batches
            ]
