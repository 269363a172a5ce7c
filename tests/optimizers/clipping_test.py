# SPDX-License-Identifier: Apache-2.0
"""Clipping acts on the merged gradient of a table, not on what is merged."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import mirrored_strategy, number, rows_of
from ops_util import named_cases

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ClippingTest::*_strategy_mirrored",
        "ClippingTest::test_comes_after_the_sum_clipping_global_strategy_alone",
    ),
]

# Sign 7 has two gradients, as of two layers. Their sum is [2, 0], so that the
# norm of the table's gradient is 3, and with that of the variable 5. Before
# the sum the norms are 7.5 and 8.5, and half of each on each of two replicas.
_SIGNS = [7, 8, 7]
_VALUES = np.array([[4, 4], [2, 1], [-2, -4]], np.float32)
_DENSE = np.array([4], np.float32)


def _trained(clipping, dim):
    """A table and a variable of zeros, and their optimizer of rate 1."""
    rule = tf_ext.optimizers.SparseSGD(1.0)
    table = tf_ext.SparseTable("deep", dim, rule, "zeros")
    variable = tf.Variable([0.0])
    dense = keras.optimizers.SGD(1.0, **clipping)
    optimizer = tf_ext.optimizers.Optimizer(dense)
    optimizer.build([table.shadow, variable])
    return table, variable, optimizer


def _step(clipping, strategy):
    """(rows, variable) after a step at rate 1 from zeros."""
    with strategy.scope():
        table, variable, optimizer = _trained(clipping, 2)

    def step():
        replicas = strategy.num_replicas_in_sync
        slices = tf.IndexedSlices(
            tf.constant(_VALUES / replicas),
            tf.constant(_SIGNS, tf.int64),
            tf.constant([1, 2]),
        )
        dense = tf.constant(_DENSE / replicas)
        optimizer.apply_gradients([(slices, table.shadow), (dense, variable)])

    tf.function(lambda: strategy.run(step))()
    return rows_of(table), number(variable)


class ClippingTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        *named_cases(
            clipping=[
                ("none", ({}, [2, 0], [2, 1], 4)),
                ("norm", ({"clipnorm": 1.5}, [1, 0], [1, 0.5], 1.5)),
                ("global", ({"global_clipnorm": 2.5}, [1, 0], [1, 0.5], 2)),
                ("value", ({"clipvalue": 1.5}, [1.5, 0], [1.5, 1], 1.5)),
            ],
            strategy=[
                ("alone", tf.distribute.get_strategy),
                ("mirrored", mirrored_strategy),
            ],
        )
    )
    def test_comes_after_the_sum(self, clipping, strategy):
        options, first, second, dense = clipping
        rows, variable = _step(options, strategy())
        self.assertAllClose(
            rows, {7: np.negative(first), 8: np.negative(second)}
        )
        self.assertAllClose(variable, [-dense])

    @parameterized.parameters(
        ({"global_clipnorm": 1.0}, -0.6, -0.8), ({"clipnorm": 1.0}, -1.0, None)
    )
    def test_norms_whose_squares_are_infinite(self, clipping, row, dense):
        table, variable, optimizer = _trained(clipping, 1)
        slices = tf.IndexedSlices(
            tf.constant([[3e20]]),
            tf.constant([7], tf.int64),
            tf.constant([1, 1]),
        )
        optimizer.apply_gradients(
            [(slices, table.shadow), (tf.constant([4e20]), variable)]
        )
        self.assertAllClose(rows_of(table), {7: [row]})
        if dense is not None:  # Keras's own clipnorm makes it 0.
            self.assertAllClose(variable, [dense])

    def test_each_table_has_its_norm(self):
        optimizer = tf_ext.optimizers.Optimizer(
            keras.optimizers.SGD(1.0, clipnorm=1.0)
        )
        tables = [
            tf_ext.SparseTable(
                name, 1, tf_ext.optimizers.SparseSGD(1.0), "zeros"
            )
            for name in ("two", "four")
        ]
        shadows = [table.shadow for table in tables]
        optimizer.build(shadows)
        gradients = [
            tf.IndexedSlices(
                tf.constant([[norm]]),
                tf.constant([7], tf.int64),
                tf.constant([1, 1]),
            )
            for norm in (2.0, 4.0)
        ]
        optimizer.apply_gradients(zip(gradients, shadows))
        for table in tables:
            self.assertAllClose(rows_of(table), {7: [-1.0]})


if __name__ == "__main__":
    tf.test.main()
