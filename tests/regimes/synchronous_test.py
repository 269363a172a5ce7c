# SPDX-License-Identifier: Apache-2.0
"""What one of several workers makes of what all of them send."""

import contextlib
import functools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from clusters import thread_workers

import tf_ext
from tf_ext._keras import keras
from tf_ext.regimes import clock, synchronous
from tf_ext.regimes.synchronous import WorkerExchange
from tf_ext.training.synchronous import checks

pytestmark = pytest.mark.both_kerases(slow=True)

_NOW = 1_700_000_000


class _Workers:
    """Of two workers the second, which sends `mine` after `first`."""

    def __init__(self, first):
        self._first = first
        self.mine = None

    def gather(self, mine):
        self.mine = mine.numpy().tolist()
        return tf.stack([tf.constant(self._first, tf.int64), mine])


class CheckModelTest(absltest.TestCase):
    def test_fit_is_of_a_model_of_ours(self):
        synchronous._check_model(None)
        synchronous._check_model(tf_ext.Model())
        with self.assertRaisesRegex(
            RuntimeError, r"fit\(\) of Model, a Keras model with tables that is"
        ):
            synchronous._check_model(keras.Model())

    def test_the_model_of_the_thread_that_called_fit(self):
        for model, raises in ((tf_ext.Model(), False), (keras.Model(), True)):
            with (
                self.assertRaises(RuntimeError)
                if raises
                else contextlib.nullcontext()
            ):
                WorkerExchange(None).check_fit(lambda model=model: model)

    def test_batch_normalization_is_ours(self):
        model = keras.Sequential([tf_ext.layers.BatchNormalization()])
        checks.check_layers(model)
        model.add(keras.layers.BatchNormalization(name="shares"))
        with self.assertRaisesRegex(ValueError, "Layer 'shares' normalises"):
            checks.check_layers(model)


class MergeSummedTest(tf.test.TestCase, parameterized.TestCase):
    def _merge(self, workers, *values, **options):
        parts = [
            (
                tf_ext.SparseTable(f"t{i}", 1, "sgd", **options),
                [(tf.constant([3 + i], tf.int64), tf.constant([[value]]))],
            )
            for i, value in enumerate(values)
        ]
        return WorkerExchange(workers).merge_summed(parts)

    @parameterized.parameters(
        ((1.0, 2.0), 0, True),
        ((1.0, 2.0), 1, False),
        ((1.0, np.inf), 0, False),
        ((np.nan, 2.0), 0, False),
    )
    def test_all_are_finite_or_none(self, values, first, finite):
        workers = _Workers([first])
        found = self._merge(workers, *values)
        self.assertEqual([bool(t.finite) for t in found], [finite] * 2)
        self.assertEqual([t.time for t in found], [None, None])
        self.assertAllEqual([t.signs[0] for t in found], [3, 4])
        self.assertAllEqual([t.values[0, 0] for t in found], values)
        self.assertEqual(workers.mine, [int(not np.all(np.isfinite(values)))])

    def test_the_time_is_that_of_the_first_worker(self):
        workers = _Workers([0, _NOW])
        policy = tf_ext.eviction.Unseen(seconds=60)
        later = tf.constant(_NOW + 9, tf.int64)
        with mock.patch.object(clock, "seconds", lambda: later):
            found = self._merge(workers, 1.0, 2.0, eviction=policy)
        self.assertAllEqual([t.time for t in found], [_NOW] * 2)
        self.assertAllEqual([t.finite for t in found], [True] * 2)
        self.assertEqual(workers.mine, [0, _NOW + 9])

    def test_nothing(self):
        self.assertEqual(WorkerExchange(None).merge_summed([]), [])

    def test_sums_of_tables_or_variables_alone(self):
        slices = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([3], tf.int64))

        def on(worker):
            table = tf_ext.SparseTable("t", 1, "sgd")
            [[total], none] = worker.exchange.sum_everywhere(
                [tf.constant([1.0])], [], None
            )
            self.assertAllEqual(total, [2.0])
            self.assertEqual(none, [])
            none, [(_, merged)] = worker.exchange.sum_everywhere(
                [], [(table, slices)], None
            )
            self.assertEqual(none, [])
            return merged.values.numpy().tolist()

        self.assertCountEqual(thread_workers.run(2, on), [[[2.0]], []])


class ChunksTest(tf.test.TestCase):
    def test_the_limit_is_that_of_all_workers(self):
        def chunks(worker, count, limit):
            table = tf_ext.SparseTable("t", 1, "sgd")
            signs = tf.range(count, dtype=tf.int64)
            table.push(signs, tf.ones([count, 1]))
            shards, fields = table.rows.shards, table.rows.fields
            return [*worker.processes.chunks(shards, fields, limit)]

        # One row of each worker at least.
        for count, limit, most in (
            (5, 1, 2),
            (5, 3, 2),
            (5, 4, 4),
        ):
            found, none = thread_workers.run(
                2, functools.partial(chunks, count=count, limit=limit)
            )
            self.assertEqual(none, [])
            self.assertLessEqual(max(len(signs) for signs, _ in found), most)
            self.assertEqual(sum(len(signs) for signs, _ in found), 2 * count)

    def test_a_worker_whose_rows_cannot_be_read(self):
        class Broken:
            def export(self, cursor, limit):
                raise OSError("no memory")

        def chunks(worker):
            rows = tf_ext.SparseTable("t", 1, "sgd").rows
            shards = [Broken()] if worker.workers.rank else rows.shards
            return [*worker.processes.chunks(shards, rows.fields, 4)]

        found, broken = map(str, thread_workers.run(2, chunks))
        self.assertIn("Worker 1 could not save the table", found)
        self.assertEqual(broken, "no memory")


if __name__ == "__main__":
    tf.test.main()
