# SPDX-License-Identifier: Apache-2.0
"""A Keras model with tables on all workers or servers."""

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext._keras import keras

TOKENS = [f"token {value}" for value in range(20)]
_IDS = 15


def keras_model():
    """The same trained model in every process."""
    keras.utils.set_random_seed(2)
    layers = keras.layers
    token = keras.Input((1,), dtype="string", name="token")
    ids = keras.Input((3,), dtype="int64", name="ids")
    rows = layers.Embedding(21, 4)(
        layers.StringLookup(vocabulary=TOKENS)(token)
    )
    mean = layers.GlobalAveragePooling1D()(layers.Embedding(_IDS, 2)(ids))
    numbers = keras.Input((2,), name="numbers")
    normalization = layers.Normalization()
    normalization.adapt(data()[0]["numbers"])
    hot = layers.IntegerLookup(output_mode="multi_hot")
    hot.adapt(data()[0]["ids"])
    parts = [layers.Flatten()(rows), mean, normalization(numbers), hot(ids)]
    hidden = layers.Concatenate()(parts)
    outputs = layers.Dense(1, activation="sigmoid")(hidden)
    inputs = {"token": token, "ids": ids, "numbers": numbers}
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy")
    features, labels = data()
    model.fit(
        tensors(features),
        labels,
        batch_size=16,
        epochs=2,
        shuffle=False,
        verbose=0,
    )
    return model


def data():
    """Features and labels of 64 examples."""
    rng = np.random.default_rng(6)
    features = {
        "token": rng.choice(TOKENS, (64, 1)).astype(object),
        "ids": rng.integers(0, _IDS, (64, 3)),
        "numbers": rng.normal(3.0, 2.0, (64, 2)).astype(np.float32),
    }
    return features, rng.integers(0, 2, (64, 1)).astype(np.float32)


def tensors(features):
    """Features as Keras takes them."""
    return {key: tf.constant(one.tolist()) for key, one in features.items()}


def converted(worker):
    """Rows of Keras and of tables, which all workers read together.

    Args:
      worker: `case_workers.Worker`.

    Returns:
      `(expected, found, numbers of rows)`.
    """
    before = keras_model()
    with worker.strategy.scope():
        done = tf_ext.convert.model_from_keras(before)
    tables = {table.dim: table for table in done.model.tables}
    expected, found = [], []
    for name, columns in sorted(done.columns.items()):
        embedding = before.get_layer(name)
        [column] = columns
        is_text = column.key == "token"
        first = int(is_text)  # Without that of unknown tokens.
        expected.append(embedding.get_weights()[0][first:])
        values = TOKENS if is_text else list(range(_IDS))
        table = tables[embedding.output_dim]
        found.append(tf_ext.convert.to_matrix(table, column, values))
    return expected, found, {dim: one.size() for dim, one in tables.items()}
