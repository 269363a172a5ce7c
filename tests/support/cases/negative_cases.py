# SPDX-License-Identifier: Apache-2.0
"""Factors of users and items, trained with negatives that are drawn."""

import numpy as np
import tensorflow as tf
from clusters.case_workers import export
from models.model_building import id_column, number

import tf_ext
from tf_ext._keras import keras

ITEMS, BATCH = 40, 16
# The last batch has one sample.
SAMPLES = 6 * BATCH + 1
_USERS, _DIM, _NEGATIVES = 12, 4, 8


def _loss(kind):
    layers = tf_ext.layers
    return {
        "bpr": layers.BPR,
        "cosine": lambda: layers.CosineContrastive(0.2, 5.0),
        "softmax": lambda: layers.SampledSoftmax(0.5),
    }[kind]()


@keras.utils.register_keras_serializable(package="tf_ext_tests")
class Factors(tf_ext.Model):
    """Users' and items' rows; the outputs are the losses of samples."""

    def __init__(self, kind, shared, **kwargs):
        super().__init__(**kwargs)
        self.kind, self.shared = kind, shared

        def rows(key, seed):
            rule = tf_ext.optimizers.SparseAdam(0.1)
            table = tf_ext.SparseTable(key, _DIM, rule, "normal", seed=seed)
            return tf_ext.layers.EmbeddingFeatures([id_column(key)], table)

        self.user, self.item = rows("user", 1), rows("item", 2)
        self.sampler = tf_ext.layers.NegativeSampler(
            ITEMS, _NEGATIVES, shared, 0.5
        )
        self.loss_layer = _loss(kind)

    def call(self, inputs, training=None):
        item = inputs["item"]
        ids, log_counts, mask = self.sampler(
            item, inputs["seen"], training=training
        )
        size = tf.shape(item)[0]
        every = tf.concat([item, tf.reshape(ids, [-1])], 0)
        rows = self.item({"item": every}, training=training)
        negatives = rows[size:]
        if not self.shared:
            negatives = tf.reshape(negatives, [size, _NEGATIVES, _DIM])
        corrections = [log_counts] if self.kind == "softmax" else []
        return self.loss_layer(
            self.user({"user": inputs["user"]}, training=training),
            rows[:size],
            negatives,
            *corrections,
            negatives_mask=mask,
        )

    def get_config(self):
        config = super().get_config()
        return {**config, "kind": self.kind, "shared": self.shared}


def dataset(samples=SAMPLES):
    """Batches of users, their items, and others that they have chosen."""
    rng = np.random.default_rng(4)
    user = rng.integers(0, _USERS, samples)
    features = {
        "user": user,
        "item": (user * 3 + rng.integers(0, 3, samples)) % ITEMS,
        "seen": (user[:, np.newaxis] * 3 + np.arange(3)) % ITEMS,
    }
    slices = tf.data.Dataset.from_tensor_slices
    return slices((features, np.zeros(samples, np.float32))).batch(BATCH)


def compiled(strategy, kind, shared):
    """A model, made under a strategy."""
    with strategy.scope():
        model = Factors(kind, shared)
        model.sampler.index(range(ITEMS), np.arange(ITEMS) + 1)
        model.compile(
            tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.1)),
            loss=lambda _, losses: losses,
        )
    return model


def trained(strategy, kind="softmax", shared=True, epochs=4):
    """What `fit` comes to: losses, steps that were drawn for, rows."""
    model = compiled(strategy, kind, shared)
    history = model.fit(dataset(), epochs=epochs, verbose=0, shuffle=False)
    return {
        "losses": history.history["loss"],
        "evaluated": model.evaluate(dataset(), verbose=0),
        "steps": number(model.sampler.weights[0]),
        "tables": {table.name: export(table) for table in model.tables},
    }


def draws(strategy, sampler=None):
    """The shared negatives of three steps in this worker."""
    with strategy.scope():
        sampler = sampler or tf_ext.layers.NegativeSampler(
            1000, 20, shared=True
        )
    sampler.index(range(1000))

    @tf.function
    def draw():
        positives = tf.zeros([1], tf.int64)
        return strategy.run(lambda: sampler(positives, training=True)[0])

    local = strategy.experimental_local_results
    return [[one.numpy() for one in local(draw())] for _ in range(3)]


def draws_of_worker(worker):
    return draws(worker.strategy)


def trained_by_workers(worker):
    return trained(worker.strategy)


def trained_with_own_negatives(worker):
    return trained(worker.strategy, "bpr", shared=False)
