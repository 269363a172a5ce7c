# SPDX-License-Identifier: Apache-2.0
"""TensorFlow still keeps the tensors of Python numbers."""

import json

import numpy as np
import processes
import pytest
import tensorflow as tf
from absl.testing import absltest

from tf_ext._compat import scalars

pytestmark = pytest.mark.slow_tests(
    "ScalarTest::test_is_not_kept",
)


class ScalarTest(absltest.TestCase):
    def test_is_not_kept(self):
        # In a process of its own: memory that other tests have freed would be
        # used first.
        output = processes.run("memory_program.py", "numbers", 40_000)
        bytes_each = json.loads(output.strip().splitlines()[-1])
        self.assertLess(bytes_each["scalar"], 50)
        # Otherwise it is no longer needed.
        self.assertGreater(bytes_each["convert_to_tensor"], 200)

    def test_is_that_of_tensorflow(self):
        for value, dtype in (
            (2**63 - 1, tf.int64),
            (-(2**63), tf.int64),
            (0.1, tf.float64),
            (3, tf.float64),
            (np.int32(7), tf.int32),
            (tf.constant(5, tf.int64), tf.int64),
        ):
            found = scalars.scalar(value, dtype)
            self.assertEqual(found.dtype, dtype)
            self.assertEqual(found.shape, [])
            self.assertEqual(found.numpy(), dtype.as_numpy_dtype(value))
        with self.assertRaisesRegex(ValueError, "out-of-range integer"):
            scalars.scalar(2**63, tf.int64)


if __name__ == "__main__":
    absltest.main()
