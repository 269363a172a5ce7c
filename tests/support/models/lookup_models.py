# SPDX-License-Identifier: Apache-2.0
"""A model with columns of all kinds, for what finds rows without it."""

import numpy as np
import tensorflow as tf

import tf_ext
from models import sequence_models
from tf_ext import feature_column, initializers
from tf_ext._keras import keras

_category = feature_column.category_column
_cross = feature_column.crossed_column
_sequence = feature_column.sequence_category_column
_TAGS = np.array(["", "new", "red", "m\u00fcde", "a\0", "\0"], object)


def _pooled():
    tags = _category("tags", combiner="sqrtn", weights="heat", missing="")
    age = _category("age", boundaries=[18.0, 30.5, 65.0])
    hour = feature_column.time_column(
        "time", "hour_of_week", utc_offset_minutes=-90, missing=0
    )
    since = feature_column.age_column(
        "seen", "time", [60, 3600], missing=0, combiner="mean"
    )
    return {
        "deep": [
            _category("user"),
            age,
            tags,
            _category("item", combiner="max", bucket_size=7, missing=-1),
            _category("raw", hashing="identity"),
            hour,
            since,
            _category("absent", optional=True),
        ],
        "wide": [
            _category("user", namespace="u", bucket_size=5),
            _cross(["tags", age], combiner="mean"),
            _cross([tags, _category("item", bucket_size=5)], bucket_size=11),
            _cross(["user", hour, since], combiner="sqrtn"),
            _category("tags", combiner="mean", weights="heat", namespace="t"),
        ],
        "shared": [_category("item"), _category("half", boundaries=[2.0])],
    }


def _sequences():
    items = _category("tags", weights="heat", missing="")
    past = _category("past", missing=0)
    return [
        _sequence(items, append_weight=True, name="appended"),
        _sequence(items, max_length=2, name="weighted"),
        _sequence(past, max_length=3),
        _sequence(past, max_length=2, truncating="post", name="first"),
        _sequence("item", name="items"),
        _sequence(_cross(["past", "item_of_past"]), ragged=True),
        _sequence(_category("absent", optional=True), max_length=2),
        _category("user"),
    ]


class Everything(tf_ext.Model):
    """Columns of all kinds, on tables with all kinds of unknown rows."""

    def __init__(self):
        super().__init__(name="everything")
        pooled = _pooled()
        table = tf_ext.SparseTable
        tables = {
            "deep": table("deep", 4, "adagrad", "normal", seed=3),
            "wide": table("wide", 1, "ftrl", initializers.Constant(0.25)),
            "shared": table(
                *("shared", 3, "adam", "normal"),
                unknown="shared",
                unknown_buckets=5,
                seed=4,
            ),
        }
        columns = {tables[name]: its for name, its in pooled.items()}
        # A small type, and zeros for what is not there.
        half = table("item", 8, "sgd", "normal", dtype="float16", seed=5)
        self.embed = tf_ext.layers.EmbeddingFeatures(columns)
        self.parts = tf_ext.layers.EmbeddingFeatures(
            _sequences(), half, concatenate=False
        )
        self.sum = sequence_models.MaskedSum()
        self.norm = keras.layers.BatchNormalization()
        self.head = keras.layers.Dense(2)

    def call(self, inputs, training=None):
        embedded = self.embed(inputs, training=training)
        parts = self.parts(inputs, training=training)
        sums = [
            tf.reduce_sum(one, 1)
            if isinstance(one, tf.RaggedTensor)
            else self.sum(one)
            for name, one in parts.items()
            if name != "user"
        ]
        flat = [*embedded.values(), *sums, parts["user"], inputs["price-EUR"]]
        joined = self.norm(tf.concat(flat, 1))
        return {"score": self.head(joined), "flat": joined}


def batch(rng, size=24, ids=9):
    """A batch of `Everything`, of lists and arrays that `Lookup` takes."""
    counts = rng.integers(0, 4, size)
    time = rng.integers(-(10**6), 10**10, size)
    time[::5] = 0
    seen = [
        (t - rng.integers(-10, 5000, n)).tolist() for t, n in zip(time, counts)
    ]
    seen = [[0, *one[1:]] if one else one for one in seen]
    age = rng.uniform(0, 90, size).astype(np.float32)
    age[::7] = np.nan
    return {
        "user": np.array([f"u{n}" for n in rng.integers(0, ids, size)], "U9"),
        "age": age,
        "tags": [rng.choice(_TAGS, n).tolist() for n in counts],
        "heat": [
            rng.uniform(0.5, 2, n).astype(np.float32).tolist() for n in counts
        ],
        "item": rng.integers(-1, ids, [size, 2]),
        "raw": rng.integers(0, ids, size) * (2**60 + 1) - 2**62,
        "time": time,
        "seen": seen,
        "half": rng.uniform(0, 4, [size, 1]).astype(np.float16),
        "past": rng.integers(0, ids, [size, 4]),
        "item_of_past": rng.integers(0, 3, [size, 4]),
        "price-EUR": rng.normal(size=[size, 2]).astype(np.float32),
    }


_TYPES = {"tags": tf.string, "heat": tf.float32, "seen": tf.int64}


def tensors(features):
    """A batch as the model takes it."""
    return {
        name: tf.ragged.constant(one, _TYPES[name], ragged_rank=1)
        if name in _TYPES
        else tf.constant(one)
        for name, one in features.items()
    }


def trained(rng, steps=3):
    """`Everything`, whose rows and variables have been trained."""
    model = Everything()
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    train(model, rng, steps)
    return model


def train(model, rng, steps=1):
    """Trains a model for some steps, on new ids."""
    optimizer = model.optimizer
    for _ in range(steps):
        features = tensors(batch(rng))
        with tf.GradientTape() as tape:
            outputs = model(features, training=True)
            loss = sum(
                tf.reduce_mean((one - 1) ** 2) for one in outputs.values()
            )
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
