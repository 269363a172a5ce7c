# SPDX-License-Identifier: Apache-2.0
"""Checks of inputs, with stock ops."""

import tensorflow as tf


def check(holds: tf.Tensor, message: str) -> list[tf.Operation]:
    """Raises an error unless `holds`.

    Args:
      holds: bool scalar.
      message: string, the error message.

    Returns:
      List of ops: in a graph the one that raises, otherwise none.

    Raises:
      tf.errors.InvalidArgumentError: if the check fails.
    """
    if not tf.executing_eagerly():
        return [tf.debugging.Assert(holds, [message])]
    if not holds:
        raise tf.errors.InvalidArgumentError(None, None, message)
    return []
