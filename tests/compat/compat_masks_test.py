# SPDX-License-Identifier: Apache-2.0
"""Keras's layers find masks where tf_ext leaves them."""

import unittest

import pytest
import tensorflow as tf

from tf_ext._compat import masks
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = pytest.mark.both_kerases


class _Masked(keras.layers.Layer):
    """Sets its mask in `call`: of the values above 0."""

    def __init__(self, own=True, **kwargs):
        super().__init__(**kwargs)
        if own:
            masks.take_masks_of_outputs(self)

    def call(self, inputs):
        output = tf.cast(inputs, tf.float32)[..., tf.newaxis]
        masks.set_keras_mask(output, inputs > 0)
        return {"masked": output, "other": output + 1.0}

    def compute_output_spec(self, inputs):
        shape = (*inputs.shape, 1)
        spec = {n: keras.KerasTensor(shape) for n in ("masked", "other")}
        masks.set_symbolic_mask(spec["masked"])
        return spec

    def compute_mask(self, inputs, previous_mask=None):
        raise AssertionError("Keras asks for masks.")


class _Received(keras.layers.Layer):
    """The mask that it got, which it cannot do without."""

    def call(self, inputs, mask=None):
        return tf.cast(mask, inputs.dtype)


class MasksTest(tf.test.TestCase):
    def test_take_masks_of_outputs(self):
        _Masked()(tf.constant([[1, 0]]))
        with self.assertRaisesRegex(AssertionError, "Keras asks for masks"):
            _Masked(own=False)(tf.constant([[1, 0]]))

    def test_set_keras_mask(self):
        outputs = _Masked()(tf.constant([[1, 0, 2]]))
        dense = keras.layers.Dense(2)
        self.assertAllEqual(
            _Received()(dense(outputs["masked"])), [[1.0, 0.0, 1.0]]
        )
        self.assertIsNone(getattr(outputs["other"], "_keras_mask", None))

    @unittest.skipUnless(IS_KERAS_3, "tf_keras traces masks itself")
    def test_set_symbolic_mask(self):
        inputs = keras.Input((3,), dtype="int32")
        masked = _Masked()(inputs)["masked"]
        # So deep that it takes the mask off before KerasMask, a node, reads it.
        attended = keras.layers.MultiHeadAttention(1, 2)(masked, masked)
        attended = keras.layers.Dense(1)(keras.layers.Dense(1)(attended))
        model = keras.Model(inputs, [attended, _Received()(masked)])
        self.assertIn(masks.KerasMask, [type(one) for one in model.operations])
        _, received = model(tf.constant([[1, 0, 2]]))
        self.assertAllEqual(received, [[1.0, 0.0, 1.0]])


if __name__ == "__main__":
    tf.test.main()
