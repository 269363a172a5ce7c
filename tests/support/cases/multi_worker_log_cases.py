# SPDX-License-Identifier: Apache-2.0
"""The logs of training steps of synchronous workers."""

import numpy as np
import tensorflow as tf
from models.model_building import id_column

import tf_ext
from cases.multi_worker_step_cases import optimizer, sum_table
from tf_ext._keras import keras

_SAMPLES, _BATCH = 256, 64


class _Logs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.steps = []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append({name: float(value) for name, value in logs.items()})


class Counts(keras.metrics.Metric):
    """A metric of several results: the number of labels, and their sum."""

    def __init__(self):
        super().__init__(name="counts")
        self.total = self.add_weight(
            shape=(2,), initializer="zeros", name="total"
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = tf.cast(y_true, tf.float32)
        number = tf.cast(tf.size(labels), tf.float32)
        self.total.assign_add(tf.stack([number, tf.reduce_sum(labels)]))

    def result(self):
        return {"labels": self.total[0], "clicks": self.total[1]}


class OwnStep(tf_ext.Model):  # Keras takes its name for a scope.
    """A model whose step returns what its update has changed."""

    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "weight": tf.reduce_sum(self.layers[-1].kernel)}


def _layers(units=1, **options):
    ids = {"user": keras.Input((), dtype="int64", name="user")}
    table = sum_table()
    rows = tf_ext.layers.EmbeddingFeatures(
        [id_column("user")], table, **options
    )
    ones = keras.layers.Dense(
        units, kernel_initializer="zeros", bias_initializer="ones"
    )
    return ids, keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")(
        ones(rows(ids))
    )


def _fit(worker, make, metrics=(), thresholds=200):
    with worker.strategy.scope():
        model = make()
        model.compile(
            optimizer(0.1),
            "binary_crossentropy",
            metrics=[keras.metrics.AUC(thresholds, name="auc"), *metrics],
        )
    rng = np.random.default_rng(0)
    features = {"user": rng.integers(0, 40, _SAMPLES)}
    labels = (features["user"] % 3 == 0).astype(np.float32)[:, np.newaxis]
    data = tf.data.Dataset.from_tensor_slices((features, labels))
    logs = _Logs()
    model.fit(data.batch(_BATCH), callbacks=[logs], verbose=0)
    return {"logs": logs.steps, "variables": model.get_weights()}


def logs_of_a_step(worker):
    return _fit(worker, lambda: tf_ext.Model(*_layers()), [Counts()])


def logs_of_an_own_step(worker):
    return _fit(worker, lambda: OwnStep(*_layers()))


def logs_of_a_large_metric(worker):
    """Workers do not gather the variables of such metrics, but reduce them."""
    return _fit(worker, lambda: tf_ext.Model(*_layers()), thresholds=50_000)


def logs_without_gradients_of_rows(worker):
    return _fit(worker, lambda: tf_ext.Model(*_layers(trainable=False)))


def logs_beside_large_gradients(worker):
    """More gradients of variables than workers gather, which they reduce."""
    return _fit(worker, lambda: tf_ext.Model(*_layers(units=24_000)))


CASES = [
    "logs_of_a_step",
    "logs_of_an_own_step",
    "logs_of_a_large_metric",
    "logs_without_gradients_of_rows",
    "logs_beside_large_gradients",
]
