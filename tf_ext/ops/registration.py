# SPDX-License-Identifier: Apache-2.0
"""Registers tf_ext with TensorFlow and Keras, in any order of imports."""

import typing

import tf_ext
from tf_ext.ops import _library


def library() -> typing.Any:
    """Returns the raw ops; registers all ops and kernels, and Keras's classes.

    `import tf_ext` and `import tensorflow` do so, the later one of them. So ops
    and classes are found by name, as `tf.saved_model.load` and
    `keras.models.load_model` look them up, and by a `tf.distribute.Server`.

    Returns:
      The module created by `tf.load_op_library`.

    Raises:
      ImportError: if tf_ext is not built, or built for another version of
        TensorFlow.

    Example:
      >>> hasattr(tf_ext.ops.library(), "tf_ext_sparse_table_pull")
      True
    """
    tf_ext._import_all()
    return _library.library()
