# SPDX-License-Identifier: Apache-2.0
import os
import tempfile
import threading
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from models.sharded_tables import bytes_of_rows, shards_on

import tf_ext
from tf_ext import eviction, snapshot
from tf_ext.regimes import clock

_RATE = 0.5
_DIM = 3
_NEVER = -1


def _table(policy, shards=1, name="items", **arguments):
    """A table with so many shards in this process."""
    with shards_on(["/device:CPU:0"] * shards):
        return tf_ext.SparseTable(
            name,
            dim=_DIM,
            optimizer=tf_ext.optimizers.SparseSGD(_RATE, momentum=0.5),
            seed=7,
            eviction=policy,
            **arguments,
        )


class EvictionTest(tf.test.TestCase, parameterized.TestCase):
    def test_fills_field_through_files(self):
        table = _table(eviction.Unseen(steps=5))
        table.push([1, 2], np.ones([2, _DIM]), step=3)
        table.pull([3], training=True)
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        table.save(f"{folder}/snapshot")
        reader = snapshot.open_snapshot(f"{folder}/snapshot")
        self.assertEqual(reader.fields["last_seen"], ("int32", 1))
        seen = {
            sign: value.item()
            for signs, fields in reader.chunks(["last_seen"])
            for sign, value in zip(signs.tolist(), fields["last_seen"])
        }
        self.assertEqual(seen, {1: 3, 2: 3, 3: _NEVER})
        copy = _table(eviction.Unseen(steps=5))
        path = tf.train.Checkpoint(rows=table.rows).write(f"{folder}/rows")
        tf.train.Checkpoint(rows=copy.rows).read(path).assert_consumed()
        self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))

    def test_goes_through_parquet(self):
        try:
            from pyarrow import parquet
        except ModuleNotFoundError:
            self.skipTest("pyarrow is not installed")
        table = _table(eviction.Unseen(steps=5))
        table.push([1, 2], np.ones([2, _DIM]), step=3)
        table.push([2, 2**40], np.ones([2, _DIM]), step=2**31 + 5)
        table.pull([-3], training=True)
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        table.save(f"{folder}/snapshot")
        snapshot.to_parquet(f"{folder}/snapshot", f"{folder}/rows.parquet")
        read = parquet.read_table(f"{folder}/rows.parquet")
        self.assertEqual(
            dict(zip(*(read[n].to_pylist() for n in ("sign", "last_seen")))),
            {1: 3, 2: 2**31 - 1, 2**40: 2**31 - 1, -3: _NEVER},
        )
        copy = _table(eviction.Unseen(steps=5))
        fields = {
            name: np.array(read[name].to_pylist(), values.dtype)
            for name, values in table.export_rows()[1].items()
        }
        fields["last_seen"] = fields["last_seen"][:, np.newaxis]
        copy.import_rows(read["sign"].to_numpy(), fields)
        self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))

    def test_counts_what_it_evicts(self):
        table = _table(eviction.Unseen(steps=5), shards=2)
        table.push(range(100), np.ones([100, _DIM]), step=1)
        table.push([7, 8], np.ones([2, _DIM]), step=9)
        self.assertEqual(table.stats()["evicted"], 0)
        table.erase([7])
        table.evict(now=10)
        self.assertEqual(table.stats()["evicted"], 98)
        table.clear()
        self.assertEqual(
            [shard["evicted"] > 0 for shard in table.shard_stats()],
            [True, True],
        )

    def test_of_seconds_takes_the_clock(self):
        table = _table(eviction.Unseen(seconds=10))
        now = tf.Variable(2_000_000_000, dtype=tf.int64)
        with mock.patch.object(clock, "seconds", now.read_value):
            table.push([1], np.ones([1, _DIM]), step=1)
            now.assign_add(9)
            table.push([2], np.ones([1, _DIM]), step=1)
            self.assertEqual(table.evict(), (2, 0))
            now.assign_add(1)
            self.assertEqual(table.evict(), (2, 1))
        signs, fields = table.export_rows()
        self.assertEqual(signs.tolist(), [2])
        self.assertEqual(
            fields["last_seen"].item(), 2_000_000_009 - 1_577_836_800
        )
        table.push([3], np.ones([1, _DIM]), time=2_000_000_100)
        self.assertEqual(table.evict(now=2_000_000_105), (2, 1))

    def test_clock_is_the_time_of_each_run(self):
        table = _table(eviction.Unseen(seconds=10))
        step = tf.function(lambda: table.push([1], tf.ones([1, _DIM])))
        before = int(clock.seconds())
        step()
        [seen] = table.export_rows()[1]["last_seen"].ravel()
        self.assertBetween(seen + 1_577_836_800, before, int(clock.seconds()))

    def test_while_a_snapshot_is_written(self):
        table = _table(eviction.Unseen(steps=5), 2)
        rows = np.arange(200_000)
        table.push(rows, np.ones([len(rows), _DIM], np.float32), step=1)
        table.push(rows[:1000], np.ones([1000, _DIM], np.float32), step=50)
        path = os.path.join(
            tempfile.mkdtemp(dir=self.get_temp_dir()), "snapshot"
        )
        saving = threading.Thread(target=lambda: table.save(path))
        saving.start()
        evicted = table.evict(now=50)
        saving.join()
        self.assertEqual(evicted, (len(rows), len(rows) - 1000))
        copy = _table(eviction.Unseen(steps=5))
        copy.load(path)
        copied, kept = bytes_of_rows(copy), bytes_of_rows(table)
        # Whatever went is there as it was or not at all; what stays is there.
        self.assertEqual({s: copied.get(s) for s in kept}, kept)
        self.assertLessEqual(set(copied), set(rows.tolist()))

    def test_config_round_trip(self):
        for policy in (
            eviction.Unseen(steps=5),
            eviction.Unseen(seconds=7),
            eviction.Capacity(9),
            None,
        ):
            table = _table(policy)
            copy = tf_ext.SparseTable.from_config(table.get_config())
            self.assertEqual(repr(copy.eviction), repr(policy))
            self.assertEqual(copy.config, table.config)
        self.assertNotIn("last_seen", _table(None).config)
        self.assertEqual(_table(None).stats()["row_bytes"], 8 + 2 * 4 * _DIM)

    @parameterized.parameters(
        (lambda: eviction.Unseen(), "Exactly one of the arguments"),
        (lambda: eviction.Unseen(1, 1), "Exactly one of the arguments"),
        (lambda: eviction.Unseen(0), "`steps` of Unseen must be an integer"),
        (lambda: eviction.Unseen(True), "`steps` of Unseen must be an integer"),
        (lambda: eviction.Unseen(seconds=1.5), "`seconds` of Unseen must be"),
        (lambda: eviction.Unseen(2**31), "Received: steps=2147483648"),
        (lambda: eviction.Capacity(-1), "`rows` of Capacity must be"),
        (lambda: _table("unseen"), "`eviction` of SparseTable must be"),
        (
            lambda: _table(None).evict(now=1),
            "Table 'items' cannot evict: it was made without a policy",
        ),
        (
            lambda: _table(None).evict(1, eviction.Unseen(steps=1)),
            "Table 'items' cannot evict by Unseen(steps=1): its rows do not "
            "record when they were last seen. Make it with eviction=",
        ),
        (
            lambda: _table(eviction.Unseen(steps=1)).evict(),
            "`now` of SparseTable.evict must be an integer",
        ),
        (
            lambda: _table(eviction.Unseen(steps=1)).evict(now=-1),
            "Received: now=-1",
        ),
        (
            lambda: _table(eviction.Unseen(steps=1)).evict(1, policy="all"),
            "`policy` of SparseTable.evict must be",
        ),
        (
            lambda: _table(eviction.Capacity(1)).evict(
                1, eviction.Unseen(seconds=1)
            ),
            "whose rows hold the step of their last push",
        ),
        (
            lambda: _table(None).push([1], [[0.0] * _DIM], time="now"),
            "`time` of SparseTable.push must be an integer or None",
        ),
    )
    def test_refuses(self, call, says):
        with self.assertRaises(ValueError) as caught:
            call()
        self.assertIn(says, str(caught.exception))

    def test_rows_of_other_tables(self):
        with_field = _table(eviction.Unseen(steps=5))
        with_field.push([1], np.ones([1, _DIM]), step=3)
        without = _table(None)
        without.push([1], np.ones([1, _DIM]), step=3)
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        with_field.save(f"{folder}/with")
        without.save(f"{folder}/without")
        with self.assertRaisesRegex(ValueError, "its `last_seen` is None"):
            _table(None).load(f"{folder}/with")
        with self.assertRaisesRegex(ValueError, "its `last_seen` is 'step'"):
            _table(eviction.Unseen(steps=5)).load(f"{folder}/without")
        for path, policy in (
            ("with", None),
            ("without", eviction.Unseen(steps=5)),
        ):
            table = _table(policy)
            table.load(f"{folder}/{path}", weights_only=True)
            self.assertAllEqual(table.pull([1]), with_field.pull([1]))
        self.assertEqual(table.export_rows()[1]["last_seen"].item(), _NEVER)


if __name__ == "__main__":
    tf.test.main()
