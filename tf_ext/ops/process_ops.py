# SPDX-License-Identifier: Apache-2.0
"""The ops that say what a process of a cluster is: its versions, its task."""

import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>SetTask")
tf.no_gradient("TfExt>Task")
tf.no_gradient("TfExt>Versions")


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
      >>> from tf_ext.ops import process_ops
      >>> process_ops.task().numpy()
      b''
    """
    return library().tf_ext_task(name=name)


def versions(name: str | None = None) -> tf.Tensor:
    """The versions of tf_ext and TensorFlow in the process that runs the op.

    Under `tf.device` of another process it returns the versions there, and
    raises `tf.errors.NotFoundError` if the op library is not loaded there.

    Args:
      name: optional name of the operation.

    Returns:
      string `[2]`: the versions of tf_ext and TensorFlow, such as "0.1.0" and
      "2.21.0".

    Example:
      >>> from tf_ext.ops import process_ops
      >>> tf_ext_version, tensorflow_version = process_ops.versions().numpy()
      >>> tf_ext_version.decode() == tf_ext.__version__
      True
    """
    return library().tf_ext_versions(name=name)
