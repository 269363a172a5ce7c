# SPDX-License-Identifier: Apache-2.0
"""`fit` on tables goes on after a worker or a parameter server was lost."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters import parameter_server_util as util
from models import small_models
from models.model_building import counting_model, generator, number, rows_of
from models.small_models import compiled, functional, table
from saving_util import TestCase, contents

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

_CLUSTER = util.Cluster()
_EPOCHS = 3


def setUpModule():
    _CLUSTER.start(restart_lost=True)


def tearDownModule():
    _CLUSTER.stop()


class _At(keras.callbacks.Callback):
    """Does something once, in a step of an epoch."""

    def __init__(self, epoch, step, action):
        super().__init__()
        self._epoch, self._step = epoch, step
        self._action = action
        self.done = 0

    def on_epoch_begin(self, epoch, logs=None):
        self._here = epoch == self._epoch

    def on_train_batch_end(self, batch, logs=None):
        if self._here and batch == self._step and not self.done:
            self.done += 1
            self._action()


class _Saver(keras.callbacks.Callback):
    """Saves a checkpoint after each epoch, which is a variable of it."""

    def __init__(self, manager, epochs_done):
        super().__init__()
        self._manager = manager
        self._epochs_done = epochs_done

    def on_epoch_end(self, epoch, logs=None):
        self._epochs_done.assign(epoch + 1)
        self._manager.save()


class ServerLostTest(TestCase):
    def data(self):
        rng = generator(self)
        features, labels = small_models.batch(rng, 1024, ids=50)
        flipped = rng.uniform(size=labels.shape) < 0.1
        labels = np.where(flipped, 1 - labels, labels)
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)

    def make(self):
        dense = keras.optimizers.SGD(0.1, momentum=0.9)
        return compiled(functional(table("adagrad")), dense, metrics=["AUC"])

    def auc(self, model, data):
        logs = model.evaluate(data, verbose=0, return_dict=True)
        (value,) = [logs[name] for name in logs if "auc" in name.lower()]
        return value

    def undisturbed(self, data):
        model = self.make()
        model.fit(data, epochs=_EPOCHS, verbose=0)
        return self.auc(model, data), contents(model.tables[0])

    def test_backup_and_restore(self):
        data = self.data()
        expected_auc, expected = self.undisturbed(data)
        self.assertBetween(expected_auc, 0.8, 0.97)
        directory = self.path("backup")
        kill = _At(1, 20, lambda: _CLUSTER.processes.kill("ps", 1))
        begun = []
        note = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: begun.append(epoch)
        )

        def train(strategy):
            with strategy.scope():
                model = self.make()
            model.fit(
                self.data(),
                epochs=_EPOCHS,
                callbacks=[
                    keras.callbacks.BackupAndRestore(directory),
                    kill,
                    note,
                ],
                max_inflight_steps=1,
                verbose=0,
            )
            return (
                self.auc(model, self.data()),
                contents(model.tables[0]),
                number(model.optimizer.iterations),
            )

        auc, rows, iterations = tf_ext.distribute.run_with_recovery(
            train, _CLUSTER.processes.strategy
        )
        self.assertEqual(kill.done, 1)
        self.assertEqual(begun, [0, 1, 1, 2])
        self.assertEqual(iterations, _EPOCHS * 64)
        self.assertAllClose(auc, expected_auc, 0, 1e-5)
        for field, values in expected.items():
            self.assertCountEqual(rows[field], values)
            for sign, row in values.items():
                self.assertAllClose(rows[field][sign], row, 1e-5, 1e-5)

    @pytest.mark.slow
    def test_checkpoints_and_asynchronous_steps(self):
        data = self.data()
        expected_auc, expected = self.undisturbed(data)
        directory = self.directory()
        kill = _At(1, 20, lambda: _CLUSTER.processes.kill("ps", 0))
        starts = []

        def train(strategy):
            with strategy.scope():
                model = self.make()
                model.optimizer.build(model.trainable_variables)
                done = tf.Variable(0, trainable=False)
            checkpoint = tf.train.Checkpoint(model=model, done=done)
            manager = tf.train.CheckpointManager(checkpoint, directory, 2)
            if manager.latest_checkpoint:
                checkpoint.restore(manager.latest_checkpoint).assert_consumed()
            starts.append((number(done), number(model.optimizer.iterations)))
            model.fit(
                self.data(),
                initial_epoch=number(done),
                epochs=_EPOCHS,
                callbacks=[kill, _Saver(manager, done)],
                verbose=0,
            )
            return self.auc(model, self.data()), contents(model.tables[0])

        auc, rows = tf_ext.distribute.run_with_recovery(
            train, _CLUSTER.processes.strategy
        )
        self.assertEqual(starts, [(0, 0), (1, 64)])
        self.assertAllClose(auc, expected_auc, 0, 0.01)
        self.assertCountEqual(rows["weights"], expected["weights"])

    @pytest.mark.timeout(180)
    def test_a_server_while_a_worker_is_waited_for(self):
        processes = _CLUSTER.processes

        def lose():
            with processes._lock:  # None is started again before.
                processes.kill("worker", 0)
                time.sleep(3.0)  # The other worker has trained its share.
                processes.kill("ps", 0)

        losing = threading.Thread(target=lose)
        loses = _At(0, 20, losing.start)
        epochs = []
        note = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: epochs.append(epoch)
        )

        def share(context):
            return self.data().shard(2, context.input_pipeline_id)

        def train(strategy):
            with strategy.scope():
                model = self.make()
            model.fit(share, callbacks=[loses, note], verbose=0)
            return number(model.optimizer.iterations)

        iterations = tf_ext.distribute.run_with_recovery(
            train, processes.strategy
        )
        losing.join()
        self.assertEqual((loses.done, iterations, epochs), (1, 64, [0]))

    @pytest.mark.slow
    def test_losses_beyond_those_allowed(self):
        def train(strategy):
            with strategy.scope():
                model = self.make()
            model.fit(
                self.data(),
                callbacks=[_At(0, 5, self._kill)],
                verbose=0,
            )

        with self.assertRaisesRegex(
            tf_ext.distribute.ServerLostError, "/job:ps/task:0"
        ):
            tf_ext.distribute.run_with_recovery(
                train, _CLUSTER.processes.strategy, max_restarts=0
            )

    def _kill(self):
        _CLUSTER.processes.kill("ps", 0)


def _each_id(samples):
    return tf.data.Dataset.from_tensor_slices(
        ({"id": tf.range(samples, dtype=tf.int64)}, tf.zeros([samples, 1]))
    )


class WorkerLostTest(TestCase, parameterized.TestCase):
    def _assert_once(self, rows, samples):
        """Each id was trained on once, by the rows of `counting_model`."""
        self.assertCountEqual(rows, range(samples))
        updates = np.concatenate([rows[sign] for sign in range(samples)])
        self.assertAllInSet(updates, [1.0])

    def test_every_sample_is_trained(self):
        samples = 300
        # Left by the last test, if there was one.
        strategy = _CLUSTER.processes.strategy()
        with strategy.scope():
            model, counts = counting_model()
        data = _each_id(samples).batch(1)
        processes = _CLUSTER.processes
        kills = [
            _At(0, 70, lambda: processes.kill("worker", 0)),
            _At(0, 180, lambda: processes.kill("worker", 1)),
        ]
        ends = []
        note = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: ends.append(batch)
        )
        model.fit(data, callbacks=[*kills, note], verbose=0)
        self.assertEqual([kill.done for kill in kills], [1, 1])
        self.assertEqual(ends, list(range(samples)))
        self._assert_once(rows_of(counts), samples)
        # A worker has one step under way, which is run again; it may have got
        # as far as the iterations or not.
        iterations = number(model.optimizer.iterations)
        self.assertBetween(iterations, samples, samples + len(kills))

    @parameterized.named_parameters(
        ("chief_reads", False, {}),
        ("workers_read", True, {}),
        ("overlapping", False, {"overlap_steps": True}),
    )
    def test_goes_back_to_the_last_point(self, workers_read, options):
        samples = 600
        processes = _CLUSTER.processes
        kills = [
            # Before a worker can have read all of its share, of 300 steps.
            _At(0, 151, lambda: processes.kill("worker", 0)),
            _At(0, 281, lambda: processes.kill("worker", 1)),
        ]
        directory = self.path("points")

        def share(context):
            ids = _each_id(samples).shard(2, context.input_pipeline_id)
            return ids.batch(1)

        calls = []

        def train(strategy):
            calls.append(1)
            with strategy.scope():
                model, counts = counting_model()
                if options:
                    model.compile(
                        model.optimizer, model.loss, steps_per_execution=2
                    )
            model.fit(
                share if workers_read else _each_id(samples).batch(1),
                callbacks=[
                    tf_ext.callbacks.TableSnapshot(directory, steps=20),
                    *kills,
                ],
                verbose=0,
                retry_steps=False,
                **options,
            )
            return number(model.optimizer.iterations), rows_of(counts)

        iterations, rows = tf_ext.distribute.run_with_recovery(
            train, processes.strategy
        )
        self.assertLen(calls, 3)
        self.assertEqual(iterations, samples)
        self._assert_once(rows, samples)


if __name__ == "__main__":
    tf.test.main()
