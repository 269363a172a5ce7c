# SPDX-License-Identifier: Apache-2.0
"""The loop of synchronous workers, as far as one process can tell."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest
from models.model_building import mirrored_strategy

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.training.synchronous.feed import SynchronousFeed
from tf_ext.training.synchronous.loop import (
    SynchronousLoop,
    _detach_backups,
)

pytestmark = pytest.mark.both_kerases(slow=True)


class OfFeatures(tf_ext.Model):
    """A model whose loss takes no labels."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)

    def compute_loss(self, x, y, y_pred, sample_weight, training=True):
        return tf.reduce_mean(y_pred**2)


def _functional():
    inputs = keras.Input([1])
    return tf_ext.Model(inputs, keras.layers.Dense(1)(inputs))


@absltest.skipIf(not IS_KERAS_3, "tf_keras has its own loop.")
class BuildTest(tf.test.TestCase):
    def build(self, make, *data):
        # Keras builds models of strategies alone before their first step.
        with mirrored_strategy().scope():
            model = make()
            adam = tf_ext.optimizers.Optimizer("adam")
            model.compile(adam, "mse", metrics=["mae"])
        loop = SynchronousLoop(model)
        dataset = tf.data.Dataset.from_tensor_slices(data).batch(2)
        loop._build(SynchronousFeed(dataset, None, loop._regime, False))
        self.assertTrue(model.built)
        self.assertTrue(model.optimizer.built)
        return model

    def test_with_labels(self):
        values = np.ones([4, 1], np.float32)
        for make in (_functional, OfFeatures):
            # Metrics that are not built have no results.
            results = self.build(make, values, values).get_metrics_result()
            self.assertIn("mae", results)

    def test_without_labels(self):
        model = self.build(OfFeatures, np.ones([4, 1], np.float32))
        self.assertLen(model.trainable_variables, 2)
        with self.assertRaisesRegex(ValueError, "not yet been built"):
            model.get_metrics_result()


@absltest.skipIf(not IS_KERAS_3, "tf_keras has its own loop.")
class BackupsTest(tf.test.TestCase):
    def test_a_later_fit_finds_what_it_has_saved(self):
        for deleted in (True, False):
            backup = keras.callbacks.BackupAndRestore(
                self.get_temp_dir(), save_freq=3, delete_checkpoint=deleted
            )
            callbacks = keras.callbacks.CallbackList(
                [backup], model=_functional()
            )
            _detach_backups(callbacks)
            folder = backup.backup_dir
            self.assertNotEqual(folder, self.get_temp_dir())
            _detach_backups(callbacks)
            self.assertEqual(backup.backup_dir, folder)
            self.assertEqual(backup.delete_checkpoint, deleted)
            self.assertEqual(backup.save_freq, 3)


if __name__ == "__main__":
    tf.test.main()
