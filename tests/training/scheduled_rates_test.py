# SPDX-License-Identifier: Apache-2.0
"""Learning rates that callbacks change, and restarts within an epoch."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from killed_training import Kill, KilledError
from models import small_models as small

import tf_ext
from tf_ext._keras import keras

pytestmark = pytest.mark.both_kerases

_BATCHES = 4


class _Batches(keras.utils.Sequence):
    """Batches whose position a point does not restore."""

    def __init__(self, data):
        super().__init__()
        self._batches = list(data)

    def __len__(self):
        return len(self._batches)

    def __getitem__(self, index):
        return self._batches[index]


class ScheduledRatesTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.enterContext(tempfile.TemporaryDirectory())

    def _fit(self, killed=None, known=True, every=2, generates=False):
        """Trains, perhaps until it is killed; the rates of the epochs."""
        model = small.functional(small.table())
        model = small.compiled(model, keras.optimizers.SGD(0.8))
        samples = small.batch(np.random.default_rng(1), _BATCHES)
        data = tf.data.Dataset.from_tensor_slices(samples).batch(1)
        if not known:
            data = data.filter(lambda *_: True)
        rates = []
        model.fit(
            _Batches(data) if generates else data,
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
                *([Kill(killed)] if killed else []),
            ],
        )
        return rates

    @parameterized.parameters(
        # Behind the second step of the second epoch, and behind its last.
        {"killed": 7},
        {"killed": 8, "known": False},
        # Where it begins.
        {"killed": 5, "every": 4},
        # The second epoch starts again.
        {"killed": 7, "generates": True},
    )
    def test_a_factor_for_each_epoch(self, killed, **options):
        with self.assertRaises(KilledError):
            self._fit(killed, **options)
        self.assertAllClose(self._fit(**options), [0.2, 0.1])
