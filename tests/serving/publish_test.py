# SPDX-License-Identifier: Apache-2.0
"""tf_ext.serving.publish: points of a training run as versions of a sink."""

import contextlib
import os
import pathlib
import shutil
import threading
import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest
from models import small_models as small
from models.model_building import rows_of
from saving_util import TestCase
from snapshot_util import data_files

import tf_ext
from tf_ext._keras import keras
from tf_ext.distribute import training_counts
from tf_ext.recovery import files as points
from tf_ext.recovery import held
from tf_ext.serving import DirectorySink, SinkConflictError, SinkError, publish
from tf_ext.serving.sinks import row_bytes
from tf_ext.snapshot import DamagedSnapshotError, SnapshotConflictError

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "PublishTest::test_versions_are_points",
        "PublishTest::test_points_in_remote_storage",
        "PublishTest::test_a_thread_*",
        "PublishTest::test_damaged_points",
        "PublishTest::test_rollback_ends_a_training_that_goes_on",
        "PublishTest::test_arguments",
    ),
]


def _build(**options):
    user, items = small.columns()
    tables = {
        tf_ext.SparseTable("user", 4, "adam", "normal", seed=1, **options): [
            user
        ],
        tf_ext.SparseTable("items", 4, "sgd", "normal", seed=2): [items],
    }
    ids = small.inputs()
    embedded = tf_ext.layers.EmbeddingFeatures(tables)(ids)
    hidden = keras.layers.Concatenate()(list(embedded.values()))
    hidden = keras.layers.BatchNormalization()(hidden)
    return tf_ext.Model(ids, keras.layers.Dense(1, "sigmoid")(hidden))


def _opened_in(folder):
    """The files and folders in it that this process holds open."""
    found = []
    for link in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # That of the list.
            found.append(os.readlink(link))
    return [path for path in found if path.startswith(folder)]


class _Away(DirectorySink):
    """A sink that can be away, or fail after some parts of a write."""

    away, after = False, None

    def versions(self):
        if self.away:
            raise SinkError("It is away.")
        return super().versions()

    def write(self, manifest, files, tables, base):
        with mock.patch.object(DirectorySink, "_write_table", _failing(self)):
            return super().write(manifest, files, tables, base)


def _failing(sink):
    write_table = DirectorySink._write_table

    def write(self, part, table, base):
        if sink.after is not None:
            sink.after -= 1
            if sink.after < 0:
                raise OSError(28, "No space left on device")
        return write_table(self, part, table, base)

    return write


