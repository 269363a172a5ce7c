# SPDX-License-Identifier: Apache-2.0
"""What pulls, pushes and the hashing count for metrics."""

import gc
import subprocess
import sys

import pytest
import tensorflow as tf
from absl.testing import absltest

import tf_ext
from tf_ext.ops.exchange import exchange_ops
from tf_ext.ops.table import owner_ops
from tf_ext.ops.table.op_counts import read_counts

pytestmark = pytest.mark.slow_tests(
    "ProcessTest::test_reading_does_not_fix_devices",
)

ops = tf_ext.ops
# Counts belong to names, and the tests of other files have tables, too.
_PREFIX = "op_counts "


def _handle(name, dim=2):
    return ops.sparse_table_handle(
        f"dim={dim}\ninitializer=zeros\nname={_PREFIX}{name}\noptimizer=sgd"
    )


def _push(handle, signs, step=0, gradient=1.0):
    ops.sparse_table_push(
        handle,
        tf.constant(signs, tf.int64),
        tf.fill([len(signs), 2], gradient),
        hyperparameters=[0.5, 0.0],
        step=step,
    )


class TableCountsTest(tf.test.TestCase):
    def of(self, name):
        return read_counts().tables[_PREFIX + name]

    def test_counts_calls_signs_and_time(self):
        handle = _handle("counted")
        self.assertEqual(self.of("counted").step, -1)
        ops.sparse_table_pull(handle, [1, 2, 3], dim=2, training=True)
        ops.sparse_table_pull(
            handle, tf.zeros([0], tf.int64), dim=2, training=True
        )
        _push(handle, [1, 2], step=41)
        _push(handle, [4], step=40)
        found = self.of("counted")
        self.assertEqual(found.pull.signs, 3)
        self.assertEqual(sum(found.pull.calls), 2)
        self.assertEqual(found.push.signs, 3)
        self.assertEqual(sum(found.push.calls), 2)
        self.assertEqual(found.step, 40)  # The latest, not the greatest.
        for op in (found.pull, found.push):
            self.assertGreater(op.seconds, 0)
            self.assertLen(op.calls, len(read_counts().bounds) + 1)
        self.assertEqual(found.stats["rows"], 4)
        self.assertEqual(found.stats["updated"], 3)
        stats = dict(zip(ops.TABLE_STATS, ops.sparse_table_stats(handle)))
        size = found.stats["slab_bytes"] + found.stats["index_bytes"]
        self.assertEqual(size, int(stats["slab_bytes"] + stats["index_bytes"]))

    def test_durations_are_in_the_bucket_of_their_bounds(self):
        handle = _handle("timed")
        for size in (1, 1 << 18):
            before = self.of("timed").pull
            ops.sparse_table_pull(
                handle, tf.range(size, dtype=tf.int64), dim=2, training=True
            )
            after = self.of("timed").pull
            seconds = after.seconds - before.seconds
            [bucket] = [
                index
                for index, (a, b) in enumerate(zip(after.calls, before.calls))
                if a - b == 1
            ]
            bounds = [0.0, *read_counts().bounds, float("inf")]
            # Sums of seconds are rounded.
            self.assertBetween(
                seconds, bounds[bucket] - 1e-9, bounds[bucket + 1] + 1e-9
            )

    def test_bounds_are_from_10_microseconds_to_a_second(self):
        powers = [10.0**exponent for exponent in range(-5, 0)]
        expected = [b * power for power in powers for b in (1, 2.5, 5)] + [1.0]
        self.assertAllClose(read_counts().bounds, expected, rtol=1e-12, atol=0)

    def test_calls_that_fail_are_not_counted(self):
        handle = _handle("failing")
        with self.assertRaises(tf.errors.InvalidArgumentError):
            ops.sparse_table_pull(handle, [1], dim=3, training=True)
        with self.assertRaises(tf.errors.InvalidArgumentError):
            _push(handle, [1], step=7, gradient=float("nan"))
        found = self.of("failing")
        for op in (found.pull, found.push):
            self.assertEqual([op.signs, op.seconds, sum(op.calls)], [0, 0, 0])
        self.assertEqual(found.step, -1)

    def test_exchanges_pull_too(self):
        handles = [_handle("first"), _handle("second")]
        exchange_ops.exchange_pull(
            handles,
            signs=[
                tf.constant([1, 2, 3], tf.int64),
                tf.constant([4], tf.int64),
            ],
            split_sizes=[tf.constant([2, 1], tf.int64)]
            + [tf.constant([0, 1], tf.int64)],
            training=[True, True],
            width=tf.constant(4, tf.int64),
            dims=[2, 2],
        )
        for name, signs in (("first", 3), ("second", 1)):
            found = self.of(name)
            self.assertEqual(found.pull.signs, signs)
            self.assertEqual(sum(found.pull.calls), 1)
            self.assertEqual(found.stats["rows"], signs)

    def test_tables_of_one_name_are_added_and_counts_outlive_them(self):
        handles = [_handle("twin"), _handle("twin")]
        for handle in handles:
            ops.sparse_table_pull(handle, [5, 6], dim=2, training=True)
        self.assertEqual(self.of("twin").stats["rows"], 4)
        self.assertEqual(self.of("twin").pull.signs, 4)
        handles.pop()
        del handle
        gc.collect()
        self.assertEqual(self.of("twin").stats["rows"], 2)
        handles.pop()
        gc.collect()
        self.assertIsNone(self.of("twin").stats)
        self.assertEqual(self.of("twin").pull.signs, 4)

    def test_tables_that_were_released_are_not_there(self):
        handle = _handle("released")
        owner_ops.sparse_table_set_owner(handle, "counts:1", "first")
        ops.sparse_table_pull(handle, [5, 6], dim=2, training=True)
        owner_ops.release_sparse_tables("counts:1", "second")
        self.assertIsNone(self.of("released").stats)
        self.assertEqual(self.of("released").pull.signs, 2)

    def test_names_are_any_text(self):
        name = 'a "b" \\ {é}'
        handle = _handle(name)
        ops.sparse_table_pull(handle, [1], dim=2, training=True)
        self.assertEqual(self.of(name).pull.signs, 1)


class HashingCountsTest(tf.test.TestCase):
    def test_counts_signs(self):
        column = tf_ext.feature_column.category_column("id")
        before = read_counts().hashing
        tf_ext.feature_column.columns_to_bags(
            [column], {"id": tf.constant([[1, 2], [3, 4]], tf.int64)}
        )
        after = read_counts().hashing
        self.assertEqual(after.signs - before.signs, 4)
        self.assertEqual(sum(after.calls) - sum(before.calls), 1)
        self.assertGreater(after.seconds, before.seconds)


class ProcessTest(absltest.TestCase):
    def test_reading_does_not_fix_devices(self):
        program = (
            "import tensorflow as tf\n"
            "from tf_ext.distribute import multi_worker\n"
            "from tf_ext.ops.table import op_counts\n"
            "assert op_counts.read_counts().tables == {}\n"
            "assert not multi_worker._has_begun()\n"
            "tf.constant(0)\n"
            "assert multi_worker._has_begun()\n"
        )
        subprocess.run(
            [sys.executable, "-P", "-c", program], check=True, timeout=200
        )


if __name__ == "__main__":
    tf.test.main()
