# SPDX-License-Identifier: Apache-2.0
"""Snapshots of tables on parameter servers, and training that goes on."""

import contextlib
import os

import numpy as np
import pytest
import tensorflow as tf
from clusters import parameter_server_util as util
from models import small_models
from models.model_building import generator
from models.sharded_tables import counters_of
from saving_util import TestCase, contents

import tf_ext
from tf_ext.recovery import files as point_files

pytestmark = [
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "SnapshotTest::test_each_server_writes_its_shard",
        "SnapshotTest::test_points_beside_training",
    ),
]

cluster = util.Cluster()


def setUpModule():
    cluster.start(workers=1, ps=2)


def tearDownModule():
    cluster.stop()


class SnapshotTest(TestCase):
    def _table(self):
        with cluster.strategy.scope():
            return small_models.table("adagrad")

    def _push(self, table, signs, value):
        gradients = np.full([len(signs), table.dim], value, np.float32)
        table.push(signs, gradients, learning_rate=0.1)

    def test_each_server_writes_its_shard(self):
        table = self._table()
        signs = np.arange(500)
        self._push(table, signs, 1.0)
        paths = [self.path("0"), self.path("1")]
        manifest = table.save(paths[0], incremental=True)
        self.assertEqual(manifest.shards, 2)
        self.assertEqual({file.shard for file in manifest.files}, {0, 1})
        self._push(table, signs[:20], 2.0)
        table.erase([3, 4])
        delta = table.save(paths[1], base=paths[0])
        self.assertEqual((delta.rows, delta.erased), (18, 2))
        # On servers, and in this process.
        for other in (self._table(), small_models.table("adagrad")):
            other.load(paths[1])
            self.assertEqual(contents(other), contents(table))

    def test_each_server_applies_its_part_of_a_delta(self):
        table, served = self._table(), small_models.table("adagrad")
        signs = np.arange(500)
        self._push(table, signs, 1.0)
        paths = [self.path(str(number)) for number in range(3)]
        table.save(paths[0], incremental=True)
        on_servers = self._table()
        with tf_ext.serving.weights_only():
            weights = self._table()
        every = (served, on_servers, weights)
        for other in every:
            other.load(paths[0])
        for number in (1, 2):
            table.erase(signs[:100])
            self._push(table, signs[50 * number :], 2.0)
            table.save(paths[number], base=paths[number - 1])
        for other in every:
            other.apply_delta(paths[2])
            self.assertEqual(
                contents(other)["weights"], contents(table)["weights"]
            )
        self.assertEqual(contents(on_servers), contents(table))
        on_servers.erase([400])
        with self.assertRaisesRegex(ValueError, "does not hold the rows"):
            on_servers.apply_delta(paths[2])
        on_servers.load(paths[2], in_place=True)
        self.assertEqual(contents(on_servers), contents(table))

    def test_training_goes_on(self):
        features, labels = small_models.batch(generator(self), 128)
        data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)

        def train(epochs, directory=None, kill=None):
            with cluster.strategy.scope():
                counted = small_models.table(
                    "adagrad", admission=tf_ext.admission.Count(9, forget=5)
                )
                model = small_models.compiled(small_models.functional(counted))
            callbacks = []
            if directory:
                callbacks.append(
                    tf_ext.callbacks.TableSnapshot(
                        directory, steps=3, incremental=True
                    )
                )
            if kill:
                callbacks.append(kill)
            model.fit(
                data,
                epochs=epochs,
                verbose=0,
                max_inflight_steps=1,
                callbacks=callbacks,
            )
            return model

        class Kill(tf.keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if int(self.model.optimizer.iterations.numpy()) == 13:
                    raise KeyboardInterrupt

        [whole] = train(2).tables
        self.assertGreater(whole.size(), 0)
        self.assertNotEmpty(counters_of(whole)[1])
        directory = self.directory()
        with self.assertRaises(KeyboardInterrupt):
            train(2, directory, Kill())
        last = point_files.list_points(directory)[-1]
        self.assertEqual(os.path.basename(last), "point-0000000012")
        model = train(2, directory)
        self.assertEqual(int(model.optimizer.iterations.numpy()), 16)
        self.assertEqual(contents(model.tables[0]), contents(whole))
        self.assertEqual(counters_of(model.tables[0]), counters_of(whole))

    def test_points_beside_training(self):
        features, labels = small_models.batch(generator(self), 512)
        data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)
        with cluster.strategy.scope():
            model = small_models.compiled(
                small_models.functional(small_models.table("adagrad"))
            )
        directory = self.directory()
        points = tf_ext.callbacks.TableSnapshot(
            directory, steps=4, seconds=1e-9, incremental=True, keep=99
        )
        # Points are under way while steps end, and a chain begins anew.
        model.fit(data, epochs=3, verbose=0, callbacks=[points])
        paths = point_files.list_points(directory)
        self.assertGreater(len(paths), 13)
        last = point_files.table_path(paths[-1], 0)
        self.assertLess(len(tf_ext.snapshot.open_snapshot(last).chain), 13)
        for saved, wanted in (
            (point_files.read_point(paths[-1]).step, 96),
            (self._loaded(last), contents(model.tables[0])),
        ):
            self.assertEqual(saved, wanted)

    def _loaded(self, path):
        table = small_models.table("adagrad")
        table.load(path)
        return contents(table)

    def test_training_begins_with_the_rows_of_one_process(self):
        root, own = self.directory(), self.directory()
        old = small_models.model_with_point(generator(self), root)
        wanted = contents(old.tables[0])
        for rule in ("sgd", "adagrad"):
            with cluster.strategy.scope():
                model = small_models.compiled(
                    small_models.functional(small_models.table(rule))
                )
            found = tf_ext.callbacks.warm_start(model, root)
            self.assertEqual(found.rows, {"deep": len(wanted["weights"])})
            rows = contents(model.tables[0])
            self.assertEqual(rows["weights"], wanted["weights"])
            for mine, theirs in zip(
                model.layers[-1].variables, old.layers[-1].variables
            ):
                self.assertAllEqual(mine.numpy(), theirs.numpy())
        features, labels = small_models.batch(generator(self), 128)
        data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)

        def fit(epochs):
            with cluster.strategy.scope():
                model = small_models.compiled(
                    small_models.functional(small_models.table("adagrad"))
                )
            callback = tf_ext.callbacks.TableSnapshot(own, warm_start=root)
            with self.assertLogs("tf_ext", "WARNING") as logs:
                history = model.fit(
                    data, epochs=epochs, verbose=0, callbacks=[callback]
                )
            return history.epoch, str(logs)

        epochs, logs = fit(1)
        self.assertEqual(epochs, [0])
        self.assertIn("Warm start from", logs)
        epochs, logs = fit(2)
        self.assertEqual(epochs, [1])
        self.assertIn("continues from the recovery point", logs)

    def test_training_goes_on_with_another_number_of_servers(self):
        features, labels = small_models.batch(generator(self), 128)
        data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)
        directory = self.directory()

        def train(epochs, scope, **options):
            with scope:
                model = small_models.compiled(
                    small_models.functional(small_models.table("adagrad"))
                )
            model.fit(data, epochs=epochs, verbose=0, **options)
            return model

        expected = contents(train(3, contextlib.nullcontext()).tables[0])
        for epochs, shards in enumerate((1, 2, 1), 1):
            scope, options = contextlib.nullcontext(), {}
            if shards == 2:
                scope = cluster.strategy.scope()
                options["max_inflight_steps"] = 1
            points = tf_ext.callbacks.TableSnapshot(
                directory, steps=3, epoch_end=True, incremental=True
            )
            model = train(epochs, scope, callbacks=[points], **options)
            self.assertEqual(model.tables[0].rows.num_shards, shards)
        self.assertEqual(int(model.optimizer.iterations.numpy()), 24)
        found = contents(model.tables[0])
        for field, rows in expected.items():
            self.assertCountEqual(found[field], rows)
            for sign, row in rows.items():
                self.assertAllClose(found[field][sign], row, 1e-5, 1e-6)

    def test_a_served_model_follows(self):
        features, labels = small_models.batch(generator(self), 128)
        data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)
        with cluster.strategy.scope():
            model = small_models.compiled(
                small_models.functional(small_models.table("adagrad"))
            )
        with tf_ext.serving.weights_only():
            served = small_models.functional(small_models.table("adagrad"))
        directory = self.directory()
        points = tf_ext.callbacks.TableSnapshot(
            directory, steps=4, incremental=True
        )
        for epoch in range(1, 4):
            model.fit(data, verbose=0, callbacks=[points])
            if epoch == 1:
                follower = tf_ext.serving.follow(served, directory, every=3600)
                self.addCleanup(follower.close)
            else:
                follower.update()
            self.assertEqual(follower.step, 8 * epoch)
            self.assertAllClose(
                served.predict(features, verbose=0),
                model.predict(
                    tf.data.Dataset.from_tensor_slices(features).batch(16),
                    verbose=0,
                ),
                rtol=0,
                atol=1e-6,
            )

    def test_a_store_has_the_points(self):
        features, labels = small_models.batch(generator(self), 128)
        data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)
        with cluster.strategy.scope():
            model = small_models.compiled(
                small_models.functional(small_models.table("adagrad"))
            )
        plain = small_models.functional(small_models.table("adagrad"))
        points, store = self.directory(), self.directory()
        snapshot = tf_ext.callbacks.TableSnapshot(
            points, steps=4, incremental=True
        )
        sink = tf_ext.serving.DirectorySink(store)
        with self.assertRaisesRegex(ValueError, "model outside of the scope"):
            tf_ext.serving.publish(model, points, sink, every=None)
        for epoch in range(1, 4):
            with tf_ext.serving.publish(plain, points, sink, every=0.01):
                model.fit(data, verbose=0, callbacks=[snapshot])
            version = sink.versions().current
            self.assertEqual(sink.manifest(version)["step"], 8 * epoch)
            found = {
                sign: bytes(row)
                for signs, rows in sink.read_rows(version, "deep")
                for sign, row in zip(signs.tolist(), rows, strict=True)
            }
            wanted = {
                sign: np.array(row, np.float32).tobytes()
                for sign, row in contents(model.tables[0])["weights"].items()
            }
            self.assertEqual(found, wanted)
