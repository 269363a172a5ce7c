# SPDX-License-Identifier: Apache-2.0
"""Sums of the gradients of tables over several steps."""

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext.optimizers.accumulator import TableAccumulators
from tf_ext.regimes import TableGradient


def _gradient(table, signs, values, statistics=None):
    return TableGradient(
        table,
        tf.constant(signs, tf.int64),
        tf.constant(values),
        statistics=None if statistics is None else tf.constant(statistics),
    )


class AccumulatorsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.tables = [
            tf_ext.SparseTable("a", 2, "sgd"),
            tf_ext.SparseTable("b", 1, "adam", statistics=["show", "click"]),
        ]
        self.sums = TableAccumulators()
        self.sums.build(self.tables)

    def taken(self, sums=None):
        """`{table: {sign: values and statistics}}`, whose sums are empty."""
        found = {}
        for one in (sums or self.sums).take():
            values = one.values.numpy()
            if one.table.statistics_width:
                values = np.concatenate([values, one.statistics], 1)
            else:
                self.assertIsNone(one.statistics)
            signs = one.signs.numpy().tolist()
            found[one.table.name] = dict(zip(signs, values.tolist()))
        return found

    def add(self):
        one, two = self.tables
        self.sums.add([_gradient(one, [3, 4], [[1.0, 2.0], [3.0, -4.0]])])
        self.sums.add(
            [
                _gradient(two, [3], [[0.5]], [[2.0, 1.0]]),
                _gradient(one, [4, 9], [[0.5, 0.5], [7.0, 8.0]]),
            ]
        )
        half = tf.constant([[1.5]], tf.float16)
        self.sums.add([_gradient(two, [3], half, [[1.0, 0.0]])])
        self.sums.add([])
        return {
            "a": {3: [1.0, 2.0], 4: [3.5, -3.5], 9: [7.0, 8.0]},
            "b": {3: [2.0, 3.0, 1.0]},
        }

    def test_sums_are_taken_once(self):
        expected = self.add()
        self.assertEqual(self.taken(), expected)
        self.assertEqual(self.taken(), {"a": {}, "b": {}})
        self.assertEqual(int(self.tables[0].size()), 0)

    def test_sums_are_saved(self):
        expected = self.add()
        store = {"other": 5}
        self.sums.save(store)
        again = TableAccumulators()
        again.build(self.tables)
        self.assertEqual(again.load(store), {"other": 5})
        self.assertEqual(self.taken(again), expected)
        self.assertEqual(self.taken(), expected)


if __name__ == "__main__":
    tf.test.main()
