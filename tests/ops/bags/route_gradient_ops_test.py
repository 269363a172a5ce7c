# SPDX-License-Identifier: Apache-2.0
"""The op that sends the gradient of rows to a table's shadow variable."""

import gc
import weakref

import tensorflow as tf
from absl.testing import parameterized
from ops_util import INT64_MAX, INT64_MIN, MODES

import tf_ext

_SIGNS = [7, -1, INT64_MIN, INT64_MAX]


class RouteGradientTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_rows_and_their_gradient(self, mode):
        shadow = tf.Variable([[0.0, 0.0]])
        rows = tf.reshape(tf.range(8.0), [4, 2])
        signs = tf.constant(_SIGNS, tf.int64)

        @mode
        def step():
            with tf.GradientTape() as tape:
                tape.watch(rows)
                routed = tf_ext.ops.route_gradient(rows, shadow, signs)
                loss = tf.reduce_sum(routed * routed)
            slices, of_rows = tape.gradient(loss, [shadow, rows])
            self.assertIsNone(of_rows)
            self.assertIsInstance(slices, tf.IndexedSlices)
            return routed, slices.values, slices.indices, slices.dense_shape

        routed, values, indices, dense_shape = step()
        self.assertAllEqual(routed, rows)
        self.assertAllEqual(values, 2 * rows)
        self.assertAllEqual(indices, _SIGNS)
        self.assertAllEqual(dense_shape, [1, 2])

    @parameterized.named_parameters(*MODES)
    def test_the_gradient_of_rows_that_are_gathered(self, mode):
        shadow = tf.Variable([[0.0, 0.0]])
        rows = tf.reshape(tf.range(8.0), [4, 2])

        @mode
        def step():
            with tf.GradientTape() as tape:
                routed = tf_ext.ops.route_gradient(
                    rows, shadow, tf.constant(_SIGNS, tf.int64)
                )
                loss = tf.reduce_sum(tf.gather(routed, [3, 0, 3]))
            slices = tape.gradient(loss, shadow)
            self.assertIsInstance(slices.values, tf.Tensor)
            return slices.values, slices.indices

        values, indices = step()
        self.assertAllEqual(values, [[1, 1], [0, 0], [0, 0], [2, 2]])
        self.assertAllEqual(indices, _SIGNS)

    def test_static_shape(self):
        @tf.function(
            input_signature=[
                tf.TensorSpec(None),
                tf.TensorSpec([1, 2]),
                tf.TensorSpec([3], tf.int64),
            ]
        )
        def route(rows, shadow, signs):
            routed = tf_ext.ops.route_gradient(
                tf.ensure_shape(rows, [None, 2]), shadow, signs
            )
            self.assertEqual(routed.shape.rank, 2)
            return routed

        self.assertAllEqual(
            route(tf.ones([3, 2]), tf.zeros([1, 2]), [1, 2, 3]), tf.ones([3, 2])
        )

    @parameterized.named_parameters(
        ("rows_of_another_number", [3, 2], [1, 2], [4], r"rows .* \[4,2\]"),
        ("rows_of_another_dim", [4, 3], [1, 2], [4], r"rows .* \[4,2\]"),
        ("rows_of_rank_1", [4], [1, 4], [4], "rows"),
        ("shadow_of_rank_1", [4, 2], [2], [4], "shadow"),
        ("signs_of_rank_2", [4, 2], [1, 2], [4, 1], "signs"),
    )
    def test_wrong_shapes(self, rows, shadow, signs, message):
        for mode in (lambda f: f, tf.function):
            with self.assertRaisesRegex(
                (ValueError, tf.errors.InvalidArgumentError), message
            ):
                mode(tf_ext.ops.route_gradient)(
                    tf.zeros(rows), tf.zeros(shadow), tf.zeros(signs, tf.int64)
                )

    def test_keeps_no_graph(self):
        # As tf.custom_gradient does, with all that the graph captured. (A graph
        # in which the library is first loaded stays: load it before.)
        tf_ext.ops.library()
        shadow = tf.Variable([[0.0]])

        def make():
            @tf.function
            def step(rows):
                signs = tf.constant([7], tf.int64)
                with tf.GradientTape() as tape:
                    routed = tf_ext.ops.route_gradient(rows, shadow, signs)
                return tape.gradient(routed, shadow).values

            concrete = step.get_concrete_function(tf.ones([1, 1]))
            return weakref.ref(concrete.graph)

        graph = make()
        for _ in range(3):  # Finalizers leave more to collect.
            gc.collect()
        self.assertIsNone(graph())


if __name__ == "__main__":
    tf.test.main()
