"""The op that says which versions a process runs."""

import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>Versions")


def versions(name=None):
    """The versions of tf_ext and TensorFlow in the process that runs the op.

    Under `tf.device` of another process it tells that one's, and fails with
    `tf.errors.NotFoundError` if the op library is not loaded there.

    Args:
      name: optional name of the operation.

    Returns:
      string `[2]`: tf_ext's, as "0.1.0", and TensorFlow's, as "2.21.0".

    Example:
      >>> tf_ext_version, tensorflow_version = tf_ext.ops.versions().numpy()
      >>> tf_ext_version.decode() == tf_ext.__version__
      True
    """
    return library().tf_ext_versions(name=name)
