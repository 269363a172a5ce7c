# SPDX-License-Identifier: Apache-2.0
"""The types of a call's arguments, as text."""

import pytest
import tensorflow as tf
from absl.testing import absltest

from tf_ext._keras import keras
from tf_ext.models import recorded_call

pytestmark = pytest.mark.both_kerases


class SpecsTest(absltest.TestCase):
    def test_come_back(self):
        inputs = {
            "dense": tf.TensorSpec([None, 3], tf.float32),
            "ragged": tf.RaggedTensorSpec([None, None], tf.string),
            "deep": tf.RaggedTensorSpec([None] * 3, tf.int64, 2, tf.int32),
            "sparse": tf.SparseTensorSpec([None, 7], tf.int32),
        }
        record = recorded_call.record_call([inputs], {"training": True})
        self.assertEqual(recorded_call.recorded_inputs(record), inputs)

    def test_are_those_of_tensors(self):
        ragged = tf.ragged.constant([["a"], []])
        record = recorded_call.record_call([ragged], {})
        expected = tf.RaggedTensorSpec([None, None], tf.string)
        self.assertEqual(recorded_call.recorded_inputs(record), expected)

    def test_are_those_of_inputs(self):
        symbolic = keras.Input([4], sparse=True, dtype="int64")
        record = recorded_call.record_call([symbolic], {})
        expected = tf.SparseTensorSpec([None, 4], tf.int64)
        self.assertEqual(recorded_call.recorded_inputs(record), expected)


if __name__ == "__main__":
    absltest.main()
