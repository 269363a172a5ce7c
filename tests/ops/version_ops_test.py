# SPDX-License-Identifier: Apache-2.0
import tensorflow as tf

import tf_ext
from tf_ext.ops import _version_ops


class VersionsTest(tf.test.TestCase):
    def test_are_those_of_the_package_and_of_tensorflow(self):
        expected = [tf_ext.__version__.encode(), tf.__version__.encode()]
        self.assertAllEqual(_version_ops.versions(), expected)

    def test_are_the_same_in_a_graph(self):
        result = tf.function(_version_ops.versions)()
        self.assertEqual(result.shape, [2])
        self.assertAllEqual(result, _version_ops.versions())

    def test_shape_is_known(self):
        concrete = tf.function(_version_ops.versions).get_concrete_function()
        self.assertEqual(concrete.output_shapes, tf.TensorShape([2]))


if __name__ == "__main__":
    tf.test.main()
