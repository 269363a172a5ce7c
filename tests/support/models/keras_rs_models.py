# SPDX-License-Identifier: Apache-2.0
"""A model of keras-rs's parts on tables, for every strategy.

Import it under Keras 3 only, which keras-rs needs.
"""

import keras_rs
import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext._keras import keras

_USERS, _ITEMS, _LENGTH, _DIM = 20, 30, 6, 8

LOSSES = {
    "list_mle": keras_rs.losses.ListMLELoss,
    "pairwise_hinge": keras_rs.losses.PairwiseHingeLoss,
    "pairwise_logistic": keras_rs.losses.PairwiseLogisticLoss,
    "pairwise_mean_squared": keras_rs.losses.PairwiseMeanSquaredError,
    "pairwise_soft_zero_one": keras_rs.losses.PairwiseSoftZeroOneLoss,
}
METRICS = {
    "dcg": (keras_rs.metrics.DCG, {}),
    "map": (keras_rs.metrics.MeanAveragePrecision, {}),
    "mrr": (keras_rs.metrics.MeanReciprocalRank, {}),
    "ndcg": (keras_rs.metrics.NDCG, {}),
    "precision": (keras_rs.metrics.PrecisionAtK, {"k": 2}),
    "recall": (keras_rs.metrics.RecallAtK, {"k": 2}),
}


def _dense(units, seed, **options):
    initializer = keras.initializers.GlorotUniform(seed)
    return keras.layers.Dense(units, kernel_initializer=initializer, **options)


def make_model(loss="list_mle"):
    """A model that scores a list of items for each user, compiled."""
    ids = {
        "user": keras.Input((), dtype="int64", name="user"),
        "items": keras.Input((_LENGTH,), dtype="int64", name="items"),
    }
    item = tf_ext.feature_column.category_column("items")
    columns = [
        tf_ext.feature_column.category_column("user"),
        tf_ext.feature_column.sequence_category_column(
            item, max_length=_LENGTH
        ),
    ]
    rule = tf_ext.optimizers.SparseAdagrad(0.1)
    table = tf_ext.SparseTable("ids", _DIM, rule, "normal", seed=1)
    embed = tf_ext.layers.EmbeddingFeatures(columns, table, concatenate=False)
    vectors = embed(ids)
    items = keras.ops.reshape(vectors["items"], (-1, _DIM))
    users = keras.ops.repeat(vectors["user"], _LENGTH, axis=0)
    pairs = keras.layers.Concatenate()([users, items])
    crossed = keras_rs.layers.FeatureCross(
        kernel_initializer=keras.initializers.GlorotUniform(2)
    )(pairs, pairs)
    dots = keras_rs.layers.DotInteraction()([users, items])
    joined = keras.layers.Concatenate()([crossed, dots])
    hidden = _dense(8, 3, activation="relu")(joined)
    # A bias makes no difference to a ranking: its gradient is rounding errors.
    scores = _dense(1, 4, use_bias=False)(hidden)
    model = tf_ext.Model(ids, keras.ops.reshape(scores, (-1, _LENGTH)))
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.Adam(0.01)),
        LOSSES[loss](),
        metrics=[
            metric(name=name, **options)
            for name, (metric, options) in METRICS.items()
        ],
    )
    return model


def data(samples=400, batch=80):
    """Batches of users, lists of items, and a relevance of 0 or 1 of each."""
    random = np.random.default_rng(3)
    users = random.integers(0, _USERS, samples)
    items = np.argsort(random.random((samples, _ITEMS)), axis=1)[:, :_LENGTH]
    # The first item is relevant to all, so that no list is without one.
    relevant = (users[:, np.newaxis] + items) % 4 == 0
    items[:, 0] = 100 + users
    relevant[:, 0] = True
    features = {"user": users, "items": items}
    labels = relevant.astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(batch)
