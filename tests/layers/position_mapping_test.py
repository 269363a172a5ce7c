# SPDX-License-Identifier: Apache-2.0
"""The embedding of a position in training, and of a default otherwise."""

import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import id_column, mirrored_strategy

import tf_ext
from tf_ext._keras import keras
from tf_ext.layers import PositionMapping

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "PositionMappingTest::test_saved_and_exported",
        "PositionMappingTest::test_two_replicas_are_as_one",
    ),
]

_ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)


def _layer(**options):
    layer = PositionMapping(3, 2, **options)
    layer.build([None])
    layer.set_weights([_ROWS])
    return layer


def _model(default=1):
    """A click model of a user and a position."""
    inputs = {
        "user": keras.Input((), dtype="int64", name="user"),
        "position": keras.Input((), dtype="int64", name="position"),
    }
    table = tf_ext.SparseTable("users", 2, "sgd", "normal", seed=1)
    user = tf_ext.layers.EmbeddingFeatures([id_column("user")], table)(inputs)
    position = PositionMapping(
        4, 2, default, keras.initializers.RandomUniform(-1, 1, seed=1)
    )(inputs["position"])
    outputs = keras.layers.Dense(
        1,
        "sigmoid",
        kernel_initializer=keras.initializers.RandomUniform(-1, 1, seed=2),
    )(keras.layers.Concatenate()([user, position]))
    model = tf_ext.Model(inputs, outputs)
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.SGD(1.0)),
        "binary_crossentropy",
    )
    return model


def _positions_of(model):
    (layer,) = (x for x in model.layers if isinstance(x, PositionMapping))
    return layer.get_weights()[0]


def _features(positions):
    positions = np.asarray(positions)
    return {"user": np.arange(len(positions)) % 3, "position": positions}


class PositionMappingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("int8", "int32", "int64", "uint8")
    def test_in_training_and_otherwise(self, dtype):
        layer = _layer(default=2)
        own = tf.constant([[0, 2], [1, 3], [100, 1]], dtype)
        for training in (True, tf.constant(True)):
            self.assertAllEqual(
                layer(own, training=training),
                _ROWS[[[0, 2], [1, 2], [2, 1]]],
            )
        for options in ({}, {"training": False}):
            self.assertAllEqual(
                layer(own, **options), np.tile(_ROWS[2], [3, 2, 1])
            )
        self.assertAllEqual(
            layer(own, training=tf.constant(False)),
            np.tile(_ROWS[2], [3, 2, 1]),
        )

    def test_unknown_positions_are_the_default(self):
        found = _layer(default=1)(tf.constant([-1, 0, -(2**31)]), training=True)
        self.assertAllEqual(found, _ROWS[[1, 0, 1]])

    def test_no_sample(self):
        for training in (True, False):
            found = _layer()(tf.zeros([0], tf.int64), training=training)
            self.assertEqual(found.shape, (0, 2))

    def test_trains_the_positions_of_samples(self):
        model = _model()
        before = _positions_of(model)
        features = _features([0, 2, 2, 0])
        model.fit(features, np.ones([4, 1]), batch_size=4, verbose=0)
        moved = np.any(_positions_of(model) != before, 1)
        self.assertAllEqual(moved, [True, False, True, False])

    def test_predictions_do_not_depend_on_positions(self):
        model = _model()
        expected = model.predict(_features([1] * 6), verbose=0)
        for positions in ([0, 1, 2, 3, 4, -1], [3] * 6):
            found = model.predict(_features(positions), verbose=0)
            self.assertAllEqual(found, expected)
        self.assertNotAllClose(
            model(_features([3] * 6), training=True), expected
        )
        labels = np.ones([6, 1])
        one, other = (
            model.evaluate(_features([p] * 6), labels, verbose=0)
            for p in (0, 3)
        )
        self.assertEqual(one, other)

    def test_saved_and_exported(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        model = _model(default=2)
        model.fit(_features([0, 1, 2, 3]), np.ones([4, 1]), verbose=0)
        features = _features([0, 1, 3])
        expected = model.predict(_features([2] * 3), verbose=0)
        model.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras")
        self.assertAllClose(loaded.predict(features, verbose=0), expected)
        self.assertAllClose(
            loaded(features, training=True), model(features, training=True)
        )
        self.assertNotAllClose(loaded(features, training=True), expected)
        model.export(f"{folder}/own_ops")
        tf_ext.serving.export(model, f"{folder}/stock_ops")
        tensors = {k: tf.constant(v) for k, v in features.items()}
        served = tf.saved_model.load(f"{folder}/own_ops")
        self.assertAllClose(served.serve(tensors), expected)
        (version,) = tf.io.gfile.listdir(f"{folder}/stock_ops")
        served = tf.saved_model.load(f"{folder}/stock_ops/{version}")
        (found,) = served.signatures["serving_default"](**tensors).values()
        self.assertAllClose(found, expected)

    def test_configuration(self):
        layer = PositionMapping(
            5,
            3,
            default=4,
            embeddings_initializer=keras.initializers.Constant(2.0),
            embeddings_regularizer=keras.regularizers.L2(0.5),
            name="position",
        )
        config = keras.utils.serialize_keras_object(layer)
        copy = keras.utils.deserialize_keras_object(config)
        self.assertEqual(copy.get_config(), layer.get_config())
        found = copy(tf.constant([0]))
        self.assertAllEqual(found, [[2.0] * 3])
        self.assertAllClose(tf.add_n(copy.losses), 0.5 * 15 * 4.0)

    def test_two_replicas_are_as_one(self):
        data = tf.data.Dataset.from_tensor_slices(
            (_features([0, 1, 2, 3, 3, 0, 1, 1]), np.ones([8, 1]))
        ).batch(4)
        alone = _model()
        with mirrored_strategy().scope():
            mirrored = _model()
        for model in (alone, mirrored):
            model.fit(data, epochs=2, verbose=0)
        self.assertAllClose(
            _positions_of(alone), _positions_of(mirrored), 0, 1e-6
        )

    def test_mixed_precision(self):
        layer = PositionMapping(3, 2, dtype="mixed_float16")
        outputs = layer(tf.constant([0, 1]), training=True)
        self.assertEqual(outputs.dtype, tf.float16)

    @parameterized.parameters(
        ("num_positions", {"num_positions": 0}, "at least 1"),
        ("dim", {"dim": 1.5}, "an integer"),
        ("default", {"default": 3}, "from 0 to 2"),
        ("default", {"default": -1}, "from 0 to 2"),
        ("default", {"default": True}, "an integer"),
    )
    def test_refuses(self, name, given, text):
        with self.assertRaisesRegex(
            ValueError, f"`{name}` of PositionMapping must be .*{text}"
        ):
            PositionMapping(**{"num_positions": 3, "dim": 2, **given})

    def test_refuses_positions_that_are_not_integers(self):
        with self.assertRaisesRegex(
            ValueError, "`inputs` of PositionMapping must be .*float32"
        ):
            _layer()(tf.constant([1.0]), training=True)


if __name__ == "__main__":
    tf.test.main()
