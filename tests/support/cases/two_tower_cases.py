# SPDX-License-Identifier: Apache-2.0
"""Two towers with a softmax over the batch, by any number of replicas."""

import numpy as np
import tensorflow as tf
from clusters.case_workers import export
from models.model_building import id_column

import tf_ext
from tf_ext._keras import keras

_BATCH = 12
# The last batch leaves one sample to a worker, and none to others.
_SAMPLES = 8 * _BATCH + 1
_DIM = 4


class TwoTowers(tf_ext.Model):
    """Users and items on tables; the outputs are the losses of a batch."""

    def __init__(self, text=False, global_negatives=True):
        super().__init__()
        rule = tf_ext.optimizers.SparseAdagrad(0.1)

        def tower(key, column, seed):
            table = tf_ext.SparseTable(key, _DIM, rule, "normal", seed=seed)
            return tf_ext.layers.EmbeddingFeatures([column], table)

        column = tf_ext.feature_column.category_column
        self.user = tower("user", id_column("user"), 1)
        item = column("item") if text else id_column("item")
        self.item = tower("item", item, 2)
        self.dense = keras.layers.Dense(
            _DIM,
            kernel_initializer=keras.initializers.RandomUniform(-1, 1, seed=3),
        )
        self.frequency = tf_ext.layers.ItemFrequency(50, rate=0.1)
        self.softmax = tf_ext.layers.InBatchSoftmax(
            0.5, global_negatives=global_negatives
        )

    def call(self, inputs, training=None):
        return self.softmax(
            self.dense(self.user(inputs, training=training)),
            self.item(inputs, training=training),
            inputs["item"],
            self.frequency(inputs["item"], training=training),
        )


def dataset(text=False, samples=_SAMPLES):
    """Batches in which items occur several times."""
    rng = np.random.default_rng(3)
    items = rng.zipf(1.5, samples) % 20
    features = {
        "user": rng.integers(0, 10, samples),
        "item": np.char.add("i", items.astype(str)) if text else items + 2**53,
    }
    labels = np.zeros(samples, np.float32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(_BATCH)


def trained(strategy, data=None, text=False, **options):
    """What training comes to: losses, rows, variables."""
    with strategy.scope():
        model = TwoTowers(text, **options)
        model.compile(
            tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.1)),
            loss=lambda _, losses: losses,
        )
    data = dataset(text) if data is None else data
    history = model.fit(data, epochs=2, verbose=0, shuffle=False)
    losses = history.history["loss"]
    return {
        "losses": [*losses, model.evaluate(data, verbose=0)],
        "tables": {table.name: export(table) for table in model.tables},
        "variables": [np.asarray(w) for w in model.dense.get_weights()],
        "frequency": [np.asarray(w) for w in model.frequency.get_weights()],
    }


def global_negatives(worker):
    return trained(worker.strategy)


def global_negatives_of_strings(worker):
    return trained(worker.strategy, text=True)


def own_negatives(worker):
    return trained(worker.strategy, global_negatives=False)
