# SPDX-License-Identifier: Apache-2.0
"""`fit` knows callbacks by what they implement, not by their classes."""

import contextlib

import pytest
import tensorflow as tf
from absl.testing import absltest
from models.model_building import generator
from models.small_models import batch, compiled, functional, table

import tf_ext
from tf_ext._keras import keras
from tf_ext.recovery.points import Point
from tf_ext.training.callback_protocols import (
    Resuming,
    check_callbacks,
    resuming_among,
)

pytestmark = pytest.mark.both_kerases(slow=True)


class _Own(keras.callbacks.Callback):
    """Continues from epoch 1, without files."""

    sigterm_received = False

    def __init__(self):
        super().__init__()
        self.seen = []

    @contextlib.contextmanager
    def during_fit(self):
        self.seen.append("awaiting")
        yield
        self.seen.append("awaited")

    def tell_sigterm(self, anywhere):
        self.seen.append(anywhere)

    def end_if_preempted(self):
        self.seen.append("preempted")

    def take_streams(self, streams, shares=None):
        assert shares is None
        self.seen.extend(streams)  # None: the data are arrays.

    def take_pause(self, pause):
        del pause

    def can_resume(self):
        return True

    def resume(self, model, epochs):
        self.seen.append(model.built)
        return Point(step=1, epoch=1, step_in_epoch=0, path="/own")

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(epoch)


class _InsideAnEpoch(_Own):
    """Continues after two steps of epoch 1."""

    def resume(self, model, epochs):
        return Point(step=6, epoch=1, step_in_epoch=2, path="/own")


class _RestoringRows(keras.callbacks.EarlyStopping):
    restores_rows = True


class CallbackProtocolsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.model = compiled(functional(table()))
        self.data = batch(generator(self))

    def fit(self, *callbacks, epochs=3):
        x, y = self.data
        self.model.fit(x, y, epochs=epochs, verbose=0, callbacks=[*callbacks])

    def test_continues_from_the_point_of_any_class(self):
        own = _Own()
        with self.assertLogs("tf_ext", "WARNING") as logs:
            self.fit(own)
        self.assertEqual(own.seen, ["awaiting", True, 1, 2, "awaited"])
        self.assertIn("from the recovery point /own", logs.output[0])

    def test_is_told_how_many_steps_epochs_have(self):
        data = tf.data.Dataset.from_tensor_slices(self.data).batch(16)
        unknown = data.filter(lambda *_: True)
        for given, steps in ((data, 4), (unknown, None)):
            own = _InsideAnEpoch()
            self.model.fit(given, epochs=3, verbose=0, callbacks=[own])
            self.assertEqual(own.params["steps"], steps)

    def test_two_that_restore_are_refused(self):
        points = tf_ext.callbacks.TableSnapshot("/tmp/points")
        backup = keras.callbacks.BackupAndRestore("/tmp/backup")
        check_callbacks([backup])
        with self.assertRaisesRegex(
            ValueError, "must be without BackupAndRestore beside TableSnapshot"
        ):
            check_callbacks([points, backup])

    def test_several_points_are_refused(self):
        with self.assertRaisesRegex(ValueError, "at most one TableSnapshot"):
            self.fit(_Own(), _Own())

    def test_is_found_in_what_keras_takes(self):
        own = _Own()
        for given in (own, [own], [[own]], keras.callbacks.CallbackList([own])):
            self.assertIs(resuming_among(given), own)
        for given in (_Own, [_Own], [[_Own]]):
            with self.assertRaisesRegex(ValueError, "not classes"):
                check_callbacks(given)

    def test_others_do_not_resume(self):
        others = [keras.callbacks.Callback(), keras.callbacks.TerminateOnNaN()]
        self.assertIsNone(resuming_among(others))
        self.assertIsNone(resuming_among(None))
        self.assertIsInstance(_Own(), Resuming)

    def test_a_best_epoch_that_is_in_no_point(self):
        stops = _RestoringRows("loss", restore_best_weights=True)
        with self.assertLogs("tf_ext", "WARNING") as logs:
            check_callbacks([stops, _Own()])
        self.assertIn("which _RestoringRows restores", logs.output[0])
        with self.assertNoLogs("tf_ext", "WARNING"):
            check_callbacks([_RestoringRows("loss"), _Own()])

    def test_early_stopping_that_restores_rows(self):
        with self.assertNoLogs("tf_ext", "WARNING"):
            check_callbacks([_RestoringRows("loss", restore_best_weights=True)])
        with self.assertRaisesRegex(ValueError, "which restores variables"):
            self.fit(
                keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
            )


if __name__ == "__main__":
    absltest.main()
