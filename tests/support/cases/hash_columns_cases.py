# SPDX-License-Identifier: Apache-2.0
"""Columns of all kinds, a dataset of their features, and that hashed."""

import functools

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext import feature_column

_SAMPLES, _BATCH = 23, 8
category = feature_column.category_column
sequence = feature_column.sequence_category_column

USER = category("user")
WEIGHTED = category("tags", weights="tag_weights", combiner="mean")
POOLED = [
    USER,
    category("user", bucket_size=5, namespace="u"),
    category("age", boundaries=[10, 20.5, 60]),
    category("number", missing=-1, combiner="max"),
    category("pair", hashing="identity"),
    category("sparse", combiner="sqrtn"),
    category("rated", weights="rating"),
    category("absent", optional=True),
    WEIGHTED,
    feature_column.crossed_column([USER, WEIGHTED, "pair"], bucket_size=99),
    feature_column.crossed_column(["user", "rated"]),
]
SEQUENCES = [
    sequence("tags"),
    sequence(category("tags", missing="3"), max_length=2, name="last"),
    sequence(category("sparse"), truncating="post", name="first"),
    sequence("pair"),
    sequence(category("padded", missing=0), name="padded"),
    sequence(category("padded", missing=0), max_length=2, name="cut"),
    sequence(WEIGHTED, ragged=True, append_weight=True, name="ragged"),
    sequence(category("absent", optional=True), name="absent sequence"),
]


def features_of_all():
    rng = np.random.default_rng(0)

    def ragged():
        lengths = rng.integers(0, 4, _SAMPLES)
        values = rng.integers(0, 30, lengths.sum()).astype(str)
        return tf.RaggedTensor.from_row_lengths(values, lengths)

    ages = rng.uniform(0, 80, _SAMPLES).astype(np.float32)
    ages[3] = np.nan
    tags = ragged()
    weights = rng.uniform(size=len(tags.flat_values)).astype(np.float32)
    padded = rng.integers(1, 9, [_SAMPLES, 3])
    padded[np.arange(3) >= rng.integers(0, 4, _SAMPLES)[:, np.newaxis]] = 0
    return {
        "user": tf.constant(rng.integers(0, 9, _SAMPLES).astype(str)),
        "age": tf.constant(ages),
        "number": tf.constant(rng.integers(-1, 3, _SAMPLES)),
        "pair": tf.constant(rng.integers(0, 9, [_SAMPLES, 2]), tf.int32),
        "sparse": ragged().to_sparse(),
        "rated": tf.constant(rng.integers(0, 9, [_SAMPLES, 1])),
        "rating": tf.constant(rng.uniform(size=[_SAMPLES, 1]), tf.float32),
        "tags": tags,
        "tag_weights": tags.with_values(tf.constant(weights)),
        "padded": tf.constant(padded),
        "price": tf.constant(rng.normal(size=[_SAMPLES, 1]), tf.float32),
    }


def data_of_all():
    """Batches of 8, 8, 7 and 0 samples."""
    labels = tf.cast(tf.range(_SAMPLES) % 2, tf.float32)[:, tf.newaxis]
    data = tf.data.Dataset.from_tensor_slices((features_of_all(), labels))
    data = data.batch(_BATCH)
    return data.concatenate(data.take(1).map(_without_samples))


def _without_samples(*batch):
    def cut(value):
        if isinstance(value, tf.SparseTensor):
            size = [0, value.dense_shape[1]]
            return tf.sparse.slice(value, [0, 0], size)
        return value[:0]

    return tf.nest.map_structure(cut, batch)


@functools.cache
def all_hashed():
    """All columns, hashed; tests share it, because it takes long to make."""
    return tf_ext.data.hash_columns(data_of_all(), [*POOLED, *SEQUENCES])


# One of each structure of signs, weights and masks.
STRUCTURES = [
    *(USER, WEIGHTED, category("sparse")),
    *(category("rated", weights="rating"), SEQUENCES[0], SEQUENCES[1]),
]
