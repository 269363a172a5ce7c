# SPDX-License-Identifier: Apache-2.0
"""The op that weighs a worker's gradients."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from ops_util import MODES, RefusalTestCase

from tf_ext.ops.exchange import exchange_ops

pytestmark = pytest.mark.both_kerases(slow=True)


class ExchangeWeighTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_multiplies_each(self, mode):
        rng = np.random.default_rng(3)
        # The last one is more than one thread's work.
        shapes = [[], [0, 4], [3, 5], [300_001]]
        values = [rng.normal(size=s).astype(np.float32) for s in shapes]

        @mode
        def call(weight):
            return exchange_ops.exchange_weigh(values, weight)

        for weight in (1.0, 0.3, -2.0):
            products = call(tf.constant(weight))
            for value, product in zip(values, products, strict=True):
                expected = value * np.float32(weight)
                self.assertEqual(product.numpy().tobytes(), expected.tobytes())

    def test_products_with_0_are_0(self):
        bad = tf.constant([np.nan, np.inf, 1.0])
        [product] = exchange_ops.exchange_weigh([bad], 0.0)
        self.assertAllEqual(product, [0, 0, 0])

    def test_leaves_its_input_as_it_is(self):
        @tf.function
        def call(value):
            [product] = exchange_ops.exchange_weigh([value * 1], 2.0)
            [other] = exchange_ops.exchange_weigh([value], 3.0)
            return value + 0, product, other

        value, product, other = call(tf.constant([1.0, 2.0]))
        self.assertAllEqual(value, [1, 2])
        self.assertAllEqual(product, [2, 4])
        self.assertAllEqual(other, [3, 6])

    def test_knows_shapes_in_a_graph(self):
        @tf.function
        def call(value):
            a, b = exchange_ops.exchange_weigh([value, [1.0, 2.0]], 1.0)
            self.assertEqual(a.shape.as_list(), [None, 3])
            self.assertEqual(b.shape.as_list(), [2])
            return a

        call.get_concrete_function(tf.TensorSpec([None, 3]))


class RefusalTest(RefusalTestCase):
    def test_a_weight_that_is_no_scalar(self):
        self.assert_refused(
            lambda: exchange_ops.exchange_weigh([[1.0]], [1.0, 2.0]),
            "weight",
            "[2]",
        )


if __name__ == "__main__":
    tf.test.main()
