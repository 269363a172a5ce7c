# SPDX-License-Identifier: Apache-2.0
"""The clock of tables that store the last push of rows in seconds."""

import tensorflow as tf


def seconds() -> tf.Tensor:
    """Seconds since 1970, int64 scalar; a graph reads the clock in each run."""
    return tf.cast(tf.timestamp(), tf.int64)
