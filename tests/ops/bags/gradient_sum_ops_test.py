# SPDX-License-Identifier: Apache-2.0
"""The op that adds gradients up by row."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from ops_util import MODES

from tf_ext import ops


class SumSegmentsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_equals_tensorflow_to_the_bit(self, mode):
        rng = np.random.default_rng(0)
        values = rng.normal(size=(5000, 16)).astype(np.float32)
        segments = rng.integers(0, 700, 5000).astype(np.int32)
        sums = mode(ops.sum_segments)(values, segments, 702)
        expected = tf.math.unsorted_segment_sum(values, segments, 702)
        self.assertEqual(sums.numpy().tobytes(), expected.numpy().tobytes())

    def test_nothing(self):
        sums = ops.sum_segments(tf.zeros([0, 3]), tf.zeros([0], tf.int32), 2)
        self.assertAllEqual(sums, np.zeros([2, 3]))
        sums = ops.sum_segments(tf.zeros([2, 0]), [0, 0], 1)
        self.assertEqual(sums.shape, [1, 0])

    @parameterized.named_parameters(*MODES)
    def test_refuses(self, mode):
        call = mode(ops.sum_segments)
        for arguments, message in (
            (([1.0], [0], 1), r"values must be a matrix.*\[1\]"),
            (([[1.0]], [[0]], 1), r"segments must be a vector.*\[1,1\]"),
            (([[1.0]], [0], [1]), r"count must be a scalar.*\[1\]"),
            (([[1.0]], [0, 0], 1), "segments must be .*as many as values"),
            (([[1.0]], [-1], 1), r"segments\[0\] is -1; .* below count, 1\."),
            (([[1.0]], [1], 1), r"segments\[0\] is 1; .* below count, 1\."),
        ):
            with self.assertRaisesRegex(
                (tf.errors.InvalidArgumentError, ValueError), message
            ):
                call(*arguments)
        with self.assertRaises((tf.errors.InvalidArgumentError, ValueError)):
            call([[1.0]], [0], -1)

    def test_static_shape(self):
        @tf.function(
            input_signature=[
                tf.TensorSpec([None, 4]),
                tf.TensorSpec([None], tf.int32),
                tf.TensorSpec([], tf.int64),
            ]
        )
        def call(values, segments, count):
            sums = ops.sum_segments(values, segments, count)
            self.assertEqual(sums.shape.as_list(), [None, 4])
            self.assertEqual(ops.sum_segments(values, segments, 3).shape[0], 3)
            return sums

        call.get_concrete_function()


if __name__ == "__main__":
    tf.test.main()
