# SPDX-License-Identifier: Apache-2.0
"""The op that returns the versions of a process."""

import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>Versions")


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
      >>> from tf_ext.ops import _version_ops
      >>> tf_ext_version, tensorflow_version = _version_ops.versions().numpy()
      >>> tf_ext_version.decode() == tf_ext.__version__
      True
    """
    return library().tf_ext_versions(name=name)
