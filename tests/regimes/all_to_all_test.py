# SPDX-License-Identifier: Apache-2.0
"""What workers tell each other of gradients that cannot be summed."""

import types

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext.ops.exchange import exchange_ops
from tf_ext.regimes import Hyperparameters, TableGradient
from tf_ext.regimes.all_to_all import AllToAll

_FLOAT_MAX = float(np.finfo(np.float32).max)


class _EqualWorkers:
    """Collectives of workers that all have the same batch as this one."""

    def __init__(self, size):
        self.size = size

    def all_to_all(self, pack, dtype, wanted):
        width, _ = exchange_ops.exchange_width(wanted)
        packed = pack(width)
        assert packed.dtype == dtype
        return tf.tile(packed[:1], [self.size, 1])

    def remembered(self, key, first):
        del key
        return types.SimpleNamespace(
            value=tf.constant(first, tf.int64), keep=tf.identity
        )


class SumsThatOverflowTest(parameterized.TestCase, tf.test.TestCase):
    """Owners sum the gradients of a sign over workers and pieces."""

    @parameterized.product(workers=[2, 3], pieces=[1, 2])
    def test_are_noticed_before_they_are_summed(self, workers, pieces):
        table = tf_ext.SparseTable("sums", dim=1, optimizer="sgd")
        # Of the signs, all but the owner's own go to others.
        signs = tf.range(50, dtype=tf.int64)
        limit = _FLOAT_MAX / (workers * pieces)
        for factor, finite in ((0.99, True), (1.01, False)):
            values = tf.fill([50, 1], tf.constant(factor * limit, tf.float32))
            [merged] = AllToAll(_EqualWorkers(workers)).merge(
                [(table, [(signs, values)] * pieces)]
            )
            self.assertGreater(tf.size(merged.signs), 0)
            self.assertEqual(bool(merged.finite), finite)
            if finite:
                self.assertAllClose(
                    merged.values,
                    tf.fill(merged.values.shape, 0.99 * _FLOAT_MAX),
                    rtol=1e-6,
                )


class SumTest(tf.test.TestCase):
    def test_is_that_of_the_workers(self):
        workers = types.SimpleNamespace(
            sum=lambda tensors: [3 * tensor for tensor in tensors]
        )
        found = AllToAll(workers).sum(tf.constant([1.0, 2.0]))
        self.assertAllEqual(found, [3, 6])


class PushTest(tf.test.TestCase):
    def test_all_tables_are_updated_by_one_op(self):
        tables = [
            tf_ext.SparseTable(f"pushed{i}", dim=i + 1, optimizer="sgd")
            for i in range(16)
        ]

        @tf.function
        def push():
            gradients = [
                TableGradient(
                    table,
                    tf.constant([1, 2], tf.int64),
                    tf.ones([2, table.dim]),
                )
                for table in tables
            ]
            return AllToAll(_EqualWorkers(1)).push(
                gradients,
                Hyperparameters(
                    tf.constant([0.5, 0.0] * 16, tf.float64), [2] * 16
                ),
                tf.constant(1, tf.int64),
            )

        graph = push.get_concrete_function().graph
        kinds = [o.type for o in graph.get_operations() if "Push" in o.type]
        self.assertEqual(kinds, ["TfExt>SparseTablesPush"])
        self.assertAllEqual(push(), [2] * 16)


if __name__ == "__main__":
    tf.test.main()
