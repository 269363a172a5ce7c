"""TensorFlow still keeps the tensors of Python numbers."""

import numpy as np
import tensorflow as tf
from absl.testing import absltest
from memory_program import resident

from tf_ext._compat import scalars

_CALLS = 40_000


def _growth(function):
    """How much memory calls with different numbers take."""
    for number in range(1000):
        function(number)
    before = resident()
    for number in range(1000, 1000 + _CALLS):
        function(number)
    return resident() - before


class ScalarTest(absltest.TestCase):
    def test_is_not_kept(self):
        self.assertLess(
            _growth(lambda number: scalars.scalar(number, tf.int64)),
            50 * _CALLS,
        )
        # Otherwise it is no longer needed.
        self.assertGreater(
            _growth(lambda number: tf.convert_to_tensor(number, tf.int64)),
            200 * _CALLS,
        )

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
