# SPDX-License-Identifier: Apache-2.0
"""Keras still skips what layers that are not built have in a file."""

import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest

from tf_ext._compat import skipped_layers
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = pytest.mark.both_kerases(slow=True)

_checked = set()
# Of each load: the layers, and how many files were found to have none. (Keras
# would look for layers in attributes of the model.)
_seen = []


class _Model(keras.Model):
    """A model that sees what is skipped of it."""

    def __init__(self, nested=False):
        super().__init__()
        self.first = keras.layers.Dense(1)
        third = keras.layers.Dense(3)
        self.rest = [keras.layers.Dense(2), {"a": third} if nested else third]
        self.unused = keras.layers.Dense(1)
        self.flat = keras.layers.Flatten()

    def call(self, inputs):
        parts = [part(inputs) for part in self.parts()]
        return self.flat(tf.concat(parts, 1))

    def parts(self):
        second, third = self.rest
        third = third["a"] if hasattr(third, "values") else third
        return [self.first, second, third]

    def load_own_variables(self, store):
        _seen.append((skipped_layers.skipped_layers(_checked), len(_checked)))
        super().load_own_variables(store)


class SkippedLayersTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        _checked.clear()
        _seen.clear()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.path = os.path.join(folder, "m.weights.h5")
        self.batch = np.ones((2, 2), np.float32)
        self.saved = _Model()
        self.saved(self.batch)
        self.saved.save_weights(self.path)

    def test_none_of_a_model_that_is_built(self):
        model = _Model()
        model(self.batch)
        model.load_weights(self.path)
        self.assertEqual(_seen, [([], 1)])
        np.testing.assert_array_equal(model(self.batch), self.saved(self.batch))
        self.assertEqual(skipped_layers.skipped_layers(set()), [])

    def test_layers_that_are_not_built(self):
        model = _Model()
        model.built = True
        if IS_KERAS_3:  # It does not say a word.
            model.load_weights(self.path)
        else:
            with self.assertRaisesRegex(ValueError, "expected 0 variables"):
                model.load_weights(self.path)
        [(found, checked)] = _seen
        self.assertCountEqual(found, model.parts())
        self.assertEqual(checked, 0)

    def test_layers_in_containers_of_containers(self):
        saved, model = _Model(nested=True), _Model(nested=True)
        saved(self.batch)
        saved.save_weights(self.path)
        model.built = True
        with self.assertRaisesRegex(ValueError, "variables"):
            model.load_weights(self.path)
        [(found, _)] = _seen
        self.assertCountEqual(found, model.parts())


if __name__ == "__main__":
    absltest.main()
