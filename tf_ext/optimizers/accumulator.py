"""Gradients of tables that wait for the end of an accumulated step."""

import tensorflow as tf

from tf_ext.tables import keras_store
from tf_ext.tables.gradients import TableGradient
from tf_ext.tables.rows import TableRows
from tf_ext.tables.rules import SparseSGD
from tf_ext.tables.shard import config_text

_RULE = SparseSGD(1.0)


class TableAccumulators(tf.Module):
    """Sums of gradients by sign, one table of sums for each table.

    The sums live in tables themselves: all weights start at 0 and are updated
    by SGD at rate 1, so that a row holds minus the sum of its gradients.
    """

    def __init__(self):
        super().__init__(name="table_accumulators")
        self._tables = ()
        self._sums = []

    def build(self, tables):
        """Makes the tables of sums for `tables`, a list of SparseTable."""
        self._tables = tuple(tables)
        for table in tables:
            entries = {
                "name": table.name,
                "dim": str(table.dim),
                "dtype": "float32",
                "hash_version": "1",
                "seed": "0",
                "initializer": "zeros",
                **_RULE.table_config(),
            }
            fields = [("weights", tf.float32, table.dim)]
            self._sums.append(TableRows(config_text(entries), fields))

    def add(self, gradients):
        """Adds gradients to the sums.

        Args:
          gradients: list of TableGradient.
        """
        rate = tf.constant(1.0, tf.float64)
        for table, signs, values, _ in gradients:
            self._sums[self._tables.index(table)].push(
                signs,
                None,  # All are in the one shard.
                tf.cast(values, tf.float32),
                _RULE.hyperparameters(rate),
                tf.constant(1, tf.int64),
            )

    def take(self):
        """Empties the sums: a list of TableGradient."""
        taken = []
        for table, sums in zip(self._tables, self._sums):
            signs, values = sums.export()
            with tf.control_dependencies([signs]):
                sums.clear()
            taken.append(TableGradient(table, signs, -values["weights"]))
        return taken

    def save(self, store):
        """Writes the sums into a Keras store."""
        for index, (table, sums) in enumerate(zip(self._tables, self._sums)):
            keras_store.save(
                sums, table.name, {}, _Prefixed(store, f"sums{index}_")
            )

    def load(self, store):
        """Reads the sums; returns what else the store holds."""
        for index, (table, sums) in enumerate(zip(self._tables, self._sums)):
            keras_store.load(
                sums, table.name, _Prefixed(store, f"sums{index}_")
            )
        return {k: store[k] for k in store.keys() if not k.startswith("sums")}


class _Prefixed:
    """A part of a store: the keys that begin with a prefix, without it."""

    def __init__(self, store, prefix):
        self._store = store
        self._prefix = prefix

    def keys(self):
        return [
            key.removeprefix(self._prefix)
            for key in self._store.keys()
            if key.startswith(self._prefix)
        ]

    def __getitem__(self, key):
        return self._store[self._prefix + key]

    def __setitem__(self, key, value):
        self._store[self._prefix + key] = value
