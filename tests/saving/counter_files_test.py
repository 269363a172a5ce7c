# SPDX-License-Identifier: Apache-2.0
"""The counters of admission by count in files of all kinds."""

import os
import threading

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.counter_tables import STEPS, make_model, make_table, train, trained
from models.sharded_tables import bytes_of_rows, counters_of
from saving_util import TestCase
from snapshot_util import run_command

import tf_ext
from tf_ext.admission import Count, Probability
from tf_ext.snapshot import open_snapshot
from tf_ext.tables.saving import snapshot_load

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "RoundTripTest::test_signs_that_got_a_row_meanwhile_get_no_counter",
        "RoundTripTest::test_training_goes_on_as_without_a_break[78]",
        "SnapshotTest::test_followers_read_none",
        "SnapshotTest::test_manifest_files_and_command",
        "SnapshotTest::test_resharded_and_compacted0",
    ),
]


def _save(table, kind, path):
    if kind == "snapshot":
        table.save(path)
    elif kind == "delta":
        # What is counted after the base.
        table.save(f"{path}/0", incremental=True)
        table.push(range(5000, 5010), np.ones([10, 2]), step=STEPS - 1)
        table.save(f"{path}/1", base=f"{path}/0")
    elif kind == "checkpoint":
        tf.train.Checkpoint(table=table).write(f"{path}/x")
    elif kind == "weights":
        os.makedirs(path, exist_ok=True)
        make_model(table).save_weights(f"{path}/x.weights.h5")
    else:
        os.makedirs(path, exist_ok=True)
        make_model(table).save(f"{path}/x.keras")


def _load(table, kind, path):
    if kind == "snapshot":
        table.load(path)
    elif kind == "delta":
        table.load(f"{path}/1")
    elif kind == "checkpoint":
        tf.train.Checkpoint(table=table).read(f"{path}/x").assert_consumed()
    elif kind == "weights":
        make_model(table).load_weights(f"{path}/x.weights.h5")
    else:
        make_model(table).load_weights(f"{path}/x.keras")


_KINDS = ("snapshot", "delta", "checkpoint", "weights", "keras")


class RoundTripTest(TestCase):
    @parameterized.product(kind=_KINDS, shards=[1, 3])
    def test_training_goes_on_as_without_a_break(self, kind, shards):
        table, path = trained(), self.path("saved")
        _save(table, kind, path)
        other = make_table(shards=shards)
        other.push([1, 1, -5], np.ones([3, 2]), step=3)
        _load(other, kind, path)
        period, counters = counters_of(table)
        self.assertEqual(counters_of(other), (period, counters))
        self.assertEqual(period, 7)
        # Of both generations, of all counts.
        self.assertEqual({*counters.values()}, {*range(-4, 5)} - {0})
        for each in (table, other):
            train(each, STEPS, 2 * STEPS)
        self.assertEqual(bytes_of_rows(other), bytes_of_rows(table))
        self.assertEqual(counters_of(other), counters_of(table))

    @parameterized.product(kind=_KINDS)
    def test_into_tables_that_admit_otherwise(self, kind):
        table, path = trained(), self.path("saved")
        _save(table, kind, path)
        period, counters = counters_of(table)
        expected = {
            Count(7, 4): (period, counters),
            Count(3, 4): (
                period,
                {s: min(2, max(-2, c)) for s, c in counters.items()},
            ),
            Count(5): (0, {sign: abs(c) for sign, c in counters.items()}),
            # It is unknown which these would have forgotten.
            Count(5, 3): (0, {}),
            Count(1, 4): (period, {}),
        }
        for policy, found in expected.items():
            other = make_table(policy, shards=3)
            other.push([1, -5], np.ones([2, 2]), step=30)
            _load(other, kind, path)
            self.assertEqual(counters_of(other), found, policy)
        for policy in (None, Probability(0.5)):
            other = make_table(policy)
            _load(other, kind, path)
            self.assertEqual(bytes_of_rows(other), bytes_of_rows(table))
        with tf_ext.serving.weights_only():
            served = make_table()
        _load(served, kind, path)
        self.assertEqual(served.size(), table.size())

    @parameterized.product(kind=_KINDS)
    def test_files_without_counters_leave_none(self, kind):
        plain, path = trained(None), self.path("saved")
        _save(plain, kind, path)
        table = trained()
        _load(table, kind, path)
        self.assertEqual(counters_of(table), (0, {}))
        self.assertEqual(bytes_of_rows(table), bytes_of_rows(plain))

    def test_signs_that_got_a_row_meanwhile_get_no_counter(self):
        # As in a save while training goes on: counters are written first.
        table, path = trained(), self.path("saved")
        table.save(f"{path}/0", incremental=True)
        table.save(f"{path}/1", base=f"{path}/0")
        sign, _ = next(iter(counters_of(table)[1].items()))
        other = make_table()
        other.import_rows([sign], {"weights": [[1.0, 2.0]]})
        snapshot_load.snapshot_files.restore_counters(
            other.rows,
            f"{path}/1",
            open_snapshot(f"{path}/1").manifest,
            weights_only=False,
            load=True,
        )
        expected = counters_of(table)[1]
        del expected[sign]
        self.assertEqual(counters_of(other)[1], expected)

    def test_of_a_save_during_training_none_is_lost(self):
        signs = np.arange(8000)
        table, path = make_table(Count(2), shards=2), self.directory()
        table.push(signs, np.ones([8000, 2]))
        stop = threading.Event()

        def admit():
            for some in np.split(signs, 160):
                table.push(some, np.ones([50, 2]))
                if stop.is_set():
                    return

        thread = threading.Thread(target=admit)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(stop.set)
        table.save(f"{path}/0", incremental=True)
        for number in range(1, 5):
            table.save(f"{path}/{number}", base=f"{path}/{number - 1}")
            other = make_table(Count(2))
            other.load(f"{path}/{number}")
            _, counters = counters_of(other)
            rows = bytes_of_rows(other).keys()
            self.assertNoCommonElements(rows, counters)
            self.assertEqual(rows | counters.keys(), {*signs.tolist()})


