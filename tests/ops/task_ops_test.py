# SPDX-License-Identifier: Apache-2.0
import tensorflow as tf
from ops_util import RefusalTestCase

from tf_ext.ops import _task_ops


class TaskTest(RefusalTestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(_task_ops.set_task, "")

    def test_is_what_was_recorded(self):
        self.assertEqual(_task_ops.task().numpy(), b"")
        for text in ("the first", "another, that is longer than a pointer"):
            _task_ops.set_task(text)
            self.assertEqual(_task_ops.task().numpy().decode(), text)

    def test_is_read_in_each_run_of_a_graph(self):
        read = tf.function(_task_ops.task)
        self.assertEqual(read.get_concrete_function().output_shapes, [])
        for text in ("one", "other"):
            _task_ops.set_task(text)
            self.assertEqual(read().numpy().decode(), text)


if __name__ == "__main__":
    tf.test.main()
