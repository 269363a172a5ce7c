# SPDX-License-Identifier: Apache-2.0
"""The bags of some of a batch's columns."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tf_ext.feature_column import Bags, bag_blocks

pytestmark = pytest.mark.slow_tests(
    "BagBlocksTest::test_each_set_has_the_bags_of_its_columns0",
)


_WEIGHTED = [False, True, False, False, False]
# One table each: some in the order of the batch, apart, again, and whole.
_SETS = [(0,), (1, 2), (3, 4), (4, 2), (2, 3), (0, 1, 2, 3, 4)]


def _bags(sizes):
    """Signs that say whose they are, in bags of `sizes [columns, batch]`."""
    signs = [
        1000 * column + 10 * sample + value
        for column, row in enumerate(sizes)
        for sample, size in enumerate(row)
        for value in range(size)
    ]
    return Bags(
        tf.constant(signs, tf.int64),
        tf.constant(np.cumsum([0, *np.ravel(sizes)]), tf.int64),
        tf.constant(signs, tf.float32) / 2,
    )


class BagBlocksTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(0, 1, 3)
    def test_each_set_has_the_bags_of_its_columns(self, batch):
        sizes = np.random.default_rng(batch).integers(0, 4, [5, batch])

        @tf.function
        def select(bags):
            return bag_blocks.select_each(bags, _WEIGHTED, _SETS)

        for places, found in zip(_SETS, select(_bags(sizes)), strict=True):
            wanted = [
                1000 * column + 10 * sample + value
                for column in places
                for sample, size in enumerate(sizes[column])
                for value in range(size)
            ]
            self.assertAllEqual(found.signs, np.array(wanted, np.int64))
            splits = np.cumsum([0, *sizes[list(places)].ravel()])
            self.assertAllEqual(found.row_splits, splits)
            weights = wanted if 1 in places else []
            self.assertAllEqual(found.weights, np.array(weights) / 2)

    def test_tables_share_one_op(self):
        def operations(count):
            @tf.function
            def select(signs, row_splits):
                bags = Bags(signs, row_splits, tf.zeros([0]))
                sets = [(2 * i, 2 * i + 1) for i in range(count)]
                return bag_blocks.select_each(bags, [False] * 32, sets)

            spec = tf.TensorSpec([None], tf.int64)
            graph = select.get_concrete_function(spec, spec).graph
            return sum(
                op.type not in ("Identity", "Const")
                for op in graph.get_operations()
            )

        self.assertEqual(operations(16), operations(8))


if __name__ == "__main__":
    tf.test.main()