class SnapshotTest(TestCase):
    def test_manifest_files_and_command(self):
        table, path = trained(), self.path("0")
        manifest = table.save(path)
        self.assertEqual(manifest.counters.period, 7)
        self.assertEqual(manifest.counters.count, table.stats()["waiting"])
        self.assertEqual([f.shard for f in manifest.counters.files], [0, 1])
        table.save(path)  # replaces them
        names = [n for n in os.listdir(path) if n.startswith("counters-")]
        self.assertLen(names, 2)
        status, out, _ = run_command("inspect", path)
        self.assertEqual(status, 0)
        self.assertRegex(out, r"\ncounters  [\d,]+ in period 7, [\d.]+ kB\n")
        status, out, _ = run_command("verify", path)
        self.assertIn("is whole: 4 files", out)
        self.assertIsNone(trained(None).save(self.path("1")).counters)

    def test_replaced_by_in_place_loads_and_deltas(self):
        table, path = trained(), self.directory()
        table.save(f"{path}/0", incremental=True)
        first = counters_of(table)
        train(table, STEPS, STEPS + 9)
        table.save(f"{path}/1", base=f"{path}/0")
        self.assertNotEqual(counters_of(table), first)
        other = make_table(shards=3)
        train(other, 50, 60)
        other.load(f"{path}/0", in_place=True)
        self.assertEqual(counters_of(other), first)
        other.apply_delta(f"{path}/1")
        self.assertEqual(counters_of(other), counters_of(table))
        for in_place in (False, True):
            other.load(f"{path}/0", weights_only=True, in_place=in_place)
            self.assertEqual(counters_of(other), (0, {}))
            other.load(f"{path}/1", in_place=in_place)
            self.assertEqual(counters_of(other), counters_of(table))

    def test_followers_read_none(self):
        table, path = trained(), self.path("0")
        table.save(path)
        other = make_table()
        other.push([7], np.ones([1, 2]))
        update = snapshot_load.update_to(other.rows, path)
        for file in open_snapshot(path).manifest.counters.files:
            os.remove(os.path.join(path, file.name))
        update.check()
        update.verify()
        update.apply()
        self.assertEqual(bytes_of_rows(other), bytes_of_rows(table))
        with tf_ext.serving.weights_only():
            served = make_table()
        served.load(path)
        self.assertEqual(served.size(), table.size())

    @parameterized.parameters(1, 2, 3, 5)
    def test_resharded_and_compacted(self, shards):
        table, path = trained(), self.directory()
        table.save(f"{path}/0", incremental=True)
        train(table, STEPS, STEPS + 9)
        table.save(f"{path}/1", base=f"{path}/0")
        run_command("reshard", f"{path}/1", f"{path}/r", "--shards", shards)
        run_command("compact", f"{path}/1", f"{path}/c")
        for name, files in (("r", shards), ("c", 2)):
            status, out, err = run_command("verify", f"{path}/{name}")
            self.assertEqual((status, err), (0, ""))
            self.assertIn(f"{2 * files} files", out)
            other = make_table(shards=3)
            other.load(f"{path}/{name}")
            self.assertEqual(counters_of(other), counters_of(table))
            self.assertEqual(bytes_of_rows(other), bytes_of_rows(table))

    def test_many_chunks(self):
        table, path = make_table(shards=2), self.path("0")
        table.push(range(250_000), np.ones([250_000, 2]), step=9)
        manifest = table.save(path)
        self.assertGreater(manifest.counters.files[0].bytes, 1 << 20)
        other = make_table()
        other.load(path)
        self.assertEqual(counters_of(other), counters_of(table))


if __name__ == "__main__":
    tf.test.main()
