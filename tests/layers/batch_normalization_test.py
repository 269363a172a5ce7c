# SPDX-License-Identifier: Apache-2.0
"""`layers.BatchNormalization` in one process, and under MirroredStrategy."""

import os

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import generator, mirrored_strategy, number

from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.layers import BatchNormalization

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "AloneTest::test_fit_is_as_with_keras",
        "AloneTest::test_is_as_keras_default",
        "AloneTest::test_is_as_keras_epsilon",
        "MirroredTest::test_fit_is_as_in_one_process",
        "MirroredTest::test_shares_of_a_batch_are_as_the_batch_*",
    ),
]

_FEATURES = 5
_MOMENTUM = 0.7


def _built(cls=BatchNormalization, features=_FEATURES, axis=-1, **options):
    """A layer whose weights all differ from their start values."""
    layer = cls(axis, _MOMENTUM, **options)
    shape = [None, 3, 4, 2] if axis == 1 else [None, features]
    layer.build(shape)
    rng = np.random.default_rng(3)
    layer.set_weights(
        [rng.uniform(0.5, 2.0, w.shape) for w in layer.get_weights()]
    )
    return layer


def _step(layer, inputs, upstream, **arguments):
    """Outputs, and gradients of their sum weighted by `upstream`."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=True, **arguments)
        loss = tf.reduce_sum(outputs * upstream)
    return outputs, *tape.gradient(loss, [inputs, *_tensors(layer)])


def _tensors(layer):
    """The trainable weights, as a tape knows them."""
    return [v.value if IS_KERAS_3 else v for v in layer.trainable_variables]


def _normal(rng, size, mean=0.0, stddev=1.0):
    shape = [size, _FEATURES]
    return rng.normal(mean, stddev, shape).astype(np.float32)


class AloneTest(tf.test.TestCase, parameterized.TestCase):
    def assert_as_keras(self, ours, keras_own, inputs, tolerance=1e-5, **call):
        upstream = generator(self).normal(size=inputs.shape)
        upstream = upstream.astype(np.float32)
        inputs = tf.constant(inputs)
        for _ in range(2):
            found = _step(ours, inputs, upstream, **call)
            expected = _step(keras_own, inputs, upstream, **call)
            for one, other in zip(found, expected, strict=True):
                self.assertAllClose(one, other, tolerance, tolerance)
        for one, other in zip(
            [*ours.get_weights(), ours(inputs)],
            [*keras_own.get_weights(), keras_own(inputs)],
            strict=True,
        ):
            self.assertAllClose(one, other, tolerance, tolerance)

    @parameterized.named_parameters(
        ("default", {}),
        ("no_scale", {"scale": False}),
        ("no_center", {"center": False}),
        ("epsilon", {"epsilon": 0.5}),
        ("axis", {"axis": 1}),
    )
    def test_is_as_keras(self, options):
        shape = [8, 3, 4, 2] if "axis" in options else [8, _FEATURES]
        inputs = generator(self, 5).normal(1.0, 2.0, shape).astype(np.float32)
        # tf_keras's fused kernel keeps the unbiased variance.
        own = {} if IS_KERAS_3 else {"fused": False}
        self.assert_as_keras(
            _built(**options),
            _built(keras.layers.BatchNormalization, **options, **own),
            inputs,
        )

    def test_arguments_are_those_of_keras(self):
        options = {
            "beta_initializer": keras.initializers.Constant(0.5),
            "gamma_initializer": keras.initializers.Constant(2.0),
            "moving_mean_initializer": keras.initializers.Constant(3.0),
            "moving_variance_initializer": keras.initializers.Constant(4.0),
            "beta_regularizer": keras.regularizers.L2(0.1),
            "gamma_regularizer": keras.regularizers.L1(0.2),
            "beta_constraint": keras.constraints.NonNeg(),
            "gamma_constraint": keras.constraints.MaxNorm(2.0),
        }
        configs = [
            cls(**options).get_config()
            for cls in (BatchNormalization, keras.layers.BatchNormalization)
        ]
        for name in options:
            self.assertEqual(*(config[name] for config in configs), name)

    def test_masks_are_as_in_keras(self):
        rng = generator(self)
        inputs = rng.normal(3.0, 2.0, [6, 7, _FEATURES]).astype(np.float32)
        mask = rng.uniform(size=[6, 7]) < 0.6
        layers = [
            cls(momentum=_MOMENTUM)
            for cls in (BatchNormalization, keras.layers.BatchNormalization)
        ]
        self.assert_as_keras(*layers, inputs, mask=tf.constant(mask))

    def test_what_is_masked_may_be_anything(self):
        inputs = np.ones([2, 3, _FEATURES], np.float32)
        inputs[:, 1], inputs[:, 2] = np.nan, np.inf
        layer = BatchNormalization(momentum=0.5)
        mask = tf.constant([[True, False, False]] * 2)
        outputs = layer(tf.constant(inputs), training=True, mask=mask)
        self.assertAllEqual(outputs[:, 0], tf.zeros([2, _FEATURES]))
        self.assertAllEqual(layer.get_weights()[2], [0.5] * _FEATURES)
        self.assertAllEqual(layer.get_weights()[3], [0.5] * _FEATURES)
        with self.assertRaisesRegex(
            ValueError, r"`mask` .* without the last axis. Received: mask of"
        ):
            layer(inputs, training=True, mask=tf.ones([2, 3, _FEATURES]))
        with self.assertRaisesRegex(
            ValueError, "`mask` .* last one. Received: a mask with axis=1 of"
        ):
            BatchNormalization(axis=1)(inputs, training=True, mask=mask)

    def test_mixed_precision(self):
        options = {"dtype": "mixed_float16"}
        self.assert_as_keras(
            _built(**options),
            _built(keras.layers.BatchNormalization, **options),
            _normal(generator(self, 5), 8, 1.0, 2.0),
            tolerance=1e-2,
        )

    def test_doubles(self):
        inputs = generator(self).normal(size=[8, _FEATURES])
        self.assert_as_keras(
            _built(dtype="float64"),
            _built(keras.layers.BatchNormalization, dtype="float64"),
            inputs,
            # tf_keras has a momentum of float32.
            tolerance=1e-12 if IS_KERAS_3 else 1e-7,
        )

    def test_a_variance_that_is_small_beside_the_mean(self):
        layer = BatchNormalization(momentum=0.0)
        inputs = _normal(generator(self), 64, 1000.0, 0.01)
        outputs = layer(inputs, training=True)
        expected = inputs.astype(np.float64).var(0)
        self.assertAllClose(layer.moving_variance, expected, 1e-4)
        centered = inputs - inputs.astype(np.float64).mean(0)
        self.assertAllClose(
            outputs, centered / np.sqrt(expected + 1e-3), 0, 2e-3
        )

    def test_an_empty_batch_changes_nothing(self):
        layer = _built()
        before = layer.get_weights()
        inputs = tf.zeros([0, _FEATURES])
        for tensor in _step(layer, inputs, inputs):
            self.assertAllEqual(tensor, tf.zeros_like(tensor))
        self.assertAllEqual(layer.get_weights(), before)

    def test_frozen_is_as_in_inference(self):
        layer = _built()
        inputs = _normal(generator(self), 8)
        expected, before = layer(inputs), layer.get_weights()
        layer.trainable = False
        self.assertAllEqual(layer(inputs, training=True), expected)
        self.assertAllEqual(layer.get_weights(), before)

    @parameterized.named_parameters(
        ("synchronized", {"synchronized": True}, "`synchronized` .* must not"),
        ("renorm", {"renorm": True}, "there is no batch renormalization"),
        ("clipping", {"renorm_clipping": {}}, "no batch renormalization"),
        ("renorm_momentum", {"renorm_momentum": 0.9}, "no batch renorm"),
        ("fused", {"fused": True}, "`fused` .* one replica's share alone"),
        ("virtual", {"virtual_batch_size": 2}, "those of the global batch"),
        ("adjustment", {"adjustment": len}, "`adjustment` .* no adjustment"),
        ("momentum", {"momentum": 1.5}, "from 0 to 1. Received: momentum=1.5"),
    )
    def test_refuses(self, options, message):
        with self.assertRaisesRegex(ValueError, message):
            BatchNormalization(**options)

    def test_saving_and_cloning(self):
        inputs = keras.Input([_FEATURES])
        hidden = BatchNormalization(
            axis=1, momentum=0.5, beta_initializer="ones", name="ours"
        )(inputs)
        model = keras.Model(inputs, hidden)
        batch = _normal(generator(self), 8)
        model(batch, training=True)
        expected = model(batch)
        path = os.path.join(self.get_temp_dir(), "model.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertIsInstance(loaded.get_layer("ours"), BatchNormalization)
        self.assertAllEqual(loaded(batch), expected)
        clone = keras.models.clone_model(model)
        self.assertEqual(
            clone.get_layer("ours").get_config(),
            model.get_layer("ours").get_config(),
        )

    def test_weights_are_those_of_keras(self):
        def model(cls):
            return keras.Sequential([keras.Input([_FEATURES]), cls(name="bn")])

        ours = model(BatchNormalization)
        theirs = model(keras.layers.BatchNormalization)
        self.assertEqual(
            [w.name for w in ours.weights], [w.name for w in theirs.weights]
        )
        batch = _normal(generator(self), 8)
        theirs(batch, training=True)
        folder = self.get_temp_dir()
        for name in ("w.weights.h5", "checkpoint"):
            path = os.path.join(folder, name)
            other = model(BatchNormalization)
            if name == "checkpoint":
                path = tf.train.Checkpoint(theirs).save(path)
                tf.train.Checkpoint(other).restore(path).assert_consumed()
            else:
                theirs.save_weights(path)
                other.load_weights(path)
            self.assertAllClose(other(batch), theirs(batch), 1e-6, 1e-6)

    def test_fit_is_as_with_keras(self):
        rng = generator(self)
        x, y = _normal(rng, 50, 3.0, 2.0), rng.normal(size=[50, 1])

        def trained(cls):
            initializer = keras.initializers.RandomUniform(-1, 1, seed=1)
            model = keras.Sequential(
                [
                    keras.Input([_FEATURES]),
                    keras.layers.Dense(4, kernel_initializer=initializer),
                    cls(momentum=_MOMENTUM),
                    keras.layers.Dense(1, kernel_initializer=initializer),
                ]
            )
            model.compile(keras.optimizers.SGD(0.05), "mse")
            model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
            return model

        ours = trained(BatchNormalization)
        theirs = trained(keras.layers.BatchNormalization)
        for one, other in zip(ours.get_weights(), theirs.get_weights()):
            self.assertAllClose(one, other, 1e-4, 1e-5)


class MirroredTest(tf.test.TestCase, parameterized.TestCase):
    """Two replicas against one process with the whole batch."""

    def setUp(self):
        super().setUp()
        self.strategy = mirrored_strategy()

    def shares(self, whole, first):
        """The first rows for one replica, the others for the other one."""
        parts = whole[:first], whole[first:]
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    def local(self, value):
        return self.strategy.experimental_local_results(value)

    @parameterized.named_parameters(
        ("even", 8, 0.0, 1.0),
        ("uneven", 13, 0.0, 1.0),
        ("one_sample", 1, 0.0, 1.0),
        ("first_is_empty", 0, 0.0, 1.0),
        ("second_is_empty", 16, 0.0, 1.0),
        ("small_variance", 11, 1000.0, 0.1),
    )
    def test_shares_of_a_batch_are_as_the_batch(self, first, mean, stddev):
        rng = generator(self)
        alone = _built()
        with self.strategy.scope():
            mirrored = _built()
        run = tf.function(
            lambda *batch: self.strategy.run(_step, (mirrored, *batch))
        )
        for _ in range(3):
            inputs = _normal(rng, 16, mean, stddev)
            upstream = _normal(rng, 16)
            expected = _step(alone, tf.constant(inputs), upstream)
            found = run(
                self.shares(inputs, first), self.shares(upstream, first)
            )
            # Outputs and their inputs' gradient by shares, others summed.
            for index, one in enumerate(expected):
                parts = self.local(found[index])
                self.assertAllClose(
                    tf.concat(parts, 0) if index < 2 else tf.add_n(parts),
                    one,
                    1e-5,
                    1e-5 if mean == 0.0 else 1e-3,
                )
        for average in ("moving_mean", "moving_variance"):
            variable = getattr(mirrored, average)
            variable = variable.value if IS_KERAS_3 else variable
            for part in self.local(variable):
                self.assertAllClose(part, number(getattr(alone, average)), 1e-5)

    def test_masks(self):
        rng = generator(self)
        inputs = rng.normal(2.0, 1.0, [6, 4, _FEATURES]).astype(np.float32)
        mask = rng.uniform(size=[6, 4]) < 0.5
        mask[:2] = False
        alone = BatchNormalization(momentum=_MOMENTUM)
        with self.strategy.scope():
            mirrored = BatchNormalization(momentum=_MOMENTUM)
            mirrored.build([None, 4, _FEATURES])
        expected = alone(inputs, training=True, mask=tf.constant(mask))
        outputs = self.strategy.run(
            lambda x, m: mirrored(x, training=True, mask=m),
            (self.shares(inputs, 2), self.shares(mask, 2)),
        )
        outputs = tf.concat(self.local(outputs), 0)
        self.assertAllClose(outputs, expected, 1e-5, 1e-5)
        for one, other in zip(alone.get_weights(), mirrored.get_weights()):
            self.assertAllClose(one, other, 1e-5)

    def test_an_empty_batch_changes_nothing(self):
        with self.strategy.scope():
            layer = _built()
        before = layer.get_weights()
        empty = self.shares(np.zeros([0, _FEATURES], np.float32), 0)
        for tensor in self.strategy.run(_step, (layer, empty, empty)):
            for part in self.local(tensor):
                self.assertAllEqual(part, tf.zeros_like(part))
        self.assertAllEqual(layer.get_weights(), before)

    def test_fit_is_as_in_one_process(self):
        rng = generator(self)
        # Of the last batch's 3 samples one replica gets 2.
        x, y = _normal(rng, 35, 3.0, 2.0), rng.normal(size=[35, 1])
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)

        def trained():
            initializer = keras.initializers.RandomUniform(-1, 1, seed=1)
            model = keras.Sequential(
                [
                    keras.Input([_FEATURES]),
                    BatchNormalization(momentum=_MOMENTUM),
                    keras.layers.Dense(1, kernel_initializer=initializer),
                ]
            )
            model.compile(keras.optimizers.SGD(0.0), "mse")
            model.fit(data, verbose=0)
            return model

        alone = trained()
        with self.strategy.scope():
            mirrored = trained()
        for one, other in zip(alone.get_weights(), mirrored.get_weights()):
            self.assertAllClose(one, other, 1e-5, 1e-6)
        path = os.path.join(self.get_temp_dir(), "w.weights.h5")
        mirrored.save_weights(path)
        other = trained()
        other.load_weights(path)
        self.assertAllClose(other(x), alone(x), 1e-5, 1e-5)


if __name__ == "__main__":
    tf.test.main()
