# SPDX-License-Identifier: Apache-2.0
"""Converted models whose optimizer has more state than slots."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from saving_util import TestCase

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = pytest.mark.both_kerases(slow=True)

_IDS = 8
_USERS = np.arange(_IDS)[:, np.newaxis]


def _model(optimizer):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((1,), dtype="int64", name="user")
    rows = keras.layers.Embedding(_IDS, 4, name="rows")(inputs)
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
    model = keras.Model(inputs, outputs)
    model.compile(optimizer, "mse")
    return model


class StepsTest(TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(5)
        self.labels = (rng.normal(size=(_IDS, 1)) for _ in itertools.count())

    def _train(self, batches, *models):
        for labels in itertools.islice(self.labels, batches):
            for model in models:
                model.train_on_batch(_USERS, labels)

    def _assert_alike(self, *models):
        expected, found = (one.predict(_USERS, verbose=0) for one in models)
        self.assertAllClose(found, expected, 1e-5, 1e-5)

    def _there_and_back(self, optimizer):
        """A Keras model, one of it with tables, one of that; each trained."""
        before = _model(optimizer)
        self._train(4, before)
        with_tables = tf_ext.convert.model_from_keras(before)
        self.assertEqual(with_tables.notes, ())
        self._train(4, before, with_tables.model)
        self._assert_alike(before, with_tables.model)
        ids = {"user": np.arange(_IDS)}
        back = tf_ext.convert.model_to_keras(with_tables.model, ids)
        self.assertEqual(back.notes, ())
        self._train(4, before, back.model)
        self._assert_alike(before, back.model)

    @pytest.mark.skipif(not IS_KERAS_3, reason="tf_keras accumulates nothing")
    def test_steps_of_several_batches(self):
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
        for optimizer in (
            keras.optimizers.Adam(0.05, gradient_accumulation_steps=2),
            keras.optimizers.SGD(schedule, gradient_accumulation_steps=2),
        ):
            self._there_and_back(optimizer)

    @pytest.mark.skipif(not IS_KERAS_3, reason="tf_keras accumulates nothing")
    def test_within_a_step(self):
        before = _model(keras.optimizers.SGD(gradient_accumulation_steps=3))
        self._train(5, before)
        done = tf_ext.convert.model_from_keras(before)
        [note] = done.notes
        self.assertIn("The gradients of 2 batches, which", note)
        start = done.model.get_weights()
        self._train(2, done.model)
        # A step begins anew.
        for found, expected in zip(done.model.get_weights(), start):
            self.assertAllEqual(found, expected)
        back = tf_ext.convert.model_to_keras(
            done.model, {"user": np.arange(_IDS)}
        )
        self.assertEqual(back.notes, (note,))
        self._train(1, done.model, back.model)
        self.assertEqual(int(back.model.optimizer.iterations), 1)

    def test_variables_without_weight_decay(self):
        optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.1)
        optimizer.exclude_from_weight_decay(var_names=["kernel"])
        before = _model(optimizer)
        self._train(1, before)
        done = tf_ext.convert.model_from_keras(before)
        self.assertIn("`exclude_from_weight_decay`", " ".join(done.notes))


if __name__ == "__main__":
    tf.test.main()
