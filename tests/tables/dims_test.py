# SPDX-License-Identifier: Apache-2.0
"""Rows of the dims that have code of their own, and of those beside them."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from numpy.testing import assert_array_equal

import tf_ext
from tf_ext.optimizers import SparseSGD

_COMMON = 1, 8, 16, 32, 64, 128
_DIMS = sorted({dim + more for dim in _COMMON for more in (-1, 0, 1)} - {0})


class DimsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        {}, {"dtype": "bfloat16", "statistics": ["show"]}, {"l2": 2.0**-60}
    )
    def test_rows_are_read_and_written_whole(self, **options):
        signs = np.arange(40)
        for dim in _DIMS:
            table = tf_ext.SparseTable(
                "t", dim, SparseSGD(1.0), "normal", **options
            )
            # Numbers that neither type rounds.
            weights = signs[:, np.newaxis] + np.arange(dim) % 7 * 0.25
            table.import_rows(signs[::2], {"weights": weights[::2]})
            initial = table.pull(signs[1::2])
            for training in (False, True):
                found = table.pull(signs, training=training)
                assert_array_equal(found[::2], weights[::2])
                assert_array_equal(found[1::2], initial)
            gradients = np.ones([20, dim], np.float32)
            table.push(signs[::2], gradients, step=1)
            found = table.pull(signs)
            assert_array_equal(found[::2], weights[::2] - 1)
            assert_array_equal(found[1::2], initial)
            by_sign = table.export_rows()
            assert_array_equal(
                by_sign[1]["weights"][np.argsort(by_sign[0])], found
            )


if __name__ == "__main__":
    tf.test.main()
