# SPDX-License-Identifier: Apache-2.0
"""`fit`, `evaluate` and `predict` while a worker is stopped."""

import os
import signal
import threading
import time
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from clusters import parameter_server_util as util
from models.model_building import counting_model, number, rows_of

from tf_ext._keras import keras
from tf_ext.distribute import liveness
from tf_ext.training.parameter_servers import inflight

pytestmark = [
    pytest.mark.process,
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

_SAMPLES = 600
_STOP_AT = 100
_cluster = util.Cluster()
_settle = inflight.InFlight._settle


def setUpModule():
    _cluster.start(workers=2, ps=1)


def tearDownModule():
    _cluster.stop()


class _StopWorker(keras.callbacks.Callback):
    """Stops workers when a step ends, and notes when steps end."""

    def __init__(self, step, workers=(0,)):
        super().__init__()
        self._step = step
        self._workers = workers
        self.on_stop = None
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(batch)
        if batch == self._step:
            _send(signal.SIGSTOP, self._workers)
            if self.on_stop:
                self.on_stop()

    def on_test_batch_end(self, batch, logs=None):
        self.on_train_batch_end(batch)

    def on_predict_batch_end(self, batch, logs=None):
        self.on_train_batch_end(batch)


def _send(number, workers=(0, 1)):
    for worker in workers:
        os.kill(_cluster.processes.pid("worker", worker), number)


def _data(samples=_SAMPLES):
    return tf.data.Dataset.from_tensor_slices(
        ({"id": tf.range(samples, dtype=tf.int64)}, tf.zeros([samples, 1]))
    ).batch(1)


class FrozenWorkerTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(
            lambda: print(
                *(_cluster.processes.log("worker", i)[-2000:] for i in (0, 1)),
                sep="\n",
            )
        )
        self.addCleanup(_send, signal.SIGCONT)
        patched = mock.patch.object(liveness, "SILENT_SECONDS", 2.0)
        patched.start()
        self.addCleanup(patched.stop)
        with _cluster.strategy.scope():
            self.model, self.counts = counting_model()

    def updates(self):
        found = rows_of(self.counts)
        self.assertCountEqual(found, range(_SAMPLES))
        return np.concatenate([found[sign] for sign in range(_SAMPLES)])

    @pytest.mark.slow
    def test_fit_goes_on_and_so_does_the_worker_when_it_wakes(self):
        stop = _StopWorker(_STOP_AT)
        with self.assertLogs("tf_ext.distribute.liveness") as logged:
            self.model.fit(_data(), callbacks=[stop], verbose=0)
        self.assertRegex(
            logged.output[0],
            "/job:worker/task:0 at 127.0.0.1:[0-9]+ accepts connections but "
            "does not answer.* It counts as lost: its step is given to another "
            "worker, and may count twice in dense weights",
        )
        # Another step has run it; that of the stopped worker waits in it.
        self.assertEqual(stop.ends, list(range(_SAMPLES)))
        self.assertAllInSet(self.updates(), [1.0])
        # All of it without the worker, which does not wake by itself.
        found = self.model.predict(_data(30), verbose=0)
        self.assertAllClose(found[:, 0], self.updates()[:30])
        checkpoint = tf.train.Checkpoint(model=self.model)
        checkpoint.save(os.path.join(self.get_temp_dir(), "checkpoint"))

        _send(signal.SIGCONT)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            self.assertAllInSet(self.updates(), [1.0])
            time.sleep(0.5)
        iterations = number(self.model.optimizer.iterations)
        self.assertBetween(iterations, _SAMPLES, _SAMPLES + 1)
        # Now the other one: the first works again.
        stop = _StopWorker(_STOP_AT, workers=(1,))
        self.model.fit(_data(), callbacks=[stop], verbose=0)
        self.assertEqual(stop.ends, list(range(_SAMPLES)))

    # Slow machines might need as long for the steps as a stall would take.
    @pytest.mark.slow
    def test_steps_go_on_before_the_worker_counts_as_lost(self):
        with tf.device("/job:worker/task:0"):
            tensors = [tf.zeros([])]
        stop = _StopWorker(_STOP_AT)
        woken = threading.Event()

        def wake():
            woken.set()
            _send(signal.SIGCONT)

        stalled = threading.Timer(30.0, wake)
        self.addCleanup(stalled.cancel)

        def on_stop():
            # Freed on the stopped worker, which does not answer.
            tensors.clear()
            stalled.start()

        stop.on_stop = on_stop
        settled = []

        def settle(inflight, *outcome):
            settled.append(woken.is_set())
            if len(settled) == _SAMPLES // 2:
                _send(signal.SIGCONT)
            return _settle(inflight, *outcome)

        with (
            mock.patch.object(liveness, "SILENT_SECONDS", 600.0),
            mock.patch.object(inflight.InFlight, "_settle", settle),
        ):
            self.model.fit(_data(), callbacks=[stop], verbose=0)
        self.assertFalse(settled[_SAMPLES // 2 - 1])

    @pytest.mark.slow
    def test_evaluate_and_predict(self):
        self.counts.import_rows(
            np.arange(_SAMPLES),
            {"weights": np.float32(np.arange(_SAMPLES))[:, None]},
        )
        stop = _StopWorker(_STOP_AT)
        found = self.model.predict(_data(), callbacks=[stop], verbose=0)
        self.assertEqual(stop.ends, list(range(_SAMPLES)))
        self.assertAllEqual(found[:, 0], np.arange(_SAMPLES))
        _send(signal.SIGCONT)
        stop = _StopWorker(_STOP_AT)
        found = self.model.evaluate(
            _data(), callbacks=[stop], verbose=0, return_dict=True
        )
        self.assertEqual(stop.ends, list(range(_SAMPLES)))
        self.assertAllClose(found["loss"], -(_SAMPLES - 1) / 2, 0.01)

    @pytest.mark.slow
    def test_no_worker_answers(self):
        stop = _StopWorker(_STOP_AT, workers=(0, 1))
        with (
            mock.patch.object(inflight, "_GIVE_UP_SECONDS", 6.0),
            self.assertRaisesRegex(
                TimeoutError,
                "No step has ended for 6 s, because no worker answers: "
                "/job:worker/task:0 at 127.0.0.1:[0-9]+ accepts connections "
                "but does not answer.*/job:worker/task:1 at .*Resume or rest",
            ),
        ):
            self.model.fit(_data(), callbacks=[stop], verbose=0)
        _send(signal.SIGCONT)
        self.model.fit(_data(), verbose=0)


if __name__ == "__main__":
    tf.test.main()
