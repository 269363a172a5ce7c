# SPDX-License-Identifier: Apache-2.0
"""Models and data of all kinds, on synchronous workers as in one process."""

import numpy as np
import tensorflow as tf
from clusters.case_workers import export
from models.model_building import id_column, number

import tf_ext
from cases.multi_worker_step_cases import DIM, counted, numbered, sum_table
from tf_ext._keras import keras

# Samples of datasets of batches of 4.
SIZES = (9, 11, 1)


def _uniform(seed):
    return keras.initializers.RandomUniform(-0.5, 0.5, seed=seed)


def _adam():
    return tf_ext.optimizers.Optimizer(keras.optimizers.Adam(0.01))


def _result(model, **more):
    return {
        "variables": [np.asarray(w) for w in model.get_weights()],
        "tables": {table.name: export(table) for table in model.tables},
        "iterations": int(number(model.optimizer.iterations)),
        **more,
    }


# Inputs of all kinds.


class Mixed(tf_ext.Model):
    """A model of a dense, a ragged and a sparse feature."""

    def __init__(self):
        super().__init__()
        columns = [id_column("user"), id_column("items"), id_column("tags")]
        rule = tf_ext.optimizers.SparseAdagrad(0.1)
        table = tf_ext.SparseTable("mixed", DIM, rule, "normal", seed=1)
        self.features = tf_ext.layers.EmbeddingFeatures(columns, table)
        self.top = keras.layers.Dense(
            1, "sigmoid", kernel_initializer=_uniform(1)
        )

    def call(self, inputs, training=None):
        return self.top(self.features(inputs, training=training))


def _mixed_data(samples):
    """Batches of 4; the last one has what is left."""
    rng = np.random.default_rng(samples)
    lengths = rng.integers(0, 4, samples)
    rows = np.repeat(np.arange(samples), 2)
    columns = np.tile([0, 2], samples)
    features = {
        "user": rng.integers(0, 9, samples),
        "items": tf.RaggedTensor.from_row_lengths(
            rng.integers(10, 19, lengths.sum()), lengths
        ),
        "tags": tf.SparseTensor(
            np.stack([rows, columns], 1),
            rng.integers(20, 29, len(rows)),
            [samples, 3],
        ),
    }
    labels = rng.integers(0, 2, (samples, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(4)


def last_batches(worker):
    """Batches that leave workers one sample, or none."""
    with worker.strategy.scope():
        model = Mixed()
        model.compile(_adam(), "binary_crossentropy")
    found = []
    for samples in SIZES:
        data = _mixed_data(samples)
        found += model.fit(data, epochs=2, verbose=0).history["loss"]
        found.append(model.evaluate(data, verbose=0))
        found.append(model.predict(data, verbose=0))
    return _result(model, found=found)


# Calls before any training.


def _mixed(worker):
    with worker.strategy.scope():
        model = Mixed()
        model.compile(_adam(), "binary_crossentropy", metrics=["AUC"])
    return model


def _features(data):
    return data.map(lambda features, _: features)


def predict_first(worker):
    model, data = _mixed(worker), _mixed_data(10)
    found = [
        model.predict(_features(data), verbose=0),
        *model.evaluate(data, verbose=0),
        *model.fit(data, verbose=0).history["loss"],
    ]
    return _result(model, found=found)


def evaluate_first(worker):
    model, data = _mixed(worker), _mixed_data(10)
    found = [
        *model.evaluate(data, verbose=0),
        model.predict(_features(data), verbose=0),
        *model.fit(data, verbose=0).history["loss"],
    ]
    return _result(model, found=found)


# Sequences.


def sequences(worker):
    """Layers on `[batch, length, dim]`, some of them after each other."""
    layers = keras.layers
    with worker.strategy.scope():
        ids = {"user": keras.Input((), dtype="int64", name="user")}
        steps = keras.Input((None, 3), name="steps")
        rows = tf_ext.layers.EmbeddingFeatures(
            [id_column("user")], sum_table()
        )(ids)
        weights = {"kernel_initializer": _uniform(1)}
        hidden = layers.Dense(4, "tanh", **weights)(steps)
        hidden = layers.MultiHeadAttention(2, 4, **weights)(hidden, hidden)
        hidden = layers.GRU(
            4,
            return_sequences=True,
            recurrent_initializer=_uniform(2),
            **weights,
        )(hidden)
        hidden = layers.Dense(4, **weights)(hidden)
        hidden = layers.GlobalAveragePooling1D()(hidden)
        outputs = layers.Dense(1, "sigmoid", **weights)(
            layers.Concatenate()([rows, hidden])
        )
        model = tf_ext.Model({**ids, "steps": steps}, outputs)
        model.compile(_adam(), "binary_crossentropy")
    rng = np.random.default_rng(0)
    features = {
        "user": rng.integers(0, 9, 18),
        "steps": rng.normal(size=(18, 5, 3)).astype(np.float32),
    }
    labels = rng.integers(0, 2, (18, 1)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(4)
    found = model.fit(data, epochs=2, verbose=0).history["loss"]
    return _result(model, found=found)


# Data whose end is found by reading.


def unknown_length(worker):
    with worker.strategy.scope():
        model = Mixed()
        model.compile(_adam(), "binary_crossentropy")
    data = _mixed_data(10).filter(lambda *_: True)
    found = model.fit(data, epochs=3, verbose=0).history["loss"]
    return _result(model, found=found)


# How data is shared out.

_Policy = tf.data.experimental.AutoShardPolicy


def _numbers(worker, policy, ids):
    """Trains on samples of numbers, in batches of 8."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    data = numbered(ids).batch(8).with_options(options)
    return counted(
        worker, lambda model: model.fit(data, verbose=0).history["loss"]
    )


def shared_by_default(worker):
    return _numbers(worker, _Policy.AUTO, range(20))


def shared_by_data(worker):
    return _numbers(worker, _Policy.DATA, range(20))


def not_shared(worker):
    """Each worker has 20 samples of its own."""
    first = 20 * worker.rank
    return _numbers(worker, _Policy.OFF, range(first, first + 20))


def shared_by_hint(worker):
    hint = tf.data.experimental.SHARD_HINT
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _Policy.HINT
    data = numbered(range(20)).shard(hint, hint).batch(8).with_options(options)
    return counted(
        worker, lambda model: model.fit(data, verbose=0).history["loss"]
    )


AS_ONE_PROCESS = [
    "last_batches",
    "predict_first",
    "evaluate_first",
    "sequences",
    "unknown_length",
]
