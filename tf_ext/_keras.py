"""The Keras that `tf.keras` is: Keras 3, or tf_keras on request.

`TF_USE_LEGACY_KERAS=1` in the environment, set before TensorFlow is imported,
selects tf_keras. Every module of tf_ext takes Keras from here.
"""

import tensorflow as tf

keras = tf.keras

# `tf.keras` is a lazy module without a version of its own under Keras 3.
IS_KERAS_3 = not keras.__version__.startswith("2.")
