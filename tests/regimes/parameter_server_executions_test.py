# SPDX-License-Identifier: Apache-2.0
"""`steps_per_execution` on a cluster, against one process."""

import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import execution_cases
from clusters import parameter_server_util as util
from models import small_models
from models.model_building import generator, number
from saving_util import contents

import tf_ext
from tf_ext._keras import keras
from tf_ext.recovery import files as point_files

pytestmark = [
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

_CLUSTER = util.Cluster()


def setUpModule():
    _CLUSTER.start()


def tearDownModule():
    _CLUSTER.stop()


class _Recorder(keras.callbacks.Callback):
    """Writes down the batches of the hooks, and counts what ends."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.begun, self.ended = [], []
        self._stop_at = stop_at

    def on_train_batch_begin(self, batch, logs=None):
        self.begun.append(batch)

    def on_train_batch_end(self, batch, logs=None):
        self.ended.append(batch)
        if batch == self._stop_at:
            self.model.stop_training = True


class Twice(tf_ext.Model):
    """Its training step has logs of its own."""

    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "twice": 2.0 * tf.convert_to_tensor(logs["loss"])}


def _hashed(data):
    return tf_ext.data.hash_columns(data, small_models.columns())


class ExecutionsTest(execution_cases.ExecutionsCase, parameterized.TestCase):
    cluster = _CLUSTER

    def assert_same(self, one, other, alone, spread):
        found = dict(other.history)
        self.assertEqual(found.pop("staleness"), [0.0] * len(one.epoch))
        self.assertCountEqual(found, one.history)
        for name, values in one.history.items():
            self.assertAllClose(found[name], values, 1e-6, 1e-6, msg=name)
        self.assert_same_model(alone, spread)

    def test_one_execution_at_a_time_is_one_process(self):
        self._check_one_at_a_time(8)

    # All steps of an epoch, and more.
    @parameterized.named_parameters(("13", 13), ("50", 50))
    @pytest.mark.slow
    def test_long_executions_are_one_process(self, steps):
        self._check_one_at_a_time(steps)

    def _check_one_at_a_time(self, steps):
        alone, spread = self.alone(), self.spread(steps)
        options = {"epochs": 2, "verbose": 0}
        one = alone.fit(self.data(), **options)
        recorder = _Recorder()
        other = spread.fit(
            self.data(), max_inflight_steps=1, callbacks=[recorder], **options
        )
        self.assert_same(one, other, alone, spread)
        begun, ended = [*range(0, 13, steps)], [*range(steps - 1, 12, steps)]
        self.assertEqual(recorder.begun, 2 * begun)
        self.assertEqual(recorder.ended, 2 * [*ended, 12])

    @pytest.mark.slow
    def test_schedules_hashed_columns_and_epochs_that_go_on(self):
        # Epochs of 5 steps do not end with an execution of 3.
        def dense():
            schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5)
            return keras.optimizers.SGD(schedule, momentum=0.9)

        alone, spread = self.alone(dense=dense), self.spread(3, dense=dense)
        options = {"epochs": 3, "steps_per_epoch": 5, "verbose": 0}
        options["class_weight"] = {0: 1.0, 1: 2.0}
        one = alone.fit(self.data().repeat(), **options)
        other = spread.fit(
            _hashed(self.data()).repeat(), max_inflight_steps=5, **options
        )
        self.assert_same(one, other, alone, spread)

    def test_data_that_end_within_an_execution(self):
        spread = self.spread(4)
        recorder = _Recorder()
        with self.assertLogs("tensorflow", "WARNING") as logs:
            spread.fit(
                self.data(6),
                steps_per_epoch=8,
                callbacks=[recorder],
                verbose=0,
            )
        self.assertRegex("".join(logs.output), "ended after 6 of 8 steps")
        self.assertEqual(number(spread.optimizer.iterations), 6)
        self.assertEqual(recorder.ended, [3, 5])

    def test_executions_under_way_at_once(self):
        spread = self.spread(3)
        recorder = _Recorder()
        history = spread.fit(
            self.data().filter(lambda *_: True),
            epochs=2,
            callbacks=[recorder],
            verbose=0,
        )
        self.assertEqual(recorder.ended, 2 * [2, 5, 8, 11, 12])
        self.assertEqual(number(spread.optimizer.iterations), 26)
        self.assertAllGreaterEqual(history.history["staleness"], 0.0)

    @pytest.mark.slow
    def test_data_that_workers_read(self):
        data = small_models.batch(generator(self), 64)

        def make(context):
            tensors = tf.nest.map_structure(tf.constant, data)
            return tf.data.Dataset.from_tensors(tensors).repeat()

        spread = self.spread(4)
        recorder = _Recorder()
        spread.fit(
            make,
            epochs=2,
            steps_per_epoch=10,
            callbacks=[recorder],
            verbose=0,
        )
        self.assertEqual(number(spread.optimizer.iterations), 20)
        self.assertEqual(recorder.ended, 2 * [3, 7, 9])
        with self.assertRaisesRegex(ValueError, "must not end.*repeat"):
            spread.fit(
                lambda context: make(context).take(6),
                steps_per_epoch=40,
                verbose=0,
            )

    def test_stopping(self):
        spread = self.spread(4)
        recorder = _Recorder(stop_at=3)
        spread.fit(
            self.data(),
            epochs=2,
            max_inflight_steps=4,
            callbacks=[recorder],
            verbose=0,
        )
        self.assertEqual(recorder.ended, [3])
        self.assertEqual(number(spread.optimizer.iterations), 4)

    @pytest.mark.slow
    def test_logs_of_a_step_of_ones_own(self):
        with _CLUSTER.strategy.scope():
            model = small_models.functional(small_models.table("adam"), Twice)
            small_models.compiled(model, steps_per_execution=4)
        logs = model.fit(self.data(), max_inflight_steps=1, verbose=0).history
        self.assertGreater(logs["loss"][0], 0)
        self.assertAllClose(logs["twice"][0], 2 * logs["loss"][0])

    @pytest.mark.slow
    def test_recovery_points_are_written_between_executions(self):
        alone = self.alone()
        alone.fit(self.data(), epochs=2, verbose=0)
        directory = self.directory()

        def train(stop=None):
            spread = self.spread(4)
            spread.fit(
                self.data(),
                epochs=2,
                max_inflight_steps=1,
                callbacks=[
                    tf_ext.callbacks.TableSnapshot(directory, steps=6, keep=9),
                    *([stop] if stop else []),
                ],
                verbose=0,
            )
            return spread

        class Fail(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 11:
                    raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            train(Fail())
        points = point_files.list_points(directory)
        self.assertEqual([int(point[-10:]) for point in points], [8])
        spread = train()
        self.assertEqual(number(spread.optimizer.iterations), 26)
        self.assertEqual(
            contents(spread.tables[0])["weights"].keys(),
            contents(alone.tables[0])["weights"].keys(),
        )
        self.assert_same_dense(alone, spread)

    def test_evaluate_and_predict_run_one_batch_at_a_time(self):
        alone, spread = self.alone(), self.spread(4)
        for method in ("evaluate", "predict"):
            self.assertAllClose(
                getattr(spread, method)(_hashed(self.data()), verbose=0),
                getattr(alone, method)(self.data(), verbose=0),
                1e-6,
                1e-6,
            )

    @parameterized.parameters(-1, 2.5)
    def test_refused(self, steps):
        with self.assertRaisesRegex(
            ValueError, "`steps_per_execution` of compile must be an integer"
        ):
            self.spread(steps)


class LostWorkerTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_a_worker_that_is_killed_within_executions(self):
        execution_cases.check_a_worker_that_is_killed(self)


if __name__ == "__main__":
    tf.test.main()
