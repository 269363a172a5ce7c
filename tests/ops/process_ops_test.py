# SPDX-License-Identifier: Apache-2.0
import tensorflow as tf
from ops_util import RefusalTestCase

import tf_ext
from tf_ext.ops import process_ops


class TaskTest(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(process_ops.set_task, "")

    def test_is_what_was_recorded(self):
        self.assertEqual(process_ops.task().numpy(), b"")
        for text in ("the first", "another, that is longer than a pointer"):
            process_ops.set_task(text)
            self.assertEqual(process_ops.task().numpy().decode(), text)

    def test_is_read_in_each_run_of_a_graph(self):
        read = tf.function(process_ops.task)
        self.assertEqual(read.get_concrete_function().output_shapes, [])
        for text in ("one", "other"):
            process_ops.set_task(text)
            self.assertEqual(read().numpy().decode(), text)


class VersionsTest(tf.test.TestCase):
    def test_are_those_of_the_package_and_of_tensorflow(self):
        expected = [tf_ext.__version__.encode(), tf.__version__.encode()]
        self.assertAllEqual(process_ops.versions(), expected)

    def test_are_the_same_in_a_graph(self):
        result = tf.function(process_ops.versions)()
        self.assertEqual(result.shape, [2])
        self.assertAllEqual(result, process_ops.versions())

    def test_shape_is_known(self):
        concrete = tf.function(process_ops.versions).get_concrete_function()
        self.assertEqual(concrete.output_shapes, tf.TensorShape([2]))


if __name__ == "__main__":
    tf.test.main()