class PublishTest(TestCase):
    def setUp(self):
        super().setUp()
        self.root, self.store = self.directory(), self.directory()
        self.sink = _Away(self.store, keep=3)
        self.rng = np.random.default_rng(3)
        self.model = small.compiled(_build(), keras.optimizers.Adam(0.1))
        self.epoch = 0
        # Of each point `(rows by table, outputs)`.
        self.states = {}
        self.features, self.labels = small.batch(self.rng)
        self.start()

    def start(self, **options):
        options = {"incremental": True, "keep": 2, **options}
        self.snapshot = tf_ext.callbacks.TableSnapshot(self.root, **options)

    def train(self, model=None):
        """Writes a point; returns its step."""
        model = model or self.model
        test = self

        class ComeAndGo(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                user = model.tables[0]
                user.pull([1000 + epoch, 2000], training=True)
                user.erase([1000 + epoch - 1, test.rng.integers(20), 77])

        self.epoch += 1
        model.fit(
            *(self.features, self.labels),
            epochs=self.epoch,
            initial_epoch=self.epoch - 1,
            batch_size=32,
            verbose=0,
            callbacks=[ComeAndGo(), self.snapshot],
        )
        self.features, self.labels = small.batch(self.rng, ids=20 + self.epoch)
        self.states[self.epoch] = (
            [rows_of(table) for table in model.tables],
            model(self.features).numpy(),
            self.features,
        )
        return self.epoch

    def publisher(self, sink=None, model=None, **options):
        options = {"every": None, **options}
        made = publish(
            model or self.model, self.root, sink or self.sink, **options
        )
        self.addCleanup(made.close)
        return made

    def rows(self, version, sink=None):
        return [
            {
                sign: row
                for signs, rows in (sink or self.sink).read_rows(version, name)
                for sign, row in zip(signs.tolist(), rows, strict=True)
            }
            for name in ("user", "items")
        ]

    def assert_state(self, version, epoch, dtype="float32"):
        """A version is the state at the end of an epoch."""
        states, outputs, features = self.states[epoch]
        for found, wanted in zip(self.rows(version), states, strict=True):
            self.assertEqual(found.keys(), wanted.keys())
            for sign, row in wanted.items():
                right = row_bytes.encode(row[np.newaxis], dtype, "")[0]
                self.assertEqual(bytes(found[sign]), bytes(right))
        manifest = self.sink.manifest(version)
        self.assertEqual(manifest["step"], 2 * epoch)
        if dtype != "float32":
            return
        folder = pathlib.Path(self.directory())
        for file in manifest["files"]:
            path = folder / file["name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            data = self.sink.read_file(version, file["name"])
            self.assertLen(data, file["bytes"])
            path.write_bytes(data)
        dense = tf.saved_model.load(str(folder / manifest["dense"]))
        serve = dense.signatures["serving_default"]
        inputs = {}
        for one in manifest["embeddings"]:
            rows = states[
                [t["file"] for t in manifest["tables"]].index(one["file"])
            ]
            ids = np.reshape(features[one["column"]], [64, -1])
            table = self.model.tables[0 if one["file"][0] == "u" else 1]
            vectors = [
                [
                    rows[i] if i in rows else self.initial(table, i)
                    for i in bag.tolist()
                ]
                for bag in ids
            ]
            inputs[one["input"]] = tf.constant(np.mean(vectors, 1))
        [found] = serve(**inputs).values()
        self.assertAllClose(found, outputs, rtol=0, atol=1e-6)

    @staticmethod
    def initial(table, sign):
        config = table.rows.config
        return tf_ext.hashing.initial_rows(config, [sign])[0]

    def test_versions_are_points(self):
        publisher = self.publisher()
        self.assertFalse(publisher.update())
        self.assertEqual(publisher.lag_seconds, 0)
        self.assertEqual((publisher.version, publisher.step), (0, -1))
        for version in range(1, 5):
            self.train()
            self.assertTrue(publisher.update())
            self.assertEqual(publisher.version, version)
            self.assertEqual(publisher.step, 2 * version)
            self.assert_state(version, version)
            self.assertFalse(publisher.update())
        self.assertEqual(self.sink.versions().retained, (2, 3, 4))
        for version in (2, 3):
            self.assert_state(version, version)
        # A chain: only the first one has all rows.
        bases = [t.get("base") for t in self.sink.manifest(4)["tables"]]
        self.assertEqual(bases, [3, 3])
        self.assertFalse([n for n in os.listdir(self.root) if "exporting" in n])
        self.assertEmpty(_opened_in(self.root))

    def test_points_in_remote_storage(self):
        self.root = f"ram://{self.directory()}"
        self.start()
        self.train()
        self.assertTrue(self.publisher().update())
        [states, *_] = self.states[1]
        for found, wanted in zip(self.rows(1), states, strict=True):
            self.assertEqual(found.keys(), wanted.keys())

    def test_through_chains_of_snapshots(self):
        publisher = self.publisher()
        self.model.tables[0].pull(np.arange(5000, 6000), training=True)
        # The 12th and 23rd points begin a new chain.
        for version, epoch in enumerate([*range(1, 13), 14, 22, 24], 1):
            while self.train() != epoch:
                pass
            self.assertTrue(publisher.update())
            self.assert_state(version, epoch)
            about = self.sink.manifest(version)["tables"][0]
            if version > 1 and epoch != 22:  # It came too late.
                self.assertEqual(about["base"], version - 1)
                self.assertLess(about["rows"], 200)

    def test_without_deltas(self):
        self.start()
        publisher = self.publisher()
        self.train()
        publisher.update()
        self.model = small.compiled(_build(), keras.optimizers.Adam(0.1))
        shutil.rmtree(self.root)
        self.start(incremental=False)
        self.epoch = 0
        publisher = self.publisher(model=self.model)
        for version in (2, 3):
            self.train()
            self.assertTrue(publisher.update())
            self.assert_state(version, version - 1)

    def test_a_store_that_is_away_or_full(self):
        publisher = self.publisher()
        self.train()
        publisher.update()
        for version, (away, after) in enumerate([(True, None), (False, 1)], 2):
            self.sink.away, self.sink.after = away, after
            for _ in range(2):
                epoch = self.train()
                with self.assertRaises(SinkError):
                    publisher.update()
                self.sink.after = after
            self.assertGreater(publisher.lag_seconds, 0)
            self.assertIsInstance(publisher.error, SinkError)
            self.assertEqual(publisher.failures, 2 * version - 2)
            self.sink.away, self.sink.after = False, None
            self.assertEqual(self.sink.versions().current, version - 1)
            self.assert_state(version - 1, self.epoch_of(version - 1))
            self.assertTrue(publisher.update())
            self.assertIsNone(publisher.error)
            self.assertEqual(publisher.lag_seconds, 0)
            self.assert_state(version, epoch)
        # What it lacked came as changes, and then as all rows: there were more.
        for version, base in ((2, 1), (3, None)):
            tables = self.sink.manifest(version)["tables"]
            self.assertEqual([t.get("base") for t in tables], [base] * 2)

    def epoch_of(self, version):
        return self.sink.manifest(version)["step"] // 2

    def test_another_process_goes_on(self):
        first = self.publisher()
        self.train()
        first.update()
        self.train()
        second = self.publisher(_Away(self.store, keep=3))
        self.assertTrue(second.update())
        self.assert_state(2, 2)
        self.assertEqual(self.sink.manifest(2)["tables"][0]["base"], 1)
        self.train()
        with self.assertRaises(SinkConflictError):
            first.update()
        self.assertTrue(second.update())
        self.assertFalse(self.publisher().update())

    def test_a_thread_publishes_while_fit_trains(self):
        self.sink.away = True
        with self.assertLogs("tf_ext", "WARNING") as logs:
            with self.publisher(every=0.02) as publisher:
                self.train()
                while not publisher.failures > 2:
                    time.sleep(0.01)
                self.sink.away = False
                while not publisher.version:
                    time.sleep(0.01)
                self.train()
        self.assertLen(logs.output, 1)
        self.assertIn("is not published; version 0", logs.output[0])
        self.assertEqual(publisher.step, 4)  # At the end of the block.
        self.assertNotIn(publisher, training_counts.read().publishers)
        self.assert_state(publisher.version, 2)

    def test_a_thread_ends_once_another_process_publishes(self):
        def running():
            names = [thread.name for thread in threading.enumerate()]
            return "tf_ext.serving.publish" in names

        error = SinkConflictError("another one publishes")
        with mock.patch.object(self.sink, "write", side_effect=error):
            with self.assertLogs("tf_ext", "WARNING") as logs:
                publisher = self.publisher(every=0.02)
                self.train()
                while running():
                    time.sleep(0.01)
        self.assertLen(logs.output, 1)
        self.assertIs(publisher.error, error)

    def test_points_that_are_pruned_while_they_are_read(self):
        publisher = self.publisher()
        self.train()
        with mock.patch("os.link", side_effect=PermissionError):
            self.assertTrue(publisher.update())
        self.assert_state(1, 1)
        hold = held.HeldFiles.hold

        def hold_and_prune(files, links):
            found = hold(files, links)
            for path in points.list_points(self.root):
                for file in pathlib.Path(path).rglob("*.chunks"):
                    if file.parent.name == "table-000":
                        file.unlink()
            return found

        self.train()
        with mock.patch.object(held.HeldFiles, "hold", hold_and_prune):
            self.assertTrue(publisher.update())
        self.assert_state(2, 2)

    def test_damaged_points(self):
        publisher = self.publisher()
        self.train()
        publisher.update()
        self.train()
        older = points.list_points(self.root)[-1]
        self.train()
        path = points.list_points(self.root)[-1]
        file = pathlib.Path(data_files(points.table_path(path, 1))[0])
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        self.assertTrue(publisher.update())
        self.assertIsInstance(publisher.error, DamagedSnapshotError)
        self.assertEqual(publisher.path, older)
        self.assert_state(2, 2)
        with self.assertRaises(DamagedSnapshotError):
            publisher.update()
        file.write_bytes(whole)
        self.assertTrue(publisher.update())
        self.assert_state(3, 3)

    def test_a_snapshot_that_is_not_of_the_point(self):
        publisher = self.publisher()
        for _ in range(2):
            self.train()
        older, newer = points.list_points(self.root)
        shutil.rmtree(points.table_path(newer, 0))
        shutil.copytree(
            points.table_path(older, 0), points.table_path(newer, 0)
        )
        self.assertTrue(publisher.update())
        self.assertIn("must be the snapshot", str(publisher.error))
        self.assertEqual(publisher.path, older)
        self.assert_state(1, 1)

    def test_rollback_with_the_trainer(self):
        publisher = self.publisher()
        for _ in range(3):
            self.train()
            publisher.update()
        with self.assertRaisesRegex(FileNotFoundError, "version 1: it was"):
            shutil.copytree(self.root, f"{self.root}-")
            os.rename(points.list_points(f"{self.root}-")[0], f"{self.root}-/x")
            tf_ext.serving.rollback(self.sink, 1, f"{self.root}-")
        self.assertEqual(self.sink.versions().current, 3)
        tf_ext.serving.rollback(self.sink, 2, self.root)
        names = os.listdir(self.root)
        self.assertEmpty([name for name in names if name.endswith(".claim")])
        self.assertEqual(self.sink.versions().current, 2)
        self.assertFalse(publisher.update())
        self.assertEqual(publisher.version, 2)
        self.assertLen(points.list_points(self.root), 2)
        again = small.compiled(_build(), keras.optimizers.Adam(0.1))
        self.start()
        self.epoch = 2
        self.train(again)
        self.assertTrue(publisher.update())
        self.assertEqual(publisher.version, 4)
        self.assert_state(4, 3)
        self.assertEqual(self.sink.versions().retained, (1, 2, 4))

    def test_rollback_ends_a_training_that_goes_on(self):
        publisher = self.publisher()
        test = self

        class Back(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                publisher.update()
                if epoch == 2:
                    tf_ext.serving.rollback(test.sink, 1, test.root)

        self.start(keep=9)
        with self.assertRaises(SnapshotConflictError):
            self.model.fit(
                *(self.features, self.labels),
                epochs=9,
                verbose=0,
                callbacks=[self.snapshot, Back()],
            )
        self.assertFalse(publisher.update())
        self.assertEqual(publisher.version, 1)

    def test_rollback_without_the_trainer(self):
        publisher = self.publisher()
        for _ in range(3):
            self.train()
            publisher.update()
        tf_ext.serving.rollback(self.sink, 1)
        self.train()
        with self.assertRaisesRegex(SinkError, "pinned version 1"):
            publisher.update()
        self.assertGreater(publisher.lag_seconds, 0)
        self.assert_state(1, 1)
        tf_ext.serving.rollback(self.sink, 3)
        tf_ext.serving.rollback(self.sink, 1)
        self.sink.select(1, pinned=False)
        self.assertTrue(publisher.update())
        self.assert_state(4, 4)
        self.assertEqual(self.sink.versions().retained, (1, 4))
        with self.assertRaisesRegex(ValueError, r"retained \(1, 4\)"):
            tf_ext.serving.rollback(self.sink, 3)

    def test_types_of_rows(self):
        for dtype in ("float16", "int8"):
            self.sink = _Away(self.directory(), keep=3)
            publisher = self.publisher(self.sink, dtype=dtype)
            for version in (1, 2):
                epoch = self.train()
                self.assertTrue(publisher.update())
                self.assert_state(version, epoch, dtype)
        # The same sink with another type: all rows, once.
        publisher = self.publisher(self.sink)
        epoch = self.train()
        publisher.update()
        self.assert_state(3, epoch)

    def test_metrics(self):
        publisher = self.publisher()
        self.train()
        publisher.update()
        self.assertIn(publisher, training_counts.read().publishers)
        self.assertAlmostEqual(publisher.point_time, time.time(), delta=100)
        self.assertEqual(
            publisher.published_rows, sum(map(len, self.states[1][0]))
        )
        prometheus_client = pytest.importorskip("prometheus_client")
        pytest.importorskip("prometheus_client.core")
        from tf_ext.distribute import metrics

        text = prometheus_client.generate_latest(
            metrics.registry(prometheus_client)
        ).decode()
        for name in (
            "tf_ext_published_lag_seconds 0.0",
            "tf_ext_published_step ",
            "tf_ext_published_version ",
            "tf_ext_published_point_time_seconds 1",
            "tf_ext_published_rows_total ",
            "tf_ext_publish_failures_total ",
        ):
            self.assertIn(f"\n{name}", text)

    def test_models_that_cannot_be_published(self):
        with self.assertRaisesRegex(ValueError, "`model`.*l2, l1.*'user'"):
            self.publisher(model=_build(l2=0.1))
        other = small.compiled(small.functional(small.table()))
        self.train()
        with self.assertRaisesRegex(ValueError, "must have the tables of"):
            self.publisher(model=other).update()
        variable = tf.Variable(1.0)

        class Hidden(tf_ext.Model):
            def __init__(self):
                super().__init__()
                self.embed = tf_ext.layers.EmbeddingFeatures(
                    small.columns(), small.table()
                )

            def call(self, inputs):
                return self.embed(inputs) * _HIDDEN[0]

        _HIDDEN[:] = [variable]
        hidden = Hidden()
        hidden(self.features)
        with self.assertRaisesRegex(ValueError, "not among its `variables`"):
            self.publisher(model=hidden)

    def test_arguments(self):
        for options, name in (
            ({"every": 0}, "`every`"),
            ({"every": True}, "`every`"),
            ({"dtype": "bfloat16"}, "`dtype`"),
        ):
            with self.assertRaisesRegex(ValueError, name):
                self.publisher(**options)
        with self.assertRaisesRegex(ValueError, "`sink`"):
            publish(self.model, self.root, self.store)
        with self.assertRaisesRegex(TypeError, "`directory`"):
            publish(self.model, 3, self.sink)
        with self.assertRaisesRegex(TypeError, "`model`"):
            publish(None, self.root, self.sink)
        with self.assertRaisesRegex(ValueError, "`sink`"):
            tf_ext.serving.rollback(self.store, 1)


_HIDDEN = []

if __name__ == "__main__":
    absltest.main()
