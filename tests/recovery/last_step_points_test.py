# SPDX-License-Identifier: Apache-2.0
"""Points of the last step of an epoch that is not known to be the last."""

import math
import os
import signal
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small

import tf_ext
from tf_ext._keras import keras
from tf_ext.recovery import files
from tf_ext.recovery import points as recovery_points
from tf_ext.tables.saving.snapshot_save import Save

pytestmark = pytest.mark.both_kerases(slow=True)

_BATCHES = 8


class _Decay(keras.callbacks.Callback):
    """Changes rows at the end of each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        [table] = self.model.tables
        table.decay_statistics(0.5)


def _model(**options):
    user = tf_ext.feature_column.category_column("user")
    inputs = {"user": keras.Input((), dtype="int64", name="user")}
    table = tf_ext.SparseTable("user", 2, statistics=["show"])
    rows = tf_ext.layers.EmbeddingFeatures([user], table)(inputs)
    model = tf_ext.Model(inputs, keras.layers.Dense(1)(rows))
    return small.compiled(model, **options)


def _data(known=False):
    features = {"user": np.arange(_BATCHES)}
    data = tf.data.Dataset.from_tensor_slices((features, np.ones(_BATCHES)))
    data = data.batch(1)
    return data if known else data.filter(lambda *_: True)


def _shows(model):
    [table] = model.tables
    return sorted(np.ravel(table.export_rows()[1]["show"]).tolist())


class LastStepTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.enterContext(tempfile.TemporaryDirectory())

    def _fit(self, model, epochs=2, known=False, **options):
        options = {"steps": 4, **options}
        points = tf_ext.callbacks.TableSnapshot(self.root, **options)
        callbacks = [_Decay(), points]
        data = _data(known)
        model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
        return model

    def _saved(self):
        model = _model()
        tf_ext.callbacks.warm_start(model, self.root)
        return _shows(model)

    def _points(self):
        found = [
            files.read_point(path) for path in files.list_points(self.root)
        ]
        return [(one.step, one.epoch, one.step_in_epoch) for one in found]

    @parameterized.parameters(False, True)
    def test_has_what_ends_the_epoch(self, incremental):
        model = self._fit(_model(), incremental=incremental)
        self.assertEqual(_shows(model), [0.75] * _BATCHES)
        self.assertEqual(self._saved(), _shows(model))
        points = [(8, 1, 0), (12, 1, 4), (16, 2, 0)]
        if incremental:  # Those that others continue are kept as well.
            points = [(4, 0, 4), (8, 0, 8), *points]
            points.insert(4, (16, 1, 8))
        self.assertEqual(self._points(), points)
        longer = self._fit(_model(), 3, incremental=incremental)
        self.assertEqual(_shows(longer), [0.875] * _BATCHES)

    def test_executions_that_are_longer_than_the_data(self):
        model = self._fit(_model(steps_per_execution=3), known=True, steps=3)
        self.assertEqual(self._saved(), _shows(model))
        # The last step is known.
        names = map(os.path.basename, files.list_points(self.root))
        self.assertNotIn("end", str([*names]))

    @parameterized.parameters({"keep": 3}, {"keep": 1}, {"epoch_end": True})
    def test_the_only_point(self, **options):
        options["steps"] = 8
        model = self._fit(_model(), 1, **options)
        self.assertEqual(_shows(model), [0.5] * _BATCHES)
        self.assertEqual(self._saved(), _shows(model))
        self.assertEqual(self._points(), [(8, 1, 0)])
        again = self._fit(_model(), 1, **options)
        self.assertEqual(_shows(again), [0.5] * _BATCHES)
        longer = self._fit(_model(), 2, **options)
        self.assertEqual(_shows(longer), [0.75] * _BATCHES)
        self.assertEqual(self._saved(), _shows(longer))

    def test_the_logs_of_an_epoch_that_has_ended(self):
        """Callbacks that compare losses hear those that it had."""

        class Killed(keras.callbacks.Callback):
            def on_test_begin(self, logs=None):
                raise OSError

        def fit(directory, *callbacks):
            points = tf_ext.callbacks.TableSnapshot(directory, steps=4)
            best = keras.callbacks.EarlyStopping("loss", patience=1)
            keras.utils.set_random_seed(1)
            history = _model().fit(
                _data(),
                epochs=3,
                verbose=0,
                validation_data=_data(),
                callbacks=[best, points, *callbacks],
            )
            return history, best.best

        with self.assertRaises(OSError):
            fit(self.root, Killed())
        found, best = fit(self.root)
        whole, best_of_whole = fit(f"{self.root}/whole")
        self.assertEqual(found.epoch, [0, 1, 2])
        self.assertAllClose(found.history, whole.history, 1e-6, 1e-6)
        self.assertAllClose(best, best_of_whole, 1e-6, 1e-6)

    def test_logs_that_are_no_numbers(self):
        step = {"loss": tf.constant(math.nan), "text": b"a", "both": [1, 2.5]}
        points = tf_ext.callbacks.TableSnapshot(self.root, steps=4)
        points.set_model(_model())
        points.model.optimizer.build(points.model.trainable_variables)
        points.on_train_batch_end(3, step)
        points.on_train_end()
        [path] = files.list_points(self.root)
        logs = files.read_point(path).logs
        self.assertEqual(list(logs), ["loss", "both"])
        self.assertAllEqual(logs["loss"], math.nan)
        self.assertEqual(logs["both"], [1, 2.5])

    def test_a_signal_at_the_end_of_an_epoch(self):
        stop = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda *_: os.kill(os.getpid(), signal.SIGTERM)
        )
        points = tf_ext.callbacks.TableSnapshot(
            self.root, steps=8, on_sigterm=True
        )
        with mock.patch.object(
            recovery_points, "write", side_effect=recovery_points.write
        ) as write:
            with self.assertRaises(SystemExit):
                _model().fit(_data(), verbose=0, callbacks=[stop, points])
        # Neither is written twice: a kill could leave it damaged.
        self.assertEqual(write.call_count, 2)
        self.assertEqual(os.listdir(self.root), ["point-0000000008-end"])

    @parameterized.parameters("sync", "commit")
    def test_an_error_while_it_is_replaced(self, step):
        done, calls = getattr(Save, step), []

        def fail(save):
            calls.append(save)
            if len(calls) == 3:  # Of steps 4 and 8, and of the epoch's end.
                raise OSError("full")
            return done(save)

        with mock.patch.object(Save, step, fail):
            with self.assertRaisesRegex(OSError, "full"):
                self._fit(_model(), 1)
        self.assertEqual(self._points(), [(4, 0, 4), (8, 0, 8)])
        model = self._fit(_model())
        self.assertEqual(_shows(model), [0.75] * _BATCHES)


if __name__ == "__main__":
    tf.test.main()
