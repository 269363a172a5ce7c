# SPDX-License-Identifier: Apache-2.0
"""What `fit` does when a worker or a parameter server dies."""

import threading

import processes
import pytest
import tensorflow as tf
from clusters import parameter_server_util as util
from models.model_building import number

import tf_ext
from tf_ext._keras import keras

pytestmark = [pytest.mark.process, pytest.mark.both_kerases(slow=True)]


class _At(keras.callbacks.Callback):
    """Does something once, when a step ends."""

    def __init__(self, step, action):
        super().__init__()
        self._step = step
        self._action = action

    def on_train_batch_end(self, batch, logs=None):
        if batch == self._step:
            self._action()


class FaultsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.cluster = util.Cluster()
        self.addCleanup(self.cluster.stop)
        self.cluster.start()

    @pytest.mark.slow
    def test_a_worker_that_comes_back(self):
        with self.cluster.strategy.scope():
            model = util.model()
        processes = self.cluster.processes
        restarts = []

        def restart():
            processes.kill("worker", 0)
            thread = threading.Thread(
                target=processes.restart, args=("worker", 0)
            )
            thread.start()
            restarts.append(thread)

        data = util.data(3200, 8)
        history = model.fit(data, callbacks=[_At(100, restart)], verbose=0)
        restarts[0].join()
        self.assertLen(history.epoch, 1)
        # Steps that were under way on it may have counted before it died.
        self.assertBetween(number(model.optimizer.iterations), 400, 402)
        # Its results are fetched from the workers: none is missing.
        found = model.predict(
            data, callbacks=[_PredictAt(100, restart)], verbose=0
        )
        restarts[1].join()
        self.assertLen(found, 3200)
        features, _ = util.arrays(3200)
        self.assertAllClose(
            found, model.predict(features, batch_size=800, verbose=0), 1e-6
        )

    @pytest.mark.slow
    def test_a_parameter_server_that_dies(self):
        with self.cluster.strategy.scope():
            model = util.model()

        def kill():
            self.cluster.processes.kill("ps", 1)

        with self.assertRaisesRegex(
            tf_ext.distribute.ServerLostError, "/job:ps/task:1"
        ):
            model.fit(util.data(3200, 8), callbacks=[_At(50, kill)], verbose=0)


class EndTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_a_program_ends_after_the_loss_of_a_worker_and_a_server(self):
        # TensorFlow would wait for the worker, and the worker for the server.
        output = processes.run("lost_server_program.py", timeout_seconds=200)
        self.assertIn("/job:ps/task:0", output)
        self.assertEndsWith(output.strip(), "ends")


class _PredictAt(_At):
    """The same in predict."""

    def on_predict_batch_end(self, batch, logs=None):
        self.on_train_batch_end(batch)


if __name__ == "__main__":
    tf.test.main()
