# SPDX-License-Identifier: Apache-2.0
"""Python numbers of which there is another one in each step."""

import numpy as np
import tensorflow as tf


def scalar(value, dtype):
    """A scalar tensor of a tensor or number, without keeping the number.

    When TensorFlow converts a Python number eagerly, it keeps the tensor for
    as long as the process lives: more than 500 bytes for each different number,
    such as the step of each push. It does not keep those of arrays.

    Seen in: TensorFlow 2.18 to 2.21.

    Args:
      value: tensor or number.
      dtype: tf.DType.

    Raises:
      ValueError: if an integer is out of the range of the type.
    """
    if isinstance(value, int | float):
        try:
            value = np.array(value, dtype.as_numpy_dtype)
        except OverflowError:
            pass  # TensorFlow's error says more.
    return tf.convert_to_tensor(value, dtype)
