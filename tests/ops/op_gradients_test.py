# SPDX-License-Identifier: Apache-2.0
"""Ops that training steps pass by have no gradient, rather than an error."""

import tensorflow as tf
from absl.testing import parameterized
from ops_util import table_config

from tf_ext import ops
from tf_ext.ops.bags import gradient_sum_ops
from tf_ext.ops.exchange import exchange_ops
from tf_ext.ops.table import eviction_ops


def _push(values):
    handle = ops.sparse_table_handle(table_config())
    hyperparameters = [0.5, 0.0]
    return ops.sparse_table_push(
        handle, [1, 2], values, hyperparameters=hyperparameters
    )


def _import(values):
    handle = ops.sparse_table_handle(table_config())
    return ops.sparse_table_import(
        handle, [1, 2], [values], field_names=["weights"]
    )


def _decay(values):
    handle = ops.sparse_table_handle(table_config(statistics="show"))
    factor = tf.cast(values[0, 0], tf.float64)
    return eviction_ops.sparse_table_decay(handle, factor)


class NoGradientsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("sum", lambda x: gradient_sum_ops.sum_segments(x, [0, 0], 1)),
        ("weigh", lambda x: exchange_ops.exchange_weigh([x], 0.5)),
        ("push", _push),
        ("import", _import),
        ("decay", _decay),
    )
    def test_of(self, call):
        values = tf.fill([2, 4], 0.5)
        with tf.GradientTape() as tape:
            tape.watch(values)
            found = call(values)
        self.assertIsNone(tape.gradient(found, values))


if __name__ == "__main__":
    tf.test.main()
