"""The Keras that `tf.keras` is: Keras 3, or tf_keras on request.

`TF_USE_LEGACY_KERAS=1` in the environment, set before TensorFlow is imported,
selects tf_keras. Every module of tf_ext takes Keras from here.
"""

import sys

import tensorflow as tf

keras = tf.keras

# TensorFlow's own way to tell the two apart.
_version = getattr(keras, "version", None)
IS_KERAS_3 = _version is not None and _version().startswith("3.")


def running_calls(names):
    """The running calls of some of Keras's functions, the innermost first.

    Args:
      names: collection of strings, the functions' names.

    Returns:
      List of their frames.
    """
    found = []
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if (
            module.startswith(("keras.", "tf_keras."))
            and frame.f_code.co_name in names
        ):
            found.append(frame)
        frame = frame.f_back
    return found
