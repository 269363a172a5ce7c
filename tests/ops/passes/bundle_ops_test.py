# SPDX-License-Identifier: Apache-2.0
"""The ops that put tensors into one, and take them out."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from ops_util import MODES

from tf_ext import ops
from tf_ext.ops.passes import bundle_ops
from tf_ext.ops.passes.bundle_ops import bundle_transfers

_VALUES = (
    tf.constant([[1.5, -2.0], [np.nan, 0.0], [3.0, 4.0]]),
    tf.constant(7, tf.int64),
    tf.constant([True, False, True]),
    tf.zeros([0, 5], tf.int32),
    tf.range(1000, dtype=tf.float64),
    tf.constant([[[1.0]]], tf.float16),
    tf.constant([1 + 2j], tf.complex128),
)


def _bundle(*values):
    return ops.library().tf_ext_bundle(list(values))


def _unbundle(bundle, types):
    return ops.library().tf_ext_unbundle(bundle, T=types)


class BundleTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_there_and_back(self, mode):
        types = [value.dtype for value in _VALUES]
        there_and_back = mode(lambda *v: _unbundle(_bundle(*v), types))
        for value, found in zip(_VALUES, there_and_back(*_VALUES), strict=True):
            self.assertEqual(found.dtype, value.dtype)
            self.assertEqual(found.shape, value.shape)
            self.assertEqual(found.numpy().tobytes(), value.numpy().tobytes())

    @parameterized.named_parameters(*MODES)
    def test_the_next_stage_has_the_same_values(self, mode):
        values = [*_VALUES, tf.constant(["a string"])]
        found = mode(lambda *v: bundle_ops.next_stage(v))(*values)
        for value, one in zip(values, found, strict=True):
            self.assertEqual(one.dtype, value.dtype)
            self.assertEqual(one.shape, value.shape)
            self.assertEqual(one.numpy().tobytes(), value.numpy().tobytes())

    def test_nothing(self):
        bundle = _bundle(tf.zeros([0]))
        [found] = _unbundle(bundle, [tf.float32])
        self.assertEqual(found.shape, [0])

    def test_values_start_where_they_can_be_used_in_place(self):
        bundle = _bundle(*_VALUES[:2]).numpy()
        # One line of rank and sizes for all, one for each value.
        self.assertLen(bundle, 3 * 64)
        self.assertEqual(bundle[128], 7)

    def test_memory_that_is_not_aligned(self):
        values = [tf.constant([1.0, 2.0]), tf.constant([3], tf.int64)]
        shifted = tf.concat([tf.zeros([8], tf.uint8), _bundle(*values)], 0)
        for shift in (0, 1, 7):
            part = tf.concat([shifted[8 - shift : 8], shifted[8:]], 0)
            parts = tf.split(part, [shift, len(part) - shift])
            found = _unbundle(parts[1], [tf.float32, tf.int64])
            self.assertAllEqual(found[0], values[0])
            self.assertAllEqual(found[1], values[1])

    @parameterized.named_parameters(*MODES)
    def test_refuses(self, mode):
        bundle = _bundle(tf.constant([1.0, 2.0]), tf.constant(3, tf.int64))
        types = [tf.float32, tf.int64]
        header = np.frombuffer(bundle.numpy().tobytes(), np.int64)

        def forged(place, number):
            changed = header.copy()
            changed[place] = number
            return np.frombuffer(changed.tobytes(), np.uint8)

        # A number of values that is beyond int64.
        square = np.frombuffer(
            np.array([2, 1 << 32, 1 << 32, *[0] * 13], np.int64).tobytes(),
            np.uint8,
        )

        for arguments, message in (
            ((tf.reshape(bundle, [1, -1]), types), "bundle must be a vector"),
            ((bundle[:-64], types), "value 1 ends after it"),
            ((bundle[:32], types), "it is too short"),
            ((bundle[:16], types), "value 1 has no rank"),
            ((bundle[:8], types), "value 0 has no shape"),
            ((bundle, types[:1]), "its values have 128 bytes"),
            ((bundle, [*types, tf.half]), "value 2 ends after it"),
            ((forged(0, -1), types), "value 0 has no rank"),
            ((forged(0, 1 << 40), types), "value 0 has no rank"),
            ((forged(1, -5), types), "values cannot be of shape"),
            ((forged(1, 1 << 62), types), "value 0 is larger"),
            ((forged(1, 96), types), "value 0 ends after it"),
            ((forged(1, 18), types), "value 1 ends after it"),
            ((square, [tf.float32]), "values cannot be of shape"),
        ):
            with self.subTest(message):
                with self.assertRaisesRegex(
                    (tf.errors.InvalidArgumentError, ValueError), message
                ):
                    mode(lambda bundle, t=arguments[1]: _unbundle(bundle, t))(
                        arguments[0]
                    )

    def test_shapes_are_known_and_checked(self):
        bundle = _bundle(tf.ones([2, 3]), tf.constant(3, tf.int64))
        number = tf.TensorSpec([], tf.int64)

        @tf.function
        def function(bundle, *sizes):
            specs = [tf.TensorSpec(sizes), number]
            values = bundle_ops.unbundle(bundle, specs)
            self.assertEqual(values[0].shape.as_list(), list(sizes))
            self.assertEqual(values[1].shape, [])
            return values

        self.assertAllEqual(function(bundle, None, 3)[0], tf.ones([2, 3]))
        for sizes, shape in (((2,), r"\[2\]"), ((None, 4), r"\[\?,4\]")):
            with self.assertRaisesRegex(
                tf.errors.InvalidArgumentError,
                rf"value 0 must be of shape shapes\[0\] = {shape}, but its "
                r"shape is \[2,3\]",
            ):
                function(bundle, *sizes)
        with self.assertRaisesRegex(
            (tf.errors.InvalidArgumentError, ValueError),
            "shapes must have N = 2 values, but has 1",
        ):
            ops.library().tf_ext_unbundle(
                bundle, T=[tf.float32, tf.int64], shapes=[[2, 3]]
            )

    def test_refuses_strings(self):
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            r"T\[1\] must be a type that is copied byte by byte, but is string",
        ):
            _bundle(1, tf.constant("a"))

    def test_a_mark_does_nothing_on_one_device(self):
        self.assertIsNone(bundle_transfers())

        @tf.function
        def function(value):
            bundle_transfers()
            return 2 * value

        self.assertEqual(int(function(3)), 6)


if __name__ == "__main__":
    tf.test.main()
