# SPDX-License-Identifier: Apache-2.0
"""What layers have found in `adapt`, where variables go elsewhere."""

import functools
import os

import numpy as np
import pytest
import tensorflow as tf
from models import small_models as small
from saving_util import TestCase

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.serving.copies import copy_of
from tf_ext.serving.signature import of_model

pytestmark = pytest.mark.both_kerases(slow=True)

_PRICES = np.float32([[10.0], [20.0], [60.0]])
_FEATURES = {"price": _PRICES, "user": np.arange(3)}
_BATCH = {key: tf.constant(value) for key, value in _FEATURES.items()}


def _build(prices=None, dim=2):
    """A model of a table and of a price, which a nested model scales."""
    norm = keras.layers.Normalization(name="scaled")
    if prices is not None:
        norm.adapt(prices)
    price = keras.Input((1,))
    scale = keras.Model(price, norm(price), name="scale")
    inputs = {
        "price": keras.Input((1,), name="price"),
        "user": keras.Input((), dtype="int64", name="user"),
    }
    user = tf_ext.feature_column.category_column("user")
    table = tf_ext.SparseTable("user", dim)
    embed = tf_ext.layers.EmbeddingFeatures([user], table)
    rows = keras.layers.Dense(1)(embed({"user": inputs["user"]}))
    joined = keras.layers.Concatenate()([scale(inputs["price"]), rows])
    model = tf_ext.Model(inputs, keras.layers.Dense(1, "sigmoid")(joined))
    return small.compiled(model)


def _beside_a_table(feature, layer):
    """A compiled model of users' rows and of what a layer makes of an input."""
    inputs = {
        feature.name.partition(":")[0]: feature,
        "user": keras.Input((), dtype="int64", name="user"),
    }
    user = tf_ext.feature_column.category_column("user")
    embed = tf_ext.layers.EmbeddingFeatures(
        [user], tf_ext.SparseTable("user", 2)
    )
    rows = embed({"user": inputs["user"]})
    joined = keras.layers.Concatenate()([layer(feature), rows])
    model = tf_ext.Model(inputs, keras.layers.Dense(1)(joined))
    return small.compiled(model)


class AdaptedTest(TestCase):
    def _point(self):
        """The directory of a point; what its model predicts."""
        points = self.directory()
        model = _build(_PRICES)
        snapshot = tf_ext.callbacks.TableSnapshot(points)
        model.fit(_FEATURES, np.ones(3), verbose=0, callbacks=[snapshot])
        return points, model(_BATCH).numpy()

    def test_a_model_that_follows(self):
        points, expected = self._point()
        model = _build()
        predict = functools.partial(model.predict, _BATCH, verbose=0)
        predict()  # Traces a function.
        with tf_ext.serving.follow(model, points, every=None):
            self.assertAllClose(model(_BATCH), expected, 1e-6, 1e-6)
            self.assertAllClose(predict(), expected, 1e-6, 1e-6)

    def test_training_that_is_resumed(self):
        points, expected = self._point()
        model = _build()
        snapshot = tf_ext.callbacks.TableSnapshot(points)
        model.fit(_FEATURES, np.ones(3), verbose=0, callbacks=[snapshot])
        self.assertAllClose(model(_BATCH), expected, 1e-6, 1e-6)

    def test_a_warm_start(self):
        points, expected = self._point()
        model = _build()
        tf_ext.callbacks.warm_start(model, points)
        self.assertAllClose(model(_BATCH), expected, 1e-6, 1e-6)

    def test_versions_that_are_published(self):
        points, expected = self._point()
        model = _build()
        sink = tf_ext.serving.DirectorySink(self.directory())
        publisher = tf_ext.serving.publish(model, points, sink, every=None)
        self.addCleanup(publisher.close)
        publisher.update()
        with tf_ext.serving.Lookup(sink, dense="tensorflow") as lookup:
            [found] = lookup.predict(_FEATURES).values()
        self.assertAllClose(found, expected, 1e-6, 1e-6)
        # The model is as it was.
        norm = model.get_layer("scale").get_layer("scaled")
        self.assertAllEqual(norm.mean, [[0.0]])

    def test_a_copy(self):
        model = _build(_PRICES)
        signature = of_model(model, None, _FEATURES)
        copy = copy_of(model, signature, model.get_weights())
        self.assertAllClose(copy(_BATCH), model(_BATCH), 1e-6, 1e-6)

    def test_a_file_of_another_model(self):
        path = os.path.join(self.directory(), "other.weights.h5")
        _build(_PRICES, dim=3).save_weights(path)
        model = _build(10 * _PRICES)
        before = model(_BATCH)
        with self.assertRaises(ValueError):
            model.load_weights(path)
        self.assertAllEqual(model(_BATCH), before)


