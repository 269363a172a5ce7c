# SPDX-License-Identifier: Apache-2.0
"""Initial rows by stock ops, against the rows of tables."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from ops_util import INT64_MAX, INT64_MIN
from stock_util import EAGERLY, HOW, in_stock_ops

import tf_ext
from tf_ext import hashing, initializers
from tf_ext.ops._stock.initial_rows import initial_rows

pytestmark = pytest.mark.slow_except(
    "InitialRowsTest::test_all_bits_0_zeros",
    "InitialRowsTest::test_all_bits_1_constant",
    "InitialRowsTest::test_all_bits_2_uniform",
    "InitialRowsTest::test_all_bits_11_truncated_normal",
    "InitialRowsTest::test_all_bits_8_normal",
    "InitialRowsTest::test_all_bits_of_small_rows_2_uniform_bfloat16",
    "InitialRowsTest::test_all_bits_of_small_rows_8_normal_float16",
    "InitialRowsTest::test_all_bits_of_small_rows_9_normal_float16",
    "InitialRowsTest::test_docstring_example",
    "InitialRowsTest::test_normal_in_every_kind_of_graph0",
    "InitialRowsTest::test_static_shape",
    "InitialRowsTest::test_unknown_initializer",
)

_BEYOND_FLOAT16 = initializers.Normal(1e6, 0.0)
_INITIALIZERS = [
    initializers.Zeros(),
    initializers.Constant(-0.3),
    initializers.Uniform(),
    initializers.Uniform(-0.3, 1e-30),
    initializers.Uniform(1.0, 1.0000002),
    initializers.Normal(),
    initializers.Normal(0.1, 2.7),
    _BEYOND_FLOAT16,
    initializers.Normal(6e4, 1e4),
    initializers.Normal(0.0, 1e-6),
    initializers.TruncatedNormal(),
    initializers.TruncatedNormal(-0.1, 0.3),
]
# Name, seed and dim.
_TABLES = [("a", 0, 1), ("table.of-a_test", 2**64 - 1, 16), ("b", 2**63, 33)]


class InitialRowsTest(tf.test.TestCase, parameterized.TestCase):
    def _check(self, initializer, how, name, seed, dim, dtype="float32"):
        table = tf_ext.SparseTable(
            name, dim, "sgd", initializer, seed=seed, dtype=dtype
        )
        generator = np.random.default_rng(11)
        signs = generator.integers(INT64_MIN, INT64_MAX, 20_000)
        signs[:5] = 0, -1, 1, INT64_MIN, INT64_MAX
        call = functools.partial(initial_rows, table.rows.config, dim=dim)
        for some in (signs, signs[:0], signs[:1]):
            rows = in_stock_ops(how, call)(tf.constant(some))
            # Graphs, too: TensorFlow rearranges floats' sums and products.
            self.assertAllEqual(rows, table.pull(some))
        # Rows begin with them, too.
        pulled = table.pull(signs, training=True)
        self.assertAllEqual(table.pull(signs), pulled)
        rows = hashing.initial_rows(table.rows.config, signs)
        self.assertAllEqual(rows, pulled)

    @parameterized.named_parameters(
        (f"{i}_{initializer.kind}", initializer, HOW[i % 4], _TABLES[i % 3])
        for i, initializer in enumerate(_INITIALIZERS)
    )
    def test_all_bits(self, initializer, how, description):
        self._check(initializer, how, *description)

    @parameterized.named_parameters(
        (
            f"{i}_{initializer.kind}_{dtype}",
            (initializer, HOW[i % 4], *_TABLES[i % 3], dtype),
        )
        for i, initializer in enumerate(_INITIALIZERS)
        for dtype in ("float16", "bfloat16")
        if dtype == "bfloat16" or initializer != _BEYOND_FLOAT16
    )
    def test_all_bits_of_small_rows(self, arguments):
        self._check(*arguments)

    @parameterized.parameters(*HOW)
    def test_normal_in_every_kind_of_graph(self, how):
        self._check(initializers.Normal(0.0, 0.05), how, *_TABLES[1])

    def test_unknown_initializer(self):
        with self.assertRaisesRegex(ValueError, "`config`.*Received: 'ones'"):
            initial_rows("initializer=ones\n", tf.zeros([1], tf.int64), 1)

    def test_static_shape(self):
        table = tf_ext.SparseTable("c", 3, "sgd", "normal")
        with tf.Graph().as_default():
            for kind in ("normal", "zeros"):
                config = table.rows.config.replace("normal", kind)
                signs = tf.compat.v1.placeholder(tf.int64, [None])
                rows = initial_rows(config, signs, 3)
                self.assertEqual(rows.shape.as_list(), [None, 3])

    def test_docstring_example(self):
        table = tf_ext.SparseTable("items", 2, "sgd", "normal", seed=5)
        found = in_stock_ops(EAGERLY, initial_rows)(
            table.rows.config, tf.constant([7, -7], tf.int64), 2
        )
        self.assertAllEqual(found, table.pull([7, -7]))


if __name__ == "__main__":
    tf.test.main()
