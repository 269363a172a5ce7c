# SPDX-License-Identifier: Apache-2.0
"""The rows that warm-up batches read, kept while they are exported."""

from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf

from tf_ext._batch_source import source_with
from tf_ext.serving.row_dtypes import Array
from tf_ext.serving.row_sources import Chunks
from tf_ext.serving.signature import Named
from tf_ext.serving.stock_table import StockTable
from tf_ext.tables.sparse_table import SparseTable

Answer = Callable[[], list[tuple[Named, Named]]]


class WarmupRows:
    """The rows that warm-up batches read, if the model's tables lack them.

    Args:
      tables: dict from the model's tables to the StockTables of the export.
      answer: function that calls the model with the batches.
    """

    def __init__(
        self, tables: dict[SparseTable, StockTable], answer: Answer
    ) -> None:
        self._answer = answer
        self._tables = {id(table): stock for table, stock in tables.items()}
        self._rows: dict[int, dict[int, Array]] = {i: {} for i in self._tables}
        asked: dict[int, list[Array]] = {i: [] for i in self._tables}

        def ask(
            table: SparseTable, signs: tf.Tensor, statistics: int
        ) -> tf.Tensor:
            stock, numbers = self._tables[id(table)], signs.numpy()
            asked[id(table)] += [numbers, stock.shared_signs(numbers)]
            return tf.zeros([len(signs), table.dim + statistics])

        with source_with(lookup=ask):
            answer()
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

    def answers(self) -> list[tuple[Named, Named]]:
        """The model's predictions from the rows that were kept."""
        with source_with(lookup=self._look_up):
            return self._answer()

    def _look_up(
        self, table: SparseTable, signs: tf.Tensor, statistics: int
    ) -> tf.Tensor:
        numbers, kept = signs.numpy(), self._rows[id(table)]
        stock = self._tables[id(table)]
        rows = stock.unknown_rows(numbers)
        shared = stock.shared_signs(numbers)
        for place, (sign, its_shared) in enumerate(
            zip(numbers.tolist(), shared.tolist())
        ):
            if sign in kept:
                rows[place] = kept[sign]
            elif its_shared in kept:
                rows[place, : table.dim] = kept[its_shared][: table.dim]
        return tf.constant(rows[:, : table.dim + statistics])
