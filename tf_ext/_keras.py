# SPDX-License-Identifier: Apache-2.0
"""The Keras that `tf.keras` is: Keras 3, or tf_keras on request.

`TF_USE_LEGACY_KERAS=1` in the environment, set before TensorFlow is imported,
selects tf_keras. Every module of tf_ext takes Keras from here.
"""

import typing

import tensorflow as tf

keras = tf.keras

# TensorFlow's own way to tell the two apart.
_version = getattr(keras, "version", None)
IS_KERAS_3 = _version is not None and _version().startswith("3.")


def tf_variable(variable: typing.Any) -> typing.Any:
    """The tf.Variable of a variable of Keras.

    Keras 3's hold TensorFlow's, or a tensor while Keras infers shapes. Those of
    tf_keras are TensorFlow's.
    """
    if not IS_KERAS_3 or isinstance(variable, tf.Variable):
        return variable
    return variable.value
