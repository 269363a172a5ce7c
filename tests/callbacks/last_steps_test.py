# SPDX-License-Identifier: Apache-2.0
"""A recovery point that is due as an epoch ends is one of the next epoch."""

import contextlib
import tempfile
from unittest import mock

import pytest
from absl.testing import parameterized

import tf_ext
from tf_ext._keras import keras
from tf_ext.recovery.pause import Pause

pytestmark = pytest.mark.both_kerases(slow=True)


class LastStepsTest(parameterized.TestCase):
    def _callback(self, **options):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        callback = tf_ext.callbacks.TableSnapshot(folder, **options)
        callback.set_model(mock.Mock(stop_training=False))
        self.saved = []

        def save(one):
            point = one._point
            self.saved.append((point.step, point.epoch, point.step_in_epoch))
            one._saved = point

        self.enterContext(
            mock.patch.object(tf_ext.callbacks.TableSnapshot, "_save", save)
        )
        return callback

    @contextlib.contextmanager
    def _on_sigterm(self, callback):
        """Where the signal has come: what has ended, a list."""
        ended = []
        with (
            mock.patch.object(callback, "_notice", mock.Mock(received=True)),
            mock.patch.object(
                callback, "end_if_preempted", lambda: ended.append("end")
            ),
        ):
            yield ended

    @parameterized.parameters(3, 4)
    def test_steps_that_are_under_way(self, steps):
        callback = self._callback(steps=3)
        pause = Pause()
        callback.take_pause(pause)
        callback.set_params({"steps": steps, "epochs": 2})
        callback.on_epoch_begin(0)
        for step in range(steps):
            pause.under_way = steps - step - 1
            callback.on_train_batch_end(step)
            # No step begins, and the point is written when all have ended.
            is_waiting = steps > 3 and step == 2
            self.assertEqual(pause.holds(), is_waiting)
        self.assertEqual(self.saved, [])
        callback.on_epoch_end(0)
        self.assertEqual(self.saved, [(steps, 1, 0)])

    def test_within_an_epoch(self):
        callback = self._callback(steps=3)
        pause = Pause()
        callback.take_pause(pause)
        callback.set_params({"steps": 9, "epochs": 2})
        for step in range(4):
            pause.under_way = 3 - step
            callback.on_train_batch_end(step)
        self.assertFalse(pause.holds())
        self.assertEqual(self.saved, [(4, 0, 4)])

    def test_sigterm_before_the_last_steps(self):
        callback = self._callback(steps=100, on_sigterm=True)
        pause = Pause()
        callback.take_pause(pause)
        callback.set_params({"steps": 4, "epochs": 2})
        with self._on_sigterm(callback) as ended:
            for step in range(4):
                pause.under_way = 3 - step
                callback.on_train_batch_end(step)
            self.assertFalse(pause.holds())
            self.assertEqual(ended, [])
            callback.on_epoch_end(0)
        self.assertEqual(ended, ["end"])

    def test_sigterm_while_steps_are_under_way(self):
        callback = self._callback(steps=100, on_sigterm=True)
        pause = Pause()
        callback.take_pause(pause)
        callback.set_params({"steps": 9, "epochs": 2})
        with self._on_sigterm(callback) as ended:
            pause.under_way = 1
            callback.on_train_batch_end(0)
            # No other step begins before the program ends.
            self.assertTrue(pause.holds())
            self.assertEqual(ended, [])
            pause.under_way = 0
            self.assertFalse(pause.holds())
        self.assertEqual(ended, ["end"])

    def test_steps_go_on_after_an_interrupted_epoch(self):
        callback = self._callback(steps=2)
        for steps in (5, 3):
            with (
                self.assertRaises(KeyboardInterrupt),
                callback.during_fit(),
            ):
                callback.on_epoch_begin(0)
                for step in range(steps):
                    callback.on_train_batch_end(step)
                raise KeyboardInterrupt
        self.assertEqual(
            self.saved, [(2, 0, 2), (4, 0, 4), (6, 0, 1), (8, 0, 3)]
        )

    def test_a_list_of_callbacks_without_parameters(self):
        callback = self._callback(steps=1)
        callbacks = keras.callbacks.CallbackList([callback])
        with mock.patch.object(callback, "end_if_preempted"):
            callbacks.on_train_batch_end(0)
        self.assertEqual(self.saved, [(1, 0, 1)])


if __name__ == "__main__":
    parameterized.absltest.main()
