import os
import tempfile
import threading
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from sharded_tables import bytes_of_rows, shards_on

import tf_ext
from tf_ext import eviction, snapshot
from tf_ext.tables import clock

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


def _mix(x):
    mask = 2**64 - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


class _Model:
    """What a table does, one row after the other."""

    def __init__(self, shards):
        self.shards = shards
        self.rows = {}  # sign: [weights, momentum, last_seen]
        self.last_push = 0
        self.initial = _table(None, name="items")

    def _new(self, sign):
        if sign not in self.rows:
            weights = self.initial.pull([sign]).numpy()[0]
            self.rows[sign] = [weights, np.zeros_like(weights), _NEVER]
        return self.rows[sign]

    def pull(self, signs):
        for sign in signs:
            self._new(sign)

    def push(self, signs, gradients, step):
        self.last_push = step
        for sign in dict.fromkeys(signs):
            row = self._new(sign)
            gradient = np.zeros(_DIM, np.float32)
            for other, value in zip(signs, gradients):
                if other == sign:
                    gradient += value
            row[1] = np.float32(0.5) * row[1] - np.float32(_RATE) * gradient
            row[0] = row[0] + row[1]
            row[2] = max(row[2], step)

    def _shard(self, sign):
        return (_mix(sign ^ 0xD1B54A32D192ED03) * self.shards) >> 64

    def _age(self, now):
        latest = max(now, self.last_push)
        for row in self.rows.values():
            if not 0 <= row[2] <= latest:
                row[2] = latest

    def unseen(self, steps, now):
        self._age(now)
        self._keep(lambda _, row: now - row[2] < steps)

    def capacity(self, rows, now):
        self._age(now)
        kept = set()
        for shard in range(self.shards):
            order = sorted(
                (sign for sign in self.rows if self._shard(sign) == shard),
                key=lambda s: (self.rows[s][2], _mix(s ^ 0x2545F4914F6CDD1D)),
            )
            part = rows // self.shards + (shard < rows % self.shards)
            kept.update(order[max(0, len(order) - part) :])
        self._keep(lambda sign, _: sign in kept)

    def _keep(self, wanted):
        self.rows = {s: r for s, r in self.rows.items() if wanted(s, r)}

    def bytes(self):
        return {
            sign: (w.tobytes(), m.tobytes(), np.int32(seen).tobytes())
            for sign, (w, m, seen) in self.rows.items()
        }


class DifferentialTest(tf.test.TestCase, parameterized.TestCase):
    """Random programs on a table and on the model of it above."""

    def setUp(self):
        super().setUp()
        self.policy = eviction.Unseen(steps=5)
        self.saves = 0
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())

    def _path(self):
        self.saves += 1
        return os.path.join(
            tempfile.mkdtemp(dir=self.get_temp_dir()), str(self.saves)
        )

    @parameterized.product(shards=(1, 2, 5), seed=(0, 1))
    def test_same_rows_to_the_bit(self, shards, seed):
        random = np.random.default_rng([shards, seed])
        table, model = _table(self.policy, shards), _Model(shards)
        step, base = 1, None
        shares = {
            "push": 0.4,
            "pull": 0.1,
            "erase": 0.08,
            "compact": 0.04,
            "clear": 0.04,
            "unseen": 0.1,
            "capacity": 0.1,
            "load": 0.05,
            "delta": 0.09,
        }
        counts = dict.fromkeys(shares, 0)
        for _ in range(120):
            signs = random.integers(0, 60, random.integers(0, 25)).tolist()
            action = random.choice(list(shares), p=list(shares.values()))
            counts[action] += 1
            if action == "push":
                # A clock may go backwards.
                step = max(0, step + int(random.integers(-2, 5)))
                gradients = random.normal(size=[len(signs), _DIM])
                gradients = gradients.astype(np.float32)
                # So that sums do not depend on their order.
                gradients = np.round(gradients * 64) / 64
                model.push(signs, gradients, step)
                table.push(signs, gradients, step=step)
            elif action == "pull":
                model.pull(signs)
                table.pull(signs, training=True)
            elif action == "erase":
                for sign in signs:
                    model.rows.pop(sign, None)
                table.erase(signs)
            elif action == "compact":
                table.compact()
                self.assertEqual(table.stats()["free_rows"], 0)
            elif action == "clear":
                self.assertEqual(table.clear(), len(model.rows))
                model.rows.clear()
            elif action in ("unseen", "capacity"):
                now = max(0, step + int(random.integers(-3, 4)))
                before = len(model.rows)
                number = int(random.integers(1, 30))
                policy = eviction.Capacity(number)
                if action == "unseen":
                    policy = eviction.Unseen(steps=number)
                getattr(model, action)(number, now)
                evicted = table.evict(now, policy)
                self.assertEqual(evicted, (before, before - len(model.rows)))
            else:
                path = self._path()
                if action == "load":
                    table.save(path)
                elif base is None:
                    table.save(path, incremental=True)
                    base = path
                    continue
                else:
                    table.save(path, base=base)
                base = None
                table = _table(self.policy, shards)
                table.load(path)
                model.last_push = 0
            self.assertEqual(bytes_of_rows(table), model.bytes())
        self.assertGreater(min(counts.values()), 0)


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
            "hold when they were seen last. Make it with eviction=",
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
