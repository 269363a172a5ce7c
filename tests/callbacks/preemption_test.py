# SPDX-License-Identifier: Apache-2.0
"""TableSnapshot(on_sigterm=True): SIGTERM ends training, which goes on."""

import os
import signal
import threading

import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from models.model_building import generator, number
from saving_util import TestCase, contents

import tf_ext
from tf_ext._keras import keras
from tf_ext.recovery import files as point_files
from tf_ext.recovery import preemption

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "PreemptionTest::*_epoch",
        "PreemptionTest::test_a_signal_that_was_not_asked_for",
        "PreemptionTest::test_goes_on_in_*",
    ),
]

_BATCH, _STEPS, _EPOCHS = 16, 4, 3


class _Signal(keras.callbacks.Callback):
    """Sends SIGTERM to this process, once, when a method is called again."""

    def __init__(self, method, call):
        super().__init__()
        self._left = call
        setattr(self, method, self._count)

    def _count(self, *_, **__):
        self._left -= 1
        if self._left == 0:
            signal.raise_signal(signal.SIGTERM)


class PreemptionTest(TestCase):
    def setUp(self):
        super().setUp()
        # What the signal did before `fit`, which it must do again afterwards.
        self.passed_on = 0
        before = signal.signal(signal.SIGTERM, self._pass_on)
        self.addCleanup(signal.signal, signal.SIGTERM, before)
        self.root = self.directory()

    def _pass_on(self, *_):
        self.passed_on += 1

    def assert_handler_is_back(self):
        self.assertEqual(signal.getsignal(signal.SIGTERM), self._pass_on)

    def snapshot(self, **options):
        return tf_ext.callbacks.TableSnapshot(
            self.root, steps=100, on_sigterm=True, **options
        )

    def points(self):
        return [
            int(os.path.basename(path).removeprefix("point-"))
            for path in point_files.list_points(self.root)
        ]

    def train(self, callbacks, kind="batches"):
        batch = small.batch(generator(self), _BATCH * _STEPS)
        data = tf.data.Dataset.from_tensor_slices(batch).batch(_BATCH)
        options = {"x": data}
        if kind == "endless":
            options = {"x": data.repeat(), "steps_per_epoch": _STEPS - 1}
        elif kind == "unknown_length":
            options = {"x": data.filter(lambda *_: True)}
        model = small.compiled(small.functional(small.table("adam")))
        self.epochs = []
        note = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, _: self.epochs.append(epoch)
        )
        model.fit(
            **options,
            epochs=_EPOCHS,
            validation_data=data,
            verbose=0,
            callbacks=[note, *callbacks],
        )
        return model

    @parameterized.named_parameters(
        ("in_an_epoch", "on_train_batch_end", 6, 6, [0]),
        ("before_a_step", "on_train_batch_begin", 6, 6, [0]),
        ("in_its_last_step", "on_train_batch_end", 8, 8, [0, 1]),
        ("in_validation", "on_test_batch_end", 2, 4, [0]),
        ("at_the_end_of_an_epoch", "on_epoch_end", 1, 4, [0]),
        ("after_the_last_epoch", "on_train_end", 1, 12, [0, 1, 2]),
        ("in_endless_data", "on_train_batch_end", 4, 4, [0], "endless"),
        (
            "in_the_last_step_of_an_endless_epoch",
            "on_train_batch_end",
            6,
            6,
            [0, 1],
            "endless",
        ),
        (
            "in_data_of_unknown_length",
            "on_train_batch_end",
            8,
            8,
            [0],
            "unknown_length",
        ),
        (
            "in_validation_of_unknown_length",
            "on_test_batch_end",
            2,
            4,
            [0],
            "unknown_length",
        ),
    )
    def test_goes_on(self, method, call, step, epochs, kind="batches"):
        with self.assertLogs("tf_ext", "WARNING") as logs:
            with self.assertRaises(SystemExit) as raised:
                self.train([_Signal(method, call), self.snapshot()], kind)
        self.assertEqual(raised.exception.code, 143)
        self.assertEqual(preemption.STATUS, 143)
        self.assertRegex(
            logs.output[-1],
            f"On SIGTERM, training ends after step {step}, .*point-0+{step}",
        )
        self.assertEqual(self.points(), [step])
        # Not a claim, by which another process would think it is writing.
        self.assertLen(os.listdir(self.root), 1)
        self.assertEqual(self.epochs, epochs)
        self.assert_handler_is_back()
        model = self.train([self.snapshot()], kind)
        whole = self.train([], kind)
        if kind != "unknown_length":  # Keras counts a step without a batch.
            self.assertEqual(
                number(model.optimizer.iterations),
                number(whole.optimizer.iterations),
            )
        found, expected = (contents(m.tables[0]) for m in (model, whole))
        for field, rows in expected.items():
            self.assertCountEqual(found[field], rows)
            for sign, row in rows.items():
                self.assertAllClose(found[field][sign], row, 1e-6, 1e-6)
        self.assertEqual(self.passed_on, 0)

    def test_without_a_signal(self):
        self.train([self.snapshot()])
        self.assertEqual(self.points(), [12])
        self.assert_handler_is_back()

    def test_a_signal_that_was_not_asked_for(self):
        snapshot = tf_ext.callbacks.TableSnapshot(self.root, steps=100)
        self.train([_Signal("on_train_batch_end", 6), snapshot])
        self.assertEqual(self.passed_on, 1)
        self.assertEqual(self.epochs, [0, 1, 2])

    def test_a_signal_before_an_error_takes_effect(self):
        class Fail(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 2:
                    signal.raise_signal(signal.SIGTERM)
                    raise RuntimeError("as of a lost server")

        with self.assertRaisesRegex(RuntimeError, "as of a lost server"):
            self.train([Fail(), self.snapshot()])
        self.assertEqual(self.passed_on, 1)
        self.assert_handler_is_back()

    def test_other_threads_are_refused(self):
        errors = []

        def train():
            try:
                self.train([self.snapshot()])
            except ValueError as error:
                errors.append(str(error))

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        self.assertLen(errors, 1)
        self.assertIn("`on_sigterm` of TableSnapshot must be False", errors[0])


if __name__ == "__main__":
    tf.test.main()
