# SPDX-License-Identifier: Apache-2.0
"""The ops that say as which task of a cluster a process was started."""

import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>SetTask")
tf.no_gradient("TfExt>Task")


def set_task(
    text: str | tf.Tensor, name: str | None = None
) -> tf.Operation | None:
    """Records as which task the process that runs the op was started.

    Args:
      text: string `[]`, a description, for `task`.
      name: optional name of the operation.

    Raises:
      tf.errors.InvalidArgumentError: if `text` is no scalar.
    """
    return library().tf_ext_set_task(text, name=name)


def task(name: str | None = None) -> tf.Tensor:
    """What `set_task` has recorded in the process that runs the op.

    Args:
      name: optional name of the operation.

    Returns:
      string `[]`, "" if nothing was recorded.

    Example:
      >>> from tf_ext.ops import _task_ops
      >>> _task_ops.task().numpy()
      b''
    """
    return library().tf_ext_task(name=name)
