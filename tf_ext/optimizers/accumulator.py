# SPDX-License-Identifier: Apache-2.0
"""Accumulated gradients of tables."""

import types
import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext import initializers
from tf_ext.optimizers import hyperparameters
from tf_ext.regimes import TableGradient, shard_ops
from tf_ext.regimes.table_interface import Table
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
        # Hidden, so that checkpoints do not have them here, too.
        self._of = types.SimpleNamespace(tables=[])
        # By name: which tables are trained may differ where they are loaded.
        self._sums: dict[str, CheckpointedRows] = {}

    def build(self, tables: Sequence[SparseTable]) -> None:
        """Makes the tables of sums for `tables`, a list of SparseTable.

        It may be called again, with tables that are trained since.
        """
        for table in tables:
            if any(table is known for known in self._of.tables):
                continue
            self._of.tables.append(table)
            dim = table.dim + table.statistics_width
            config = TableConfig(table.name, dim, _RULE, initializers.Zeros())
            self._sums[self._key(table)] = CheckpointedRows(config)

    def _key(self, table: Table) -> str:
        """Its name, and which one of several of that name it is."""
        namesakes = [one for one in self._of.tables if one.name == table.name]
        [n] = [n for n, one in enumerate(namesakes) if one is table]
        return f"{table.name}#{n}" if n else table.name

    def add(self, gradients: Sequence[TableGradient]) -> None:
        """Adds gradients to the sums.

        Args:
          gradients: list of TableGradient.
        """
        tables = [gradient.table for gradient in gradients]
        self.build(typing.cast(list[SparseTable], tables))
        updates = []
        for gradient in gradients:
            values = tf.cast(gradient.values, tf.float32)
            if gradient.statistics is not None:
                values = tf.concat([values, gradient.statistics], 1)
            sums = self._sums[self._key(gradient.table)]
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
        """Empties the sums: a list of TableGradient.

        Those of tables that have been frozen since wait, as Keras's do.
        """
        taken = []
        for table in self._of.tables:
            if not table.trainable:
                continue
            sums = self._sums[self._key(table)]
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
        for key, sums in self._sums.items():
            keras_files.save(sums, _Prefixed(store, _prefix(key)))

    def load(self, store: keras_files.Store) -> dict[str, typing.Any]:
        """Reads the sums; returns the other entries of the store.

        Those of tables that were frozen when it was written are empty.
        """
        for index, (key, sums) in enumerate(self._sums.items()):
            for prefix in (_prefix(key), f"sums{index}_"):  # An older file's.
                its = _Prefixed(store, prefix)
                if its.keys():
                    keras_files.load(sums, its)
                    break
            else:
                if not keras_files.checks_only():
                    sums.clear()
        return {k: store[k] for k in store.keys() if not k.startswith("sums")}


def _prefix(key: str) -> str:
    # Names of tables have no colon; a slash would be a group of HDF5.
    return f"sums:{key}:"


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
