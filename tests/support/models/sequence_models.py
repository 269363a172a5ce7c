# SPDX-License-Identifier: Apache-2.0
"""Models that read a history of ids as a sequence, and batches for them."""

import numpy as np
import tensorflow as tf

import tf_ext
from models.model_building import id_column
from tf_ext._keras import keras

DIM = 4
LENGTH = 5
PADDING = 0


@keras.utils.register_keras_serializable(package="sequence_models")
class MaskedSum(keras.layers.Layer):
    """The sum of the positions that are not masked."""

    def call(self, inputs, mask=None):
        assert mask is not None, "No mask has got here."
        return tf.reduce_sum(inputs * tf.cast(mask, inputs.dtype)[..., None], 1)


def network(history, item):
    """A logit, of all kinds of layers that sequences are for.

    Args:
      history: `[batch_size, length, DIM]`, with a mask.
      item: `[batch_size, DIM]`.
    """

    def initializer(seed):
        return keras.initializers.GlorotUniform(seed=seed)

    dense = keras.layers.Dense(3, "tanh", kernel_initializer=initializer(1))
    gru = keras.layers.GRU(
        3,
        kernel_initializer=initializer(2),
        recurrent_initializer=initializer(3),
    )
    attention = keras.layers.MultiHeadAttention(
        2, 3, kernel_initializer=initializer(4)
    )
    joined = keras.layers.Concatenate()(
        [
            MaskedSum()(dense(history)),
            gru(history),
            MaskedSum()(attention(history, history)),
            item,
        ]
    )
    return keras.layers.Dense(1, kernel_initializer=initializer(5))(joined)


def columns(max_length):
    """The columns of a history and of an item, which share rows."""
    return [
        tf_ext.feature_column.sequence_category_column(
            id_column("history", missing=PADDING), max_length=max_length
        ),
        id_column("item"),
    ]


def inputs(ragged=False):
    """The inputs of the models."""
    shape, kwargs = ((None,), {"ragged": True}) if ragged else ((LENGTH,), {})
    return {
        "history": keras.Input(shape, dtype="int64", name="history", **kwargs),
        "item": keras.Input((), dtype="int64", name="item"),
    }


def table(**kwargs):
    """A table whose rule is the same for lazy rows as for a variable."""
    rule = tf_ext.optimizers.SparseSGD()
    return tf_ext.SparseTable("item", DIM, rule, "normal", seed=3, **kwargs)


def model(ragged=False, max_length=LENGTH, **kwargs):
    """A compiled model on a table of these options."""
    features = inputs(ragged)
    embedded = tf_ext.layers.EmbeddingFeatures(
        columns(max_length), table(**kwargs), concatenate=False
    )(features)
    made = tf_ext.Model(
        features, network(embedded["history"], embedded["item"])
    )
    made.compile(tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.1)), loss())
    return made


def loss():
    """The loss of the models."""
    return keras.losses.BinaryCrossentropy(from_logits=True)


def data(rng, size, ids=30):
    """`(features, labels)` as arrays; the labels depend on the ids.

    Histories have all lengths, 0 too, and repeat ids.
    """
    history = rng.integers(1, ids, [size, LENGTH])
    lengths = rng.integers(0, LENGTH + 1, [size, 1])
    history[np.arange(LENGTH) >= lengths] = PADDING
    item = rng.integers(1, ids, [size])
    scores = np.where(history > 0, np.sin(7.0 * history), 0.0).sum(1)
    labels = scores * np.cos(5.0 * item) > 0
    features = {"history": history, "item": item}
    return features, labels.astype(np.float32)[:, np.newaxis]


def as_ragged(features, labels):
    """A batch without the padding of its histories."""
    history = tf.RaggedTensor.from_tensor(
        features["history"], padding=tf.constant(PADDING, tf.int64)
    )
    return {**features, "history": history}, labels
