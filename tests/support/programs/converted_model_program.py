# SPDX-License-Identifier: Apache-2.0
"""Loads a converted model in a process of its own, and predicts with it."""

import sys

import numpy as np
import tensorflow as tf

FOLDER = sys.argv[1]
KIND = sys.argv[2]

saved = np.load(f"{FOLDER}/features.npz", allow_pickle=True)
features = {
    name: tf.constant(saved[name].tolist())
    if saved[name].dtype == object
    else tf.constant(saved[name])
    for name in saved
}
if KIND == "keras":
    import tf_ext  # noqa: F401, its classes are in the file

    model = tf.keras.models.load_model(f"{FOLDER}/model.keras")
    outputs = model(features)
else:
    # Without tf_ext.
    assert "tf_ext" not in sys.modules
    loaded = tf.saved_model.load(f"{FOLDER}/served/1")
    [outputs] = loaded.signatures["serving_default"](**features).values()
np.save(f"{FOLDER}/{KIND}.npy", outputs)
