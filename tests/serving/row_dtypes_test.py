# SPDX-License-Identifier: Apache-2.0
"""Rows in the types in which they are served."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest

from tf_ext.serving import row_dtypes


class EncodeTest(absltest.TestCase):
    rows = np.array([[0.1, -2.0], [0.0, 0.0], [3.0, 1.5]], np.float32)

    def test_types(self):
        for name in row_dtypes.NAMES:
            stored, scales = row_dtypes.encode(self.rows, name, "t")
            self.assertEqual(stored.dtype, tf.as_dtype(name).as_numpy_dtype)
            found = stored.astype(np.float32)
            if name == "int8":
                self.assertEqual(scales.shape, (3,))
                found *= scales[:, np.newaxis]
            else:
                self.assertIsNone(scales)
            error = {"float32": 0, "float16": 2e-4, "bfloat16": 2e-3}
            np.testing.assert_allclose(
                found, self.rows, rtol=0, atol=error.get(name, 0.012)
            )

    def test_weights_that_are_too_large(self):
        large = np.array([[1.0, 7e4]], np.float32)
        with self.assertRaisesRegex(ValueError, "Table 't' .* 70000, which"):
            row_dtypes.encode(large, "float16", "t")
        for name in ("float32", "bfloat16", "int8"):
            row_dtypes.encode(large, name, "t")


if __name__ == "__main__":
    absltest.main()
