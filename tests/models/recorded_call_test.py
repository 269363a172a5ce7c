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

    def test_are_of_tensors_alone(self):
        spec = tf.TensorSpec([None], tf.float32)
        for args in ([], [3], [[spec, "a"]], [{"x": spec, "y": None}]):
            record = recorded_call.record_call(args, {"x": spec})
            self.assertIsNone(recorded_call.recorded_inputs(record))


class RepeatTest(absltest.TestCase):
    def test_has_the_same_values_and_computes_nothing(self):
        calls = []

        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.layer = keras.layers.Dense(2)

            def call(self, inputs, factor, training=False):
                calls.append((tf.executing_eagerly(), factor, training))
                return self.layer(inputs) * factor

        model = Own()
        record = recorded_call.record_call(
            [tf.ones([5, 3])], {"factor": 2.5, "training": True}
        )
        recorded_call.repeat_call(model, record)
        self.assertEqual(set(calls), {(False, 2.5, True)})
        self.assertEqual([w.shape for w in model.weights], [(3, 2), (2,)])


if __name__ == "__main__":
    absltest.main()
