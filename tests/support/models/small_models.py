# SPDX-License-Identifier: Apache-2.0
"""Models that train in a moment, for tests of what a user does with them."""

import numpy as np

import tf_ext
from models.model_building import id_column
from tf_ext import optimizers
from tf_ext._keras import keras

# Of the ids.
DTYPE = "int64"


def columns():
    """One column of single ids and one of bags, as ids of one namespace."""
    return [id_column("user"), id_column("items", "mean")]


def batch(rng, size=64, ids=20):
    """Features and labels of a task that a row for each user can learn."""
    features = {
        "user": rng.integers(0, ids, size),
        "items": rng.integers(-ids, 0, (size, 2)),
    }
    labels = (features["user"] % 2).astype(np.float32)[:, np.newaxis]
    return features, labels


# Made without a rate, they follow the model's; a name alone would not.
RULES = {
    "sgd": optimizers.SparseSGD,
    "adagrad": optimizers.SparseAdagrad,
    "row_wise_adagrad": optimizers.SparseRowWiseAdagrad,
    "adam": optimizers.SparseAdam,
    "ftrl": optimizers.SparseFtrl,
    "rmsprop": optimizers.SparseRMSprop,
    "lion": optimizers.SparseLion,
}


def table(rule="sgd", **kwargs):
    """A table; tables of the same arguments start alike.

    Args:
      rule: a SparseOptimizer, or a name in RULES.
      **kwargs: of SparseTable.
    """
    rule = RULES[rule]() if isinstance(rule, str) else rule
    return tf_ext.SparseTable(
        kwargs.pop("name", "deep"), 4, rule, "normal", seed=3, **kwargs
    )


def head(seed=1):
    """Layers from embeddings to a probability; the same for one seed."""
    uniform = keras.initializers.RandomUniform
    return keras.Sequential(
        [
            keras.layers.Dense(
                4,
                "tanh",
                kernel_initializer=uniform(-0.5, 0.5, seed=seed),
            ),
            keras.layers.Dense(
                1, kernel_initializer=uniform(-0.5, 0.5, seed=seed + 1)
            ),
            # Losses want full precision under mixed_float16.
            keras.layers.Activation("sigmoid", dtype="float32"),
        ]
    )


def inputs():
    """Keras inputs of `batch`."""
    return {
        "user": keras.Input((), dtype=DTYPE, name="user"),
        "items": keras.Input((None,), dtype=DTYPE, name="items"),
    }


def functional(embeddings, cls=tf_ext.Model, **kwargs):
    """A functional model: EmbeddingFeatures of `embeddings`, and a head."""
    ids = inputs()
    layer = tf_ext.layers.EmbeddingFeatures(columns(), embeddings, **kwargs)
    return cls(ids, head()(layer(ids)))


class Subclassed(tf_ext.Model):
    """The same model with a `call`."""

    def __init__(self, embeddings):
        super().__init__()
        self.embed = tf_ext.layers.EmbeddingFeatures(columns(), embeddings)
        self.top = head()

    def call(self, inputs, training=None):
        return self.top(self.embed(inputs, training=training))


def compiled(model, dense=None, **kwargs):
    """The model, compiled with a wrapped SGD or what is given."""
    dense = dense or keras.optimizers.SGD(0.5)
    optimizer = tf_ext.optimizers.Optimizer(dense)
    model.compile(optimizer, "binary_crossentropy", **kwargs)
    return model


def model_with_point(rng, root):
    """A model that `fit` has trained, whose end is a recovery point.

    Args:
      rng: numpy.random.Generator.
      root: string, the directory of the point.
    """
    model = compiled(functional(table()))
    features, labels = batch(rng)
    model.fit(
        features,
        labels,
        batch_size=16,
        shuffle=False,
        verbose=0,
        callbacks=[tf_ext.callbacks.TableSnapshot(root)],
    )
    return model
