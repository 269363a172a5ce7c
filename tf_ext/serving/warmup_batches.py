# SPDX-License-Identifier: Apache-2.0
"""The warm-up batches of an export, and the model's outputs for them."""

import typing
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from tf_ext._batch_source import source_with
from tf_ext._keras import keras
from tf_ext.serving.row_dtypes import Array
from tf_ext.serving.row_sources import Chunks
from tf_ext.serving.signature import Named, Signature, name_outputs
from tf_ext.serving.stock_table import StockTable
from tf_ext.tables.sparse_table import SparseTable


class WarmupBatches:
    """Batches with which a model server warms up.

    Args:
      model: keras.Model.
      signature: Signature of its inputs.
      batches: list of the user's batches.
      tables: dict from the model's tables to the StockTables of the export.
      holds_rows: bool, whether the model's own tables contain the rows. If not,
        the rows that the batches read are kept while they are exported.

    Raises:
      ValueError: if a batch does not fit the signature.
    """

    def __init__(
        self,
        model: keras.Model,
        signature: Signature,
        batches: Sequence[typing.Any],
        tables: dict[SparseTable, StockTable],
        holds_rows: bool,
    ) -> None:
        self._model, self._signature = model, signature
        self._batches = [signature.convert(batch) for batch in batches]
        self._holds_rows = holds_rows
        self._tables = {id(table): stock for table, stock in tables.items()}
        self._rows: dict[int, dict[int, Array]] = {i: {} for i in self._tables}
        asked: dict[int, list[Array]] = {i: [] for i in self._tables}

        def ask(
            table: SparseTable, signs: tf.Tensor, statistics: int
        ) -> tf.Tensor:
            asked[id(table)].append(signs.numpy())
            return tf.zeros([len(signs), table.dim + statistics])

        if not holds_rows:
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

    def answered(self) -> list[tuple[Named, Named]]:
        """The batches and the outputs for them, as named tensors."""
        answers = self._run(None if self._holds_rows else self._look_up)
        return [
            (self._signature.unpack(batch), name_outputs(answer))
            for batch, answer in zip(self._batches, answers, strict=True)
        ]

    def _look_up(
        self, table: SparseTable, signs: tf.Tensor, statistics: int
    ) -> tf.Tensor:
        numbers, kept = signs.numpy(), self._rows[id(table)]
        rows = self._tables[id(table)].unknown_rows(numbers)
        for place, sign in enumerate(numbers.tolist()):
            if sign in kept:
                rows[place] = kept[sign]
        return tf.constant(rows[:, : table.dim + statistics])

    def _run(self, lookup: Callable[..., tf.Tensor] | None) -> list[typing.Any]:
        with source_with(lookup=lookup):
            return [
                self._model(self._signature.complete(batch), training=False)
                for batch in self._batches
            ]
