# SPDX-License-Identifier: Apache-2.0
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.sharded_tables import bytes_of_rows, shards_on

import tf_ext
from tf_ext import eviction, snapshot
from tf_ext._keras import keras
from tf_ext.eviction import Capacity, Score, Unseen

pytestmark = pytest.mark.both_kerases(slow=True)

_DIM = 3
_BOTH = ["show", "click"]


def _table(statistics, shards=1, **arguments):
    """A table with so many shards in this process."""
    with shards_on(["/device:CPU:0"] * shards):
        return tf_ext.SparseTable(
            "items",
            dim=_DIM,
            optimizer=tf_ext.optimizers.SparseSGD(0.5, momentum=0.5),
            seed=7,
            statistics=statistics,
            **arguments,
        )


def _count(table, show, click=None):
    """Pushes each sign once, then sets its statistics."""
    signs = np.array(list(show))
    table.push(signs, np.ones([len(signs), _DIM]), step=1)
    fields = {"show": list(show.values())}
    if click is not None:
        fields["click"] = [click.get(sign, 0) for sign in show]
    table.import_rows(
        signs, {k: np.float32(v)[:, np.newaxis] for k, v in fields.items()}
    )


def _statistics(table):
    """`{sign: (show, click)}`, of those that rows have."""
    signs, fields = table.export_rows()
    columns = [fields[name].ravel().tolist() for name in table.statistics]
    return dict(zip(signs.tolist(), zip(*columns), strict=True))


