# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import generator, mirrored_strategy
from models.sharded_tables import shards_on
from models.small_models import batch, columns, compiled, functional, table
from tensorboard.backend.event_processing import event_accumulator

import tf_ext
from tf_ext import admission, eviction
from tf_ext._keras import keras
from tf_ext.callbacks import Evict, TableStats, weight_samples
from tf_ext.tables.shard import TableShard

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "TableStatsTest::test_a_restart_appends",
        "TableStatsTest::test_executions_of_several_steps",
        "TableStatsTest::test_second_fit_of_a_callback",
        "TableStatsTest::test_summaries_are_of_their_plugins",
        "TableStatsTest::test_under_mirrored_strategy",
    ),
]

_STEPS, _BATCH = 12, 8
_TOTALS = ("updated", "admitted", "evicted", "saturated")


def _lines(folder):
    with open(os.path.join(folder, "tables.jsonl")) as file:
        return [json.loads(line) for line in file]


def _summaries(folder):
    """Summaries, `{tag: {step: number or array}}`."""
    events = event_accumulator.EventAccumulator(folder, {"scalars": 0})
    events.Reload()
    tags = events.Tags()
    found = {
        tag: {event.step: event.value for event in events.Scalars(tag)}
        for tag in tags["scalars"]
    }
    for tag in tags["tensors"]:
        found[tag] = {
            event.step: tf.make_ndarray(event.tensor_proto)
            for event in events.Tensors(tag)
        }
    return found


class TableStatsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.arrays = batch(generator(self), _STEPS * _BATCH, ids=200)

    def _fit(self, model, *callbacks, **options):
        data = tf.data.Dataset.from_tensor_slices(self.arrays).batch(_BATCH)
        model.fit(data, callbacks=list(callbacks), verbose=0, **options)

    def _signs(self, step):
        """The distinct signs of a step, which count from 1."""
        part = slice((step - 1) * _BATCH, step * _BATCH)
        features = self.arrays[0]
        return set(features["user"][part].tolist()) | set(
            features["items"][part].ravel().tolist()
        )

    def _still(self, weights, **options):
        """A model that trains nothing, whose table has given rows."""
        deep = table(**options)
        deep.import_rows(np.arange(len(weights)), {"weights": weights})
        return compiled(functional(deep), keras.optimizers.SGD(0.0))

    @parameterized.parameters(1, 3)
    def test_counts(self, steps_per_execution):
        model = compiled(
            functional(table()), steps_per_execution=steps_per_execution
        )
        self._fit(model, TableStats(self.folder, every=6))
        found, seen, updated = _lines(self.folder), set(), 0
        self.assertEqual([report["step"] for report in found], [6, 12])
        for report in found:
            [deep] = report["tables"]
            before = len(seen)
            signs = [self._signs(report["step"] - k) for k in range(6)]
            seen = seen.union(*signs)
            pushed = sum(map(len, signs))
            updated += pushed
            self.assertEqual(deep["table"], "deep")
            self.assertEqual(deep["rows"], len(seen))
            self.assertEqual(deep["updated"], updated)
            inserted = len(seen) - before
            self.assertEqual(
                deep["interval"],
                {
                    "steps": 6,
                    "inserted": inserted,
                    "updated": pushed,
                    "admitted": 0,
                    "evicted": 0,
                    "saturated": 0,
                    "updated_per_step": pushed / 6,
                    "hits": 1 - inserted / pushed,
                },
            )
            self.assertNotIn("staleness", report)
        self._assert_says(deep, model.tables[0].stats())

    def _assert_says(self, found, stats):
        """That numbers are those of statistics."""
        for name in ("rows", "bytes", "free_rows", "waiting", *_TOTALS):
            self.assertEqual(found[name], stats[name], name)
        self.assertEqual(found["counter_bytes"], stats["counter_bytes"])
        used = stats["rows"] * stats["row_bytes"]
        self.assertAllClose(found["load"], used / stats["bytes"])

    def test_rows_that_come_and_go(self):
        model = compiled(
            functional(
                table(
                    admission=admission.Count(2),
                    eviction=eviction.Unseen(steps=2),
                )
            )
        )
        stats = TableStats(self.folder, every=4)
        self._fit(model, Evict(steps=4), stats, epochs=2)
        found = [report["tables"][0] for report in _lines(self.folder)]
        self.assertLen(found, 6)
        rows = evicted = admitted = 0
        for deep in found:
            interval = deep["interval"]
            rows += interval["inserted"] - interval["evicted"]
            evicted += interval["evicted"]
            admitted += interval["admitted"]
            self.assertEqual(deep["rows"], rows)
            self.assertEqual(deep["evicted"], evicted)
            self.assertEqual(deep["admitted"], admitted)
            self.assertEqual(interval["inserted"], interval["admitted"])
        self.assertGreater(evicted, 0)
        self.assertGreater(deep["waiting"], 0)
        self._assert_says(deep, model.tables[0].stats())
        self.assertEqual(stats.report["tables"], [deep])

    def test_weights(self):
        rng = generator(self)
        weights = rng.normal(0, 0.3, [1000, 4]).astype(np.float32)
        weights[:5] = [[0] * 4, [1e-5] * 4, [-1e-5] * 4, [5e4] * 4, [-2e4] * 4]
        weights[5] = [1, -1, 10, -10]  # edges
        model = self._still(weights)
        self._fit(model, TableStats(self.folder, every=12))
        [report] = _lines(self.folder)
        found = report["tables"][0]["weights"]
        held = model.tables[0].export_rows()[1]["weights"].astype(np.float64)
        norms = np.linalg.norm(held, axis=1)
        self.assertEqual(found["sampled"], len(held))
        self.assertEqual(found["nonfinite"], 0)
        for name, value in {
            "min": held.min(),
            "max": held.max(),
            "mean": held.mean(),
            "std": held.std(),
            "norm_mean": norms.mean(),
            "norm_max": norms.max(),
        }.items():
            self.assertAllClose(found[name], value, 1e-6, 0, msg=name)
        edges = found["histogram"]["edges"]
        self.assertAllEqual(edges, np.sort(edges))
        counts, _ = np.histogram(held, edges)
        self.assertEqual(found["histogram"]["counts"], counts.tolist())
        self.assertEqual(counts.sum(), held.size)
        self.assertGreater(counts[0], 0)
        self.assertGreater(counts[-1], 0)

    def test_weights_of_a_large_table(self):
        rng = generator(self)
        weights = rng.normal(0.5, 0.3, [20_000, 4]).astype(np.float32)
        positions, sample = [], TableShard.sample

        def noting(shard, limit, position):
            positions.append(position)
            return sample(shard, limit, position)

        with mock.patch.object(TableShard, "sample", noting):
            for _ in range(2):
                self._fit(self._still(weights), TableStats(self.folder, 6))
        self.assertEqual(positions[:2], positions[2:])
        self.assertLen(set(positions), 2)
        self.assertAllInRange(positions, 1, 2**63 - 1)
        first, *_ = (
            report["tables"][0]["weights"] for report in _lines(self.folder)
        )
        self.assertEqual(first["sampled"], 4096)
        # Four standard deviations of a mean of so many weights.
        self.assertAllClose(first["mean"], 0.5, 0, 4 * 0.3 / np.sqrt(16384))

    def test_executions_of_several_steps(self):
        model = compiled(functional(table()), steps_per_execution=3)
        self._fit(model, TableStats(self.folder, every=4))
        steps = [report["step"] for report in _lines(self.folder)]
        self.assertEqual(steps, [6, 9, 12])

    def test_directory_is_absolute(self):
        expected = os.path.join(os.getcwd(), "logs")
        self.assertEqual(TableStats("logs").log_dir, expected)
        self.assertEqual(TableStats(pathlib.Path("logs")).log_dir, expected)

    def test_size_of_samples(self):
        self.assertEqual(weight_samples.rows_of_sample(1), 4096)
        self.assertEqual(weight_samples.rows_of_sample(16), 4096)
        self.assertEqual(weight_samples.rows_of_sample(256), 256)
        self.assertEqual(weight_samples.rows_of_sample(65536), 1)

    def test_weights_that_are_not_finite(self):
        weights = np.float32([[1, np.nan], [np.inf, 2], [3, 4]])
        found = weight_samples.described(weight_samples.sums_of(weights))
        self.assertEqual(found["nonfinite"], 2)
        self.assertEqual(found["sampled"], 3)
        self.assertEqual(found["mean"], 2.5)
        self.assertEqual(found["norm_mean"], 5.0)

    @parameterized.parameters((), ([[np.nan]],))
    def test_no_weights(self, *weights):
        values = np.reshape(np.float32(weights), [-1, 1])
        none = weight_samples.sums_of(values)
        some = weight_samples.sums_of(np.float32([[-2.0]]))
        found = weight_samples.described(none)
        self.assertEqual(found["sampled"], len(values))
        for name in ("min", "max", "mean", "std", "norm_mean", "norm_max"):
            self.assertIsNone(found[name])
        self.assertEqual(
            weight_samples.histogram(none), {"edges": [], "counts": []}
        )
        both = weight_samples.described(weight_samples.add([none, some]))
        self.assertEqual((both["mean"], both["norm_max"]), (-2.0, 2.0))

    def test_tables_and_shards(self):
        ids = {
            "user": keras.Input((), dtype="int64", name="user"),
            "items": keras.Input((None,), dtype="int64", name="items"),
        }
        user, items = columns()
        with shards_on(["/cpu:0", "/cpu:1"]):
            tables = [table(name="a"), table("adagrad", name="b")]
            layer = tf_ext.layers.EmbeddingFeatures(
                {tables[0]: [user], tables[1]: [user, items]}
            )
            embeddings = layer(ids)
        joined = keras.layers.Concatenate()(list(embeddings.values()))
        output = keras.layers.Dense(1, "sigmoid")(joined)
        model = compiled(tf_ext.Model(ids, output))
        self._fit(model, TableStats(self.folder, every=12))
        [report] = _lines(self.folder)
        for found, of in zip(report["tables"], model.tables, strict=True):
            self.assertEqual(found["table"], of.name)
            self._assert_says(found, of.stats())
            shards = found["shards"]
            stats = of.shard_stats()
            for shard, of_shard, held in zip(
                shards, stats, of.rows.shards, strict=True
            ):
                self._assert_says(shard, of_shard)
                weights = held.sample(1000, 0).numpy()
                self.assertEqual(shard["weights"]["sampled"], len(weights))
                self.assertAllClose(shard["weights"]["max"], weights.max())
            for name in ("inserted", "updated"):
                self.assertEqual(
                    found["interval"][name],
                    sum(shard["interval"][name] for shard in shards),
                )
            values = of.export_rows()[1]["weights"]
            self.assertAllClose(found["weights"]["max"], values.max())
            self.assertAllClose(found["weights"]["min"], values.min())
            self.assertEqual(
                sum(found["weights"]["histogram"]["counts"]), values.size
            )
        self.assertNotEqual(
            shards[0]["weights"]["max"], shards[1]["weights"]["max"]
        )
        summaries = _summaries(self.folder)
        self.assertEqual(
            summaries["tables/b/shard_1/rows"], {12: shards[1]["rows"]}
        )

    def test_summaries(self):
        self._fit(
            compiled(functional(table())), TableStats(self.folder, every=6)
        )
        summaries = _summaries(self.folder)
        for report in _lines(self.folder):
            step, [deep] = report["step"], report["tables"]
            for tag, value in {
                "rows": deep["rows"],
                "load": deep["load"],
                "interval/hits": deep["interval"]["hits"],
                "weights/norm_mean": deep["weights"]["norm_mean"],
            }.items():
                self.assertAllClose(
                    summaries[f"tables/deep/{tag}"][step], value
                )
            buckets = summaries["tables/deep/weights/histogram"][step]
            histogram = deep["weights"]["histogram"]
            self.assertAllClose(buckets[:, 0], histogram["edges"][:-1])
            self.assertAllClose(buckets[:, 1], histogram["edges"][1:])
            self.assertAllEqual(buckets[:, 2], histogram["counts"])
        # The shard is the table.
        self.assertFalse([tag for tag in summaries if "shard" in tag])

    def test_summaries_are_of_their_plugins(self):
        self._fit(
            compiled(functional(table())), TableStats(self.folder, every=6)
        )
        events = event_accumulator.EventAccumulator(self.folder)
        events.Reload()
        self.assertEqual(
            list(events.PluginTagToContent("histograms")),
            ["tables/deep/weights/histogram"],
        )
        self.assertIn("tables/deep/rows", events.Tags()["scalars"])

    def test_a_restart_appends(self):
        model = compiled(functional(table()))
        self._fit(model, TableStats(self.folder, every=6))
        path = pathlib.Path(self.folder) / "tables.jsonl"
        with path.open("a") as file:
            file.write('{"step": 12, "ta')  # a kill
        self._fit(model, TableStats(pathlib.Path(self.folder), every=6))
        *lines, rest = path.read_text().split("\n")
        self.assertEqual(rest, "")
        self.assertEqual(lines.pop(2), '{"step": 12, "ta')
        found = [json.loads(line) for line in lines]
        self.assertEqual([r["step"] for r in found], [6, 12, 18, 24])
        # Those of the second training alone.
        interval = found[2]["tables"][0]["interval"]
        pushed = sum(len(self._signs(step)) for step in range(1, 7))
        self.assertEqual(interval["steps"], 6)
        self.assertEqual(interval["updated"], pushed)
        self.assertEqual(interval["inserted"], 0)
        self.assertEqual(interval["hits"], 1.0)
        self.assertEqual(
            list(_summaries(self.folder)["tables/deep/rows"]), [6, 12, 18, 24]
        )

    def test_second_fit_of_a_callback(self):
        model, stats = compiled(functional(table())), TableStats(self.folder, 7)
        self._fit(model, stats)
        self._fit(model, stats)
        found = _lines(self.folder)
        self.assertEqual([r["step"] for r in found], [7, 14, 21])
        # Training began at step 12.
        steps = [r["tables"][0]["interval"]["steps"] for r in found]
        self.assertEqual(steps, [7, 2, 7])

    def test_what_a_later_callback_restores(self):
        model = compiled(functional(table()))
        restoring = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: model.optimizer.iterations.assign(4)
        )
        self._fit(model, TableStats(self.folder, 6), restoring)
        steps = [
            (r["step"], r["tables"][0]["interval"]["steps"])
            for r in _lines(self.folder)
        ]
        self.assertEqual(steps, [(6, 2), (12, 6)])

    def test_a_server_that_counts_anew(self):
        real = tf_ext.SparseTable.shard_stats
        calls = []

        def shard_stats(deep):
            calls.append(deep)
            return [{**s, "updated": -len(calls)} for s in real(deep)]

        with mock.patch.object(tf_ext.SparseTable, "shard_stats", shard_stats):
            self._fit(
                compiled(functional(table())), TableStats(self.folder, every=6)
            )
        for report in _lines(self.folder):
            self.assertIsNone(report["tables"][0]["interval"])
        self.assertNotIn(
            "tables/deep/interval/hits", _summaries(self.folder).keys()
        )

    def test_under_mirrored_strategy(self):
        with mirrored_strategy().scope():
            model = compiled(functional(table()))
        self._fit(model, TableStats(self.folder, every=6))
        reports = _lines(self.folder)
        self.assertEqual([report["step"] for report in reports], [6, 12])
        [deep] = reports[-1]["tables"]
        self._assert_says(deep, model.tables[0].stats())
        self.assertEqual(
            deep["updated"],
            sum(len(self._signs(step + 1)) for step in range(_STEPS)),
        )

    @parameterized.parameters(0, -1, 1.5, True, "1")
    def test_refuses_every(self, every):
        with self.assertRaisesRegex(
            ValueError, "Argument `every` of TableStats must be an integer"
        ):
            TableStats(self.folder, every=every)

    @parameterized.parameters("", None, 3, b"logs")
    def test_refuses_log_dir(self, log_dir):
        with self.assertRaisesRegex(
            ValueError, "Argument `log_dir` of TableStats must be a path"
        ):
            TableStats(log_dir)

    def test_refuses_models_without_tables(self):
        ids = keras.Input((1,), name="user")
        model = compiled(
            tf_ext.Model({"user": ids}, keras.layers.Dense(1)(ids))
        )
        features = {"user": self.arrays[0]["user"][:, np.newaxis]}
        with self.assertRaisesRegex(
            ValueError, "The model of TableStats must have a table"
        ):
            model.fit(
                features,
                self.arrays[1],
                callbacks=[TableStats(self.folder, every=1)],
                verbose=0,
            )


if __name__ == "__main__":
    tf.test.main()
