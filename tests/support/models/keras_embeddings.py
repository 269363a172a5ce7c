# SPDX-License-Identifier: Apache-2.0
"""A Keras model with every kind of Embedding that becomes a column."""

import numpy as np
import tensorflow as tf

from tf_ext._keras import keras

_TAGS = ["red", "green", "blue"]
_CODES = [10, -20, 30]
_PLACES, _BINS, _LENGTH = 7, 5, 4


def model(seed=3):
    """The model: a masked sequence, an average, ids, tokens and bins.

    Args:
      seed: int, of the weights.
    """
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    tags = keras.Input((_LENGTH,), dtype="string", name="tags")
    place = keras.Input((1,), name="place")  # Floats, as by default.
    code = keras.Input((), dtype="int64", name="code")
    numbers = keras.Input((3,), name="numbers")
    sequence = layers.Embedding(6, 3, mask_zero=True, name="of_tags")(
        layers.StringLookup(vocabulary=_TAGS, mask_token="")(tags)
    )
    codes = layers.Embedding(9, 2, name="of_codes")(
        layers.IntegerLookup(vocabulary=_CODES)(code)
    )
    bins = layers.Embedding(_BINS, 2, name="of_bins")(
        layers.Hashing(_BINS)(code)
    )
    parts = [
        layers.LSTM(2)(sequence),
        layers.GlobalAveragePooling1D()(sequence),
        layers.Flatten()(layers.Embedding(_PLACES, 3)(place)),
        codes,
        bins,
        layers.Normalization(mean=[0.0] * 3, variance=[2.0] * 3)(numbers),
    ]
    hidden = layers.BatchNormalization()(layers.Concatenate()(parts))
    hidden = layers.Dense(8, activation="relu")(hidden) * 2.0
    outputs = layers.Dense(1, activation="sigmoid")(hidden)
    return keras.Model([tags, place, code, numbers], outputs)


def batches(count, size, seed=4):
    """Features and labels, a list of batches."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        tags = rng.choice([*_TAGS, ""], size=(size, _LENGTH))
        tags[:, 0] = "red"  # Keras's mean of nothing is NaN.
        features = [
            tf.constant(tags),
            tf.constant(rng.integers(0, _PLACES, (size, 1)), tf.float32),
            tf.constant(rng.choice(_CODES, size), tf.int64),
            tf.constant(rng.normal(size=(size, 3)), tf.float32),
        ]
        labels = tf.constant(rng.integers(0, 2, (size, 1)), tf.float32)
        found.append((features, labels))
    return found


def vocabularies():
    """The values of all columns, by namespace."""
    return {
        "tags": _TAGS,
        "place": np.arange(_PLACES),
        "code": _CODES,
        "of_bins": np.arange(_BINS),
    }
