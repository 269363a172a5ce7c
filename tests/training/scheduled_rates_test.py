# SPDX-License-Identifier: Apache-2.0
"""Learning rates that callbacks change, and restarts within an epoch."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small

import tf_ext
from tf_ext._keras import keras

pytestmark = pytest.mark.both_kerases

_BATCHES = 4


class _Interrupt(keras.callbacks.Callback):
    """Raises after a number of steps, if it is given."""

    def __init__(self, steps):
        super().__init__()
        self._left = steps

    def on_train_batch_end(self, batch, logs=None):
        if self._left:
            self._left -= 1
            if not self._left:
                raise KeyboardInterrupt


class ScheduledRatesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.enterContext(tempfile.TemporaryDirectory())

    def _fit(self, interrupted=None, known=True, every=2):
        """Trains, perhaps until an interrupt; the rates of the epochs."""
        user = tf_ext.feature_column.category_column("user")
        inputs = {"user": keras.Input((), dtype="int64", name="user")}
        table = tf_ext.SparseTable("user", 2)
        rows = tf_ext.layers.EmbeddingFeatures([user], table)(inputs)
        model = tf_ext.Model(inputs, keras.layers.Dense(1)(rows))
        model = small.compiled(model, keras.optimizers.SGD(0.8))
        features = {"user": np.arange(_BATCHES)}
        data = tf.data.Dataset.from_tensor_slices((features, np.ones(_BATCHES)))
        data = data.batch(1)
        rates = []
        model.fit(
            data if known else data.filter(lambda *_: True),
            epochs=3,
            verbose=0,
            callbacks=[
                keras.callbacks.LearningRateScheduler(lambda _, rate: rate / 2),
                keras.callbacks.LambdaCallback(
                    on_epoch_end=lambda *_: rates.append(
                        float(model.optimizer.learning_rate)
                    )
                ),
                tf_ext.callbacks.TableSnapshot(self.root, steps=every),
                _Interrupt(interrupted),
            ],
        )
        return rates

    @parameterized.parameters(
        # Behind the second step of the second epoch, and behind its last.
        {"interrupted": 7},
        {"interrupted": 8, "known": False},
        # Where it begins.
        {"interrupted": 5, "every": 4},
    )
    def test_a_factor_for_each_epoch(self, interrupted, **options):
        with self.assertRaises(KeyboardInterrupt):
            self._fit(interrupted, **options)
        self.assertAllClose(self._fit(**options), [0.2, 0.1])