class StatisticsTest(tf.test.TestCase, parameterized.TestCase):
    def _path(self, name):
        return os.path.join(tempfile.mkdtemp(dir=self.get_temp_dir()), name)

    def test_count_pushes_but_no_reads(self):
        table = _table(_BOTH)
        table.push([1, 2], np.ones([2, _DIM]))
        table.push([2], np.ones([1, _DIM]))
        table.pull([1, 3], training=True)
        table.pull([1, 4])
        self.assertEqual(_statistics(table), {1: (1, 0), 2: (2, 0), 3: (0, 0)})
        self.assertEqual(table.statistics_width, 2)
        self.assertEqual(table.config["statistics"], "show,click")

    def test_counts_of_any_size(self):
        counts = np.float32(
            [[1, 1], [256, 3], [257, 0.5], [1.1, 0.3], [70000.5, 1e-3], [3, 0]]
        )
        for names in (["show"], _BOTH):
            table = _table(names)
            own = counts[:, : len(names)]
            for _ in range(2):
                table.push(range(6), np.ones([6, _DIM]), statistics=own)
            found = _statistics(table)
            self.assertAllEqual([found[i] for i in range(6)], own + own)

    def test_rows_start_with_those_of_the_admitting_push(self):
        table = _table(["show"], admission=tf_ext.admission.Count(3))
        table.push([1, 2], np.ones([2, _DIM]))
        table.push([1, 1, 2], np.ones([3, _DIM]))
        self.assertEqual(_statistics(table), {1: (2,)})
        table.push([2, 1], np.ones([2, _DIM]))
        self.assertEqual(_statistics(table), {1: (3,), 2: (1,)})

    def test_absent_without_the_argument(self):
        for none in (None, [], ()):
            table = _table(none)
            self.assertNotIn("statistics", table.config)
            self.assertEqual(table.statistics_width, 0)
            self.assertEqual(table.stats()["row_bytes"], 8 + 2 * 4 * _DIM)
            self.assertIsNone(table.get_config()["statistics"])
        self.assertEqual(
            _table(_BOTH).stats()["row_bytes"], 8 + 2 * 4 * _DIM + 2 * 4
        )

    @parameterized.parameters(1, 2, 5)
    def test_decay_over_shards(self, shards):
        table = _table(_BOTH, shards)
        self.assertEqual(table.decay_statistics(0.5), 0)
        _count(table, {s: s for s in range(100)}, {7: 3})
        self.assertEqual(table.decay_statistics(0.5), 100)
        self.assertEqual(
            _statistics(table),
            {s: (s / 2, 1.5 if s == 7 else 0) for s in range(100)},
        )

    @parameterized.parameters(1, 2, 5)
    def test_score_over_shards(self, shards):
        table = _table(_BOTH, shards, eviction=Score(4, click_weight=2))
        show = {s: s % 5 for s in range(100)}
        click = {s: s % 2 for s in range(100)}
        _count(table, show, click)
        kept = {s for s in show if show[s] + 2 * click[s] >= 4}
        self.assertEqual(table.evict(), (100, 100 - len(kept)))
        self.assertEqual(set(_statistics(table)), kept)
        self.assertEqual(
            table.evict(policy=Score(1e30)), (len(kept), len(kept))
        )
        self.assertEqual(table.evict(), (0, 0))
        table.push([5], np.ones([1, _DIM]))
        self.assertEqual(_statistics(table), {5: (1, 0)})

    @parameterized.parameters(1, 2, 5)
    def test_capacity_by_show_over_shards(self, shards):
        table = _table(["show"], shards, eviction=Capacity(50, by="show"))
        show = {s: (s * 37) % 1009 + 1 for s in range(1000)}
        _count(table, show)
        self.assertEqual(table.evict(), (1000, 950))
        kept = _statistics(table)
        self.assertLen(kept, 50)
        if shards == 1:
            order = sorted(show, key=show.get)
            self.assertEqual(set(kept), set(order[-50:]))
        # Each shard keeps its own best rows.
        self.assertGreater(min(kept.values())[0], 800)
        self.assertEqual(table.evict(policy=Capacity(0, by="show")), (50, 50))

    @parameterized.parameters(("any", {4}), ("all", {2, 3, 4}))
    def test_score_and_age(self, require, kept):
        policy = Score(5, unseen=Unseen(steps=5), require=require)
        table = _table(["show"], eviction=policy)
        self.assertEqual(table.config["last_seen"], "step")
        table.push([1, 2], np.ones([2, _DIM]), step=1)
        table.push([3, 4], np.ones([2, _DIM]), step=10)
        table.import_rows([2, 4], {"show": np.float32([[9], [9]])})
        self.assertEqual(table.evict(now=10), (4, 4 - len(kept)))
        self.assertEqual(set(_statistics(table)), kept)
        with self.assertRaisesRegex(ValueError, "`now` of SparseTable.evict"):
            table.evict()

    def test_files(self):
        """All kinds of files of one table."""
        table = _table(_BOTH, 2, eviction=Unseen(steps=5))
        _count(table, {s: s + 0.5 for s in range(50)}, {7: 3})
        path = self._path("full")
        table.save(path, incremental=True)
        reader = snapshot.open_snapshot(path)
        self.assertEqual(reader.fields["show"], ("float32", 1))
        self.assertEqual(reader.fields["click"], ("float32", 1))
        with self.subTest("delta after a decay"):
            table.decay_statistics(0.5)
            delta = os.path.join(os.path.dirname(path), "delta")
            self.assertEqual(table.save(delta, base=path).rows, 50)
            copy = _table(_BOTH, eviction=Unseen(steps=5))
            copy.load(path)
            self.assertNotEqual(bytes_of_rows(copy), bytes_of_rows(table))
            copy.apply_delta(delta)
            self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))
        with self.subTest("resharded"):
            copy = _table(_BOTH, 5, eviction=Unseen(steps=5))
            copy.load(delta)
            self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))
        with self.subTest("checkpoint"):
            copy = _table(_BOTH, eviction=Unseen(steps=5))
            saved = tf.train.Checkpoint(rows=table.rows).write(
                self._path("rows")
            )
            tf.train.Checkpoint(rows=copy.rows).read(saved).assert_consumed()
            self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))
        with self.subTest("weights only"):
            for other in (None, ["show"], _BOTH):
                copy = _table(other)
                copy.load(delta, weights_only=True)
                self.assertAllEqual(copy.pull([7]), table.pull([7]))
                if other:
                    self.assertEqual(
                        set(_statistics(copy).values()), {(0,) * len(other)}
                    )
            with tf_ext.serving.weights_only():
                copy = _table(_BOTH)
            self.assertEqual(copy.statistics_width, 0)
            copy.load(delta)
            self.assertAllEqual(copy.pull([7]), table.pull([7]))
        with self.subTest("another table"):
            for other, found in ((None, None), (["show"], "show")):
                with self.assertRaisesRegex(
                    ValueError,
                    f"its `statistics` is {found!r}, that of the saved rows "
                    "is 'show,click'",
                ):
                    _table(other, eviction=Unseen(steps=5)).load(delta)
        with self.subTest("Parquet"):
            self._check_parquet(delta, table)

    def _check_parquet(self, path, table):
        try:
            from pyarrow import parquet
        except ModuleNotFoundError:
            self.skipTest("pyarrow is not installed")
        out = self._path("rows.parquet")
        snapshot.to_parquet(path, out)
        read = parquet.read_table(out)
        columns = [read[name].to_pylist() for name in ("show", "click")]
        columns = [np.ravel(column).tolist() for column in columns]
        self.assertEqual(
            dict(zip(read["sign"].to_pylist(), zip(*columns), strict=True)),
            _statistics(table),
        )

    def test_files_of_keras(self):
        table = _table(
            _BOTH, eviction=Score(2, unseen=Unseen(steps=9), require="all")
        )
        signs = keras.Input([1], dtype="int64")
        model = keras.Model(signs, table(signs))
        _count(table, {s: s + 0.5 for s in range(50)}, {7: 3})
        path = self._path("model.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        [copy] = [
            layer
            for layer in loaded.layers
            if isinstance(layer, tf_ext.SparseTable)
        ]
        self.assertEqual(bytes_of_rows(copy), bytes_of_rows(table))
        self.assertEqual(repr(copy.eviction), repr(table.eviction))
        self.assertEqual(copy.config, table.config)
        self.assertEqual(copy.evict(now=100), table.evict(now=100))

    def test_config_round_trip(self):
        for policy in (
            Score(2.5),
            Score(2, Unseen(seconds=7), "all", show_weight=0.1, click_weight=1),
            Capacity(9, by="show"),
            Capacity(9),
        ):
            table = _table(_BOTH, eviction=policy)
            copy = tf_ext.SparseTable.from_config(table.get_config())
            self.assertEqual(repr(copy.eviction), repr(policy))
            self.assertEqual(copy.config, table.config)
        self.assertNotIn(
            "last_seen", _table(_BOTH, eviction=Capacity(9, by="show")).config
        )

    @parameterized.parameters(
        (lambda: _table("show"), "`statistics` of SparseTable must be"),
        (lambda: _table(["click"]), "Received: statistics=['click']"),
        (lambda: _table(["click", "show"]), "`statistics` of SparseTable"),
        (lambda: _table(["show", "show"]), "`statistics` of SparseTable"),
        (
            lambda: _table(None).decay_statistics(0.5),
            "Table 'items' has no statistics that could decay",
        ),
        (
            lambda: _table(["show"]).decay_statistics(0),
            "`factor` of SparseTable.decay_statistics must be",
        ),
        (
            lambda: _table(["show"]).decay_statistics(float("nan")),
            "Received: factor=nan",
        ),
        (
            lambda: _table(["show"]).decay_statistics(1.1),
            "Received: factor=1.1",
        ),
        (lambda: Score("2"), "`threshold` of Score must be a finite number"),
        (lambda: Score(1, show_weight=float("inf")), "`show_weight` of Score"),
        (lambda: Score(1, click_weight=None), "`click_weight` of Score"),
        (lambda: Score(1, unseen=5), "`unseen` of Score must be"),
        (lambda: Score(1, require="both"), "`require` of Score must be"),
        (lambda: Capacity(1, by="click"), "`by` of Capacity must be"),
        (
            lambda: _table(None, eviction=Score(1)),
            "its rows do not hold the field 'show'. Make it with "
            "statistics=['show'].",
        ),
        (
            lambda: _table(None, eviction=Capacity(9, by="show")),
            "its rows do not hold the field 'show'. Make it with "
            "statistics=['show'].",
        ),
        (
            lambda: _table(["show"], eviction=Score(1, click_weight=1)),
            "its rows do not hold the field 'click'. Make it with "
            "statistics=['show', 'click'].",
        ),
        (
            lambda: _table(None, eviction=Unseen(1)).evict(
                1, Capacity(1, by="show")
            ),
            "its rows do not hold the field 'show'",
        ),
        (
            lambda: _table(["show"]).evict(policy=Score(1, click_weight=1)),
            "its rows do not hold the field 'click'",
        ),
        (
            lambda: _table(["show"]).evict(policy=Score(1, Unseen(steps=1))),
            "its rows do not record when they were last seen",
        ),
        (
            lambda: _table(["show"], eviction=Unseen(seconds=1)).evict(
                1, Score(1, Unseen(steps=1))
            ),
            "whose rows hold the second of their last push",
        ),
        (lambda: _table(["show"]).evict(), "made without a policy"),
    )
    def test_refuses(self, call, says):
        with self.assertRaises(ValueError) as caught:
            call()
        self.assertIn(says, str(caught.exception))

    def test_evict_without_a_policy_of_its_own(self):
        table = _table(["show"])
        _count(table, {1: 1, 2: 5})
        self.assertEqual(
            table.evict(policy=Score(2)),
            eviction.Evicted(examined=2, evicted=1),
        )


if __name__ == "__main__":
    tf.test.main()
