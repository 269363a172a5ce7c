# SPDX-License-Identifier: Apache-2.0
"""Training on data whose end is found by reading: no step is made of it."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import mirrored_strategy, number
from models.small_models import batch, compiled, functional, table

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

_SAMPLES, _BATCH, _EPOCHS = 40, 4, 3
_STEPS = _SAMPLES // _BATCH * _EPOCHS


def _data(drop_remainder=False):
    arrays = batch(np.random.default_rng(0), _SAMPLES)
    known = tf.data.Dataset.from_tensor_slices(arrays).batch(
        _BATCH, drop_remainder=drop_remainder
    )
    return known, known.filter(lambda *_: True)


class OwnStep(tf_ext.models.model.FunctionalModel):
    """A model whose training step does not call that of its base."""

    def train_step(self, data):
        features, labels = data
        with tf.GradientTape() as tape:
            outputs = self(features, training=True)
            loss = tf.reduce_mean((outputs - labels) ** 2)
        variables = self.trainable_variables
        grads = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(grads, variables))
        return {"loss": loss}


class UnknownLengthTest(tf.test.TestCase, parameterized.TestCase):
    def assert_same(self, known, unknown):
        for one, other in zip(known.get_weights(), unknown.get_weights()):
            self.assertAllClose(one, other, rtol=1e-6, atol=1e-6)
        for one, other in zip(
            known.optimizer.variables, unknown.optimizer.variables
        ):
            self.assertAllClose(
                number(one), number(other), rtol=1e-6, atol=1e-6, msg=one.name
            )

    def train(self, make, strategy=None, drop_remainder=False):
        """Models trained on data of known and of unknown length."""
        strategy = strategy or tf.distribute.get_strategy()
        models, losses = [], []
        for dataset in _data(drop_remainder):
            with strategy.scope():
                model = make()
            history = model.fit(dataset, epochs=_EPOCHS, verbose=0)
            models.append(model)
            losses.append(history.history["loss"])
        self.assertAllClose(*losses, rtol=1e-5)
        self.assert_same(*models)
        return models

    @parameterized.named_parameters(
        ("one_replica", tf.distribute.get_strategy),
        ("two_replicas", mirrored_strategy),
    )
    def test_optimizers_count_steps_made(self, strategy):
        def make():
            return compiled(functional(table()), keras.optimizers.Adam(0.1))

        for model in self.train(make, strategy()):
            self.assertEqual(number(model.optimizer.iterations), _STEPS)

    def test_batches_of_static_size(self):
        def make():
            return compiled(functional(table()), metrics=["accuracy"])

        known, unknown = self.train(make, drop_remainder=True)
        results = [
            model.evaluate(dataset, verbose=0)
            for model, dataset in zip((known, unknown), _data(True))
        ]
        self.assertAllClose(*results, rtol=1e-5)

    def test_a_step_of_ones_own(self):
        def make():
            return compiled(
                functional(table(), OwnStep), keras.optimizers.Adam(0.1)
            )

        for model in self.train(make):
            self.assertEqual(number(model.optimizer.iterations), _STEPS)

    def test_variables_decay_in_steps_made(self):
        def make():
            return compiled(
                functional(table()),
                keras.optimizers.SGD(0.1, weight_decay=0.5),
            )

        self.train(make)

    def test_dropout_draws_in_steps_made(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras draws from TensorFlow's generator.")

        def make():
            model = functional(table())
            dropout = keras.layers.Dropout(0.5, seed=7)
            outputs = dropout(model.outputs[0])
            return compiled(tf_ext.Model(model.inputs, outputs))

        self.train(make)

    def test_steps_per_execution(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras has to be told how many steps there are.")

        def make():
            return compiled(
                functional(table()),
                keras.optimizers.Adam(0.1),
                steps_per_execution=4,
            )

        for model in self.train(make):
            self.assertEqual(number(model.optimizer.iterations), _STEPS)


if __name__ == "__main__":
    tf.test.main()
