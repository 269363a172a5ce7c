# SPDX-License-Identifier: Apache-2.0
"""Models with everything that an export must support, and their batches."""

import numpy as np
import tensorflow as tf
from models import sequence_models
from models import small_models as small

import tf_ext
from tf_ext import initializers
from tf_ext._keras import keras

_column = tf_ext.feature_column.category_column
_cross = tf_ext.feature_column.crossed_column
_embed = tf_ext.layers.EmbeddingFeatures

_SIZE = 24


def functional():
    """Dense inputs: ids, texts and floats; tables that are called alike.

    Layers with statistics, with a vocabulary and with a mode of training, and
    one that reads those of ids; a dict of outputs. All that two Kerases take
    alike.
    """
    inputs = {
        **small.inputs(),
        "tag": keras.Input((None,), dtype="string", name="tag"),
        "price": keras.Input((), dtype="float32", name="price"),
        "city": keras.Input((1,), dtype="string", name="city"),
    }
    deep = [small.table("adagrad"), small.table("adam")]
    wide = tf_ext.SparseTable(
        "wide", 1, "ftrl", "uniform", statistics=["show", "click"]
    )
    price = _column("price", boundaries=[0.0, 1.0, 10.0])
    tag = [_column("tag", combiner=c, missing="") for c in ("sqrtn", "max")]
    vectors = [
        _embed(small.columns(), deep[0])(inputs),
        _embed([tag[0]], deep[1])(inputs),
        _embed(
            [tag[1], price, _cross([_column("user"), _column("tag")])],
            wide,
            cvm=True,
        )(inputs),
    ]
    vocabulary = keras.layers.StringLookup(vocabulary=["rome", "bern"])
    city = keras.layers.Embedding(4, 3)(vocabulary(inputs["city"]))
    joined = keras.layers.Concatenate()(
        [*vectors, keras.layers.Flatten()(city)]
    )
    joined = keras.layers.BatchNormalization()(joined)
    joined = tf_ext.layers.BatchNormalization()(joined)
    joined = keras.layers.Dropout(0.5)(joined)
    outputs = {
        "click": small.head()(joined),
        "score": keras.layers.Dense(2, name="score")(joined),
    }
    return tf_ext.Model(inputs, outputs, name="functional")


def functional_batch(rng):
    """A batch of `functional`, half of whose ids were never trained."""
    features, _ = small.batch(rng, _SIZE)
    features["user"][::2] += 10**6
    tags = np.array(["", "new", "red", "m\u00fcde", "a\u0000b"], object)
    features["tag"] = tags[rng.integers(0, len(tags), (_SIZE, 3))]
    price = rng.normal(0, 5, _SIZE).astype(np.float32)
    price[0] = np.nan
    features["price"] = price
    cities = np.array(["rome", "bern", "oslo"], object)
    features["city"] = cities[rng.integers(0, 3, (_SIZE, 1))]
    return {key: tf.constant(value) for key, value in features.items()}


class Subclassed(tf_ext.Model):
    """Ragged, sparse and optional features, and a table that is asked itself.

    Four initializers; a layer whose outputs are a dict of dicts.
    """

    def __init__(self):
        super().__init__(name="subclassed")
        table = tf_ext.SparseTable
        truncated = initializers.TruncatedNormal(0.1, 0.2)
        deep = table("deep", 4, "adagrad", truncated, seed=2**63 + 5)
        wide = table("wide", 1, "ftrl", initializers.Constant(0.25))
        plain = table("plain", 8, "sgd", "zeros")
        items = _column("items", combiner="mean", weights="weights")
        columns = [
            items,
            _column("user", bucket_size=50),
            _column("clicks", combiner="sum"),
            _column("absent", optional=True),
        ]
        self.embed = _embed({deep: columns, wide: columns[:2]})
        self.parts = _embed([columns[1]], plain, concatenate=False)
        self.own = table("own", 3, "sgd", "normal", seed=1)
        self.top = keras.layers.Dense(1)

    def call(self, inputs, training=False):
        embedded = self.embed(inputs, training=training)
        joined = keras.layers.concatenate(list(embedded.values()))
        return {
            "logit": self.top(joined),
            "parts": self.parts(inputs, training=training),
            "own": self.own.pull(inputs["user"], training=training),
        }


