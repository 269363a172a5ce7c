"""Snapshots of tables on parameter servers, and training that goes on."""

import os

import numpy as np
import parameter_server_util as util
import small_models
import tensorflow as tf
from model_building import generator
from saving_util import TestCase, contents

import tf_ext
from tf_ext.callbacks import recovery_points

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

    def test_training_goes_on(self):
        features, labels = small_models.batch(generator(self), 128)
        data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)

        def train(epochs, directory=None, kill=None):
            with cluster.strategy.scope():
                model = small_models.compiled(
                    small_models.functional(small_models.table("adagrad"))
                )
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

        whole = contents(train(2).tables[0])
        directory = self.directory()
        with self.assertRaises(KeyboardInterrupt):
            train(2, directory, Kill())
        last = recovery_points.list_points(directory)[-1]
        self.assertEqual(os.path.basename(last), "point-0000000012")
        model = train(2, directory)
        self.assertEqual(int(model.optimizer.iterations.numpy()), 16)
        self.assertEqual(contents(model.tables[0]), whole)