class LookupTest(TestCase):
    """In tf_keras, vocabularies are among the variables of a model."""

    def _build(self, words=("p", "q")):
        lookup = keras.layers.StringLookup(output_mode="one_hot")
        lookup.adapt(np.array([[word] for word in words]))
        word = keras.Input((1,), dtype="string", name="word")
        return _beside_a_table(word, lookup)

    def test_goes_elsewhere(self):
        features = {
            "word": tf.constant([["p"], ["q"]]),
            "user": tf.constant([1, 2], tf.int64),
        }
        model, points = self._build(), self.directory()
        snapshot = tf_ext.callbacks.TableSnapshot(points)
        model.fit(features, np.ones([2, 1]), verbose=0, callbacks=[snapshot])
        expected = model(features).numpy()
        path = os.path.join(points, "model.weights.h5")
        model.save_weights(path)
        loaded = self._build()
        loaded.load_weights(path)
        self.assertAllClose(loaded(features), expected, 1e-6, 1e-6)
        followed = self._build()
        with tf_ext.serving.follow(followed, points, every=None):
            self.assertAllClose(followed(features), expected, 1e-6, 1e-6)
        # No epoch is better than the first, whose weights come back.
        stopping = tf_ext.callbacks.EarlyStopping(
            "loss", mode="max", restore_best_weights=True
        )
        ones = np.ones([2, 1])
        history = loaded.fit(
            features, ones, epochs=3, verbose=0, callbacks=[stopping]
        )
        self.assertEqual(history.epoch, [0, 1])
        new = self._build()
        copy = copy_of(new, of_model(new, None, features), new.get_weights())
        self.assertAllClose(copy(features), new(features), 1e-6, 1e-6)


@pytest.mark.both_kerases
class DiscretizationTest(TestCase):
    """In tf_keras, a summary is among the variables, of any size."""

    def setUp(self):
        super().setUp()
        if IS_KERAS_3:
            self.skipTest("Bins are no variables in Keras 3")

    def _build(self, prices):
        bins = keras.layers.Discretization(num_bins=4, output_mode="one_hot")
        bins.adapt(prices)
        return _beside_a_table(keras.Input((1,), name="price"), bins)

    def test_goes_elsewhere(self):
        points = self.directory()
        path = os.path.join(points, "model.weights.h5")
        fit = {"x": _FEATURES, "y": np.ones(3), "verbose": 0}
        model = self._build(_PRICES)
        snapshot = tf_ext.callbacks.TableSnapshot(points)
        model.fit(**fit, callbacks=[snapshot])
        model.save_weights(path)
        expected = model(_BATCH).numpy()
        # The bins of other prices are replaced.
        make = functools.partial(self._build, 5 * _PRICES)
        resumed = make()
        resumed.predict(_BATCH, verbose=0)  # Traces a function.
        resumed.fit(**fit, callbacks=[tf_ext.callbacks.TableSnapshot(points)])
        warm, loaded, followed = make(), make(), make()
        tf_ext.callbacks.warm_start(warm, points)
        loaded.load_weights(path)
        with tf_ext.serving.follow(followed, points, every=None):
            for one in (resumed, warm, loaded, followed):
                self.assertAllClose(one(_BATCH), expected, 1e-6, 1e-6)
                found = one.predict(_BATCH, verbose=0)
                self.assertAllClose(found, expected, 1e-6, 1e-6)


if __name__ == "__main__":
    tf.test.main()