def subclassed_batch(rng):
    """A batch of `Subclassed`."""
    sizes = rng.integers(0, 4, _SIZE)
    values = rng.integers(-20, 20, sizes.sum())
    weights = rng.normal(1, 0.5, sizes.sum()).astype(np.float32)
    places = np.unique(rng.integers(0, [_SIZE, 6], (30, 2)), axis=0)
    return {
        "user": tf.constant(rng.integers(0, 60, _SIZE)),
        "items": tf.RaggedTensor.from_row_lengths(values, sizes),
        "weights": tf.RaggedTensor.from_row_lengths(weights, sizes),
        "clicks": tf.SparseTensor(
            places, rng.integers(0, 30, len(places)), [_SIZE, 6]
        ),
    }


class Sequences(tf_ext.Model):
    """Sequences of all kinds of features: padded, ragged, sparse, crossed."""

    def __init__(self):
        super().__init__(name="sequences")
        sequence = tf_ext.feature_column.sequence_category_column
        items = _column("items", weights="weights", namespace="item")
        tags = _column("tags", missing="")
        self.embed = _embed(
            [
                sequence(items, append_weight=True),
                sequence(tags, max_length=2),
                sequence("clicks", truncating="post", max_length=3),
                sequence(_cross([tags, "kinds"]), ragged=True),
                sequence(_column("absent", optional=True), max_length=2),
                _column("item"),
            ],
            tf_ext.SparseTable("item", 4, "adagrad", "normal", seed=5),
            concatenate=False,
        )
        self.sum = sequence_models.MaskedSum()

    def call(self, inputs, training=False):
        embedded = self.embed(inputs, training=training)
        return {
            "items": self.sum(embedded["items"]),
            "clicks": self.sum(embedded["clicks"]),
            "tags": self.sum(embedded["tags"]),
            "cross": tf.reduce_sum(embedded["tags_X_kinds"], 1),
            "absent": self.sum(embedded["absent"]),
            "item": embedded["item"],
        }


def sequences_batch(rng):
    """A batch of `Sequences`."""
    sizes = rng.integers(0, 4, _SIZE)
    values = rng.integers(-20, 20, sizes.sum())
    weights = rng.normal(1, 0.5, sizes.sum()).astype(np.float32)
    clicks = tf.RaggedTensor.from_row_lengths(values[::-1], sizes)
    tags = rng.choice(np.array(["", "new", "red"], object), (_SIZE, 3))
    return {
        "items": tf.RaggedTensor.from_row_lengths(values, sizes),
        "weights": tf.RaggedTensor.from_row_lengths(weights, sizes),
        "tags": tf.constant(tags),
        "kinds": tf.constant(rng.integers(0, 5, (_SIZE, 3))),
        "clicks": clicks.to_sparse(),
        "item": tf.constant(rng.integers(-20, 30, _SIZE)),
    }


def mixed():
    """A model that computes in half precision."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = small.functional(small.table("sgd"))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return model


def mixed_batch(rng):
    """A batch of `mixed`."""
    features, _ = small.batch(rng, _SIZE)
    return {key: tf.constant(value) for key, value in features.items()}


def without_tables():
    """A model of Keras alone."""
    inputs = keras.Input((3,), name="x")
    return keras.Model(inputs, keras.layers.Dense(2)(inputs), name="plain")


def trained(model, batch):
    """The model, its rows and statistics changed by some steps."""
    optimizer = tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.1))
    rng = np.random.default_rng(1)
    for _ in range(3):
        features = batch(rng)
        with tf.GradientTape() as tape:
            outputs = model(features, training=True)
            loss = tf.add_n(
                [
                    tf.reduce_mean((tf.cast(v, tf.float32) - 0.5) ** 2)
                    for v in tf.nest.flatten(outputs)
                ]
            )
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(
            [(g, v) for g, v in zip(gradients, variables) if g is not None]
        )

    def normal(shape):
        return rng.normal(0, 0.3, shape).astype(np.float32)

    for table in model.tables:
        signs, fields = table.export_rows()
        changed = {"weights": normal(fields["weights"].shape)}
        for name in table.statistics:
            changed[name] = np.abs(normal([len(signs), 1])) * 40
        table.import_rows(signs, changed)
    return model
