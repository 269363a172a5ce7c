# SPDX-License-Identifier: Apache-2.0
"""The Keras that `tf.keras` is: Keras 3, or tf_keras on request.

`TF_USE_LEGACY_KERAS=1` in the environment, set before TensorFlow is imported,
selects tf_keras. Every module of tf_ext takes Keras from here.
"""

import tensorflow as tf

keras = tf.keras

# TensorFlow's own way to tell the two apart.
_version = getattr(keras, "version", None)
IS_KERAS_3 = _version is not None and _version().startswith("3.")
