# SPDX-License-Identifier: Apache-2.0
"""What keeps ops of tf_ext out of a model that serves."""

import tensorflow as tf
from stock_util import UNKNOWN_BATCH, in_stock_ops

from tf_ext import ops
from tf_ext.ops._stock.allowed import ALLOWED, foreign_ops


class ForeignOpsTest(tf.test.TestCase):
    def test_ops_of_functions_are_found(self):
        @tf.function(autograph=False)
        def inner(signs):
            return ops.unique_by_shard(signs).unique

        @tf.function(autograph=False)
        def outer(signs):
            return tf.cond(
                tf.size(signs) > 0, lambda: inner(signs), lambda: signs
            )

        signs = tf.TensorSpec([None], tf.int64)
        graph = outer.get_concrete_function(signs).graph.as_graph_def()
        self.assertEqual(foreign_ops(graph), ["TfExt>UniqueByShard"])
        # And the tests of stock ops would fail.
        unique = ops.library().tf_ext_unique_by_shard
        with self.assertRaisesRegex(AssertionError, "UniqueByShard"):
            in_stock_ops(UNKNOWN_BATCH, unique)(tf.constant([1], tf.int64))

    def test_allowed_ops_are_tensorflows(self):
        graph = tf.Graph().as_graph_def()
        for name in ALLOWED:
            graph.node.add(name=name, op=name)
        self.assertEqual(foreign_ops(graph), [])


if __name__ == "__main__":
    tf.test.main()
