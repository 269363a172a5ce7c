# SPDX-License-Identifier: Apache-2.0
"""Accumulated gradients of tables."""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext import initializers
from tf_ext.optimizers import hyperparameters
from tf_ext.regimes import TableGradient, shard_ops
from tf_ext.tables.config import TableConfig
from tf_ext.tables.saving import keras_files
from tf_ext.tables.saving.checkpoint import CheckpointedRows
from tf_ext.tables.sparse_optimizers import SparseSGD
from tf_ext.tables.sparse_table import SparseTable

_RULE = SparseSGD(1.0)


class TableAccumulators(tf.Module):
    """Sums of gradients by sign, one table of sums for each table.

    The sums live in tables themselves: all weights start at 0 and are updated
    by SGD at rate 1, so that a row holds minus the sum of its gradients, and
    after them, of its statistics.
    """

    def __init__(self) -> None:
        super().__init__(name="table_accumulators")
        self._tables: tuple[SparseTable, ...] = ()
        self._sums: list[CheckpointedRows] = []

    def build(self, tables: Sequence[SparseTable]) -> None:
        """Makes the tables of sums for `tables`, a list of SparseTable."""
        self._tables = tuple(tables)
        for table in tables:
            dim = table.dim + table.statistics_width
            config = TableConfig(table.name, dim, _RULE, initializers.Zeros())
            self._sums.append(CheckpointedRows(config))

    def add(self, gradients: Sequence[TableGradient]) -> None:
        """Adds gradients to the sums.

        Args:
          gradients: list of TableGradient.
        """
        updates = []
        for gradient in gradients:
            values = tf.cast(gradient.values, tf.float32)
            if gradient.statistics is not None:
                values = tf.concat([values, gradient.statistics], 1)
            sums = self._sums[self._tables.index(gradient.table)]
            # All are in the same shard.
            updates.append(
                shard_ops.RowsUpdate(sums, gradient.signs, None, values)
            )
        if updates:
            rules = [_RULE] * len(updates)
            rates = tf.ones([len(updates)], tf.float64)
            shard_ops.push(
                updates,
                hyperparameters.pack(rules, rates),
                tf.constant(1, tf.int64),
            )

    def take(self) -> list[TableGradient]:
        """Empties the sums: a list of TableGradient."""
        taken = []
        for table, sums in zip(self._tables, self._sums):
            signs, values = sums.export()
            with tf.control_dependencies([signs]):
                sums.clear()
            sums = -values["weights"]
            statistics = None
            if table.statistics_width:
                statistics = sums[:, table.dim :]
                sums = sums[:, : table.dim]
            taken.append(
                TableGradient(table, signs, sums, statistics=statistics)
            )
        return taken

    def save(self, store: keras_files.Store) -> None:
        """Writes the sums into a Keras store."""
        for index, sums in enumerate(self._sums):
            keras_files.save(sums, _Prefixed(store, f"sums{index}_"))

    def load(self, store: keras_files.Store) -> dict[str, typing.Any]:
        """Reads the sums; returns the other entries of the store."""
        for index, sums in enumerate(self._sums):
            keras_files.load(sums, _Prefixed(store, f"sums{index}_"))
        return {k: store[k] for k in store.keys() if not k.startswith("sums")}


class _Prefixed:
    """A view of a store: the keys with a prefix, without the prefix."""

    def __init__(self, store: keras_files.Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def keys(self) -> list[str]:
        return [
            key.removeprefix(self._prefix)
            for key in self._store.keys()
            if key.startswith(self._prefix)
        ]

    def __getitem__(self, key: str) -> typing.Any:
        return self._store[self._prefix + key]

    def __setitem__(self, key: str, value: typing.Any) -> None:
        self._store[self._prefix + key] = value
