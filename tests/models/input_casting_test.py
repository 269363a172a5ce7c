# SPDX-License-Identifier: Apache-2.0
"""Floats that are ids keep their precision, whatever a model computes in."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext import feature_column
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [
    pytest.mark.both_kerases,
    pytest.mark.slow_tests(
        "InputCastingTest::test_ids_are_those_of_float32[12]",
    ),
]

_AGES = np.float32([19.98, 20.0, 19.99, 10.0, 39.95, 40.0])
_TIMES = np.float32([0.0, 1e6, 2e6, 1e6, 0.0, 3e6])
_POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def _columns():
    return [
        feature_column.category_column("age", boundaries=[20.0, 40.0]),
        feature_column.category_column("time", boundaries=[1e6, 2e6, 3e6]),
        feature_column.category_column("item", weights="weight"),
    ]


class Ranking(tf_ext.Model):
    """A model that passes its inputs on; their floats are kept in `seen`."""

    def __init__(self, layer, **kwargs):
        super().__init__(**kwargs)
        self.features = layer
        self.seen = {}

    def call(self, inputs, training=None):
        self.seen = {
            key: value.dtype
            for key, value in inputs.items()
            if isinstance(value, tf.Tensor)
        }
        return self.features(inputs, training=training)


class Listed(tf_ext.Model):
    """A model of features without keys."""

    def __init__(self, layer):
        super().__init__()
        self.features = layer

    def call(self, inputs, training=None):
        names = ("age", "time", "item", "weight")
        return self.features(dict(zip(names, inputs)), training=training)


def _features():
    return {
        "age": _AGES,
        "time": _TIMES,
        "item": np.arange(6),
        "weight": np.float32([1.003, 1.0, 2.0, 1e6, 0.5, 7e4]),
    }


class InputCastingTest(parameterized.TestCase, tf.test.TestCase):
    def setUp(self):
        super().setUp()
        policies = keras.mixed_precision
        self._set = (
            policies.set_dtype_policy
            if IS_KERAS_3
            else policies.set_global_policy
        )
        self.addCleanup(self._set, "float32")

    def _layer(self):
        table = tf_ext.SparseTable("rows", 2, "sgd", "normal")
        return tf_ext.layers.EmbeddingFeatures(_columns(), table)

    @parameterized.parameters(*_POLICIES)
    def test_ids_are_those_of_float32(self, policy):
        self._set(policy)
        layer, features = self._layer(), _features()
        tensors = {key: tf.constant(v) for key, v in features.items()}
        expected = layer(tensors)
        inputs = {
            key: keras.Input((), dtype=value.dtype, name=key)
            for key, value in features.items()
        }
        models = {
            "functional": tf_ext.Model(inputs, layer(inputs)),
            "subclassed": Ranking(layer),
        }
        for name, model in models.items():
            for batch in (features, tensors):
                found = model.predict(batch, verbose=0)
                self.assertAllClose(found, expected, msg=name)
            self.assertAllClose(model(tensors), expected, msg=name)
        listed = Listed(layer)
        data = tf.data.Dataset.from_tensors((tuple(tensors.values()),))
        self.assertAllClose(listed.predict(data, verbose=0), expected)
        hashed = tf_ext.data.hash_columns(
            tf.data.Dataset.from_tensors((tensors,)), layer.columns
        )
        found = Ranking(layer).predict(hashed, verbose=0)
        self.assertAllClose(found, expected)

    @parameterized.parameters(*_POLICIES)
    def test_other_floats_are_cast(self, policy):
        self._set(policy)
        model = Ranking(self._layer())
        features = {key: tf.constant(v) for key, v in _features().items()}
        model({**features, "number": tf.constant([1.0] * 6, tf.float64)})
        compute = policy.removeprefix("mixed_")
        wanted = {"age": "float32", "time": "float32", "weight": "float32"}
        wanted |= {"number": compute, "item": "int64"}
        self.assertEqual({k: d.name for k, d in model.seen.items()}, wanted)

    @parameterized.parameters(*_POLICIES)
    def test_a_model_without_autocast_casts_nothing(self, policy):
        self._set(policy)
        model = Ranking(self._layer(), autocast=False)
        features = {key: tf.constant(v) for key, v in _features().items()}
        model({**features, "number": tf.constant([1.0] * 6)})
        self.assertEqual(model.seen["number"], tf.float32)


if __name__ == "__main__":
    tf.test.main()
