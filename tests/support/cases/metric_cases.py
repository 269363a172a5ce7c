# SPDX-License-Identifier: Apache-2.0
"""Metrics of rates and of users over many rows, on any strategy."""

import itertools

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext._keras import keras

ROWS = 100_000
BINS = 15


def rows(size=ROWS):
    """`(labels, predictions, weights)`, float32 `[size]`.

    Predictions also are 0, 1, and on the edges of bins.
    """
    rng = np.random.default_rng(7)
    predictions = rng.beta(0.5, 3.0, size)
    predictions[::97] = np.linspace(0, 1, BINS + 1)[
        rng.integers(0, BINS + 1, len(predictions[::97]))
    ]
    predictions = predictions.astype(np.float32)
    labels = rng.random(size) < 0.1 + 0.7 * predictions
    weights = rng.integers(0, 4, size) * rng.random(size)
    return labels.astype(np.float32), predictions, weights.astype(np.float32)


def expected(labels, predictions, weights):
    """The metrics by their definitions, in float64."""
    labels, predictions, weights = (
        np.asarray(values, np.float64)
        for values in (labels, predictions, weights)
    )
    ctr = np.average(labels, weights=weights)
    pctr = np.average(predictions, weights=weights)
    clipped = np.clip(predictions, 1e-7, 1 - 1e-7)
    losses = [
        np.average(
            -np.where(labels == 1, np.log(rates), np.log(1 - rates)),
            weights=weights,
        )
        for rates in (clipped, ctr)
    ]
    edges = np.linspace(0, 1, BINS + 1)
    error = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (predictions > low) & (predictions <= high)
        if low == 0:
            inside |= predictions == 0
        total = weights[inside].sum()
        if total:
            rate = np.average(labels[inside], weights=weights[inside])
            mean = np.average(predictions[inside], weights=weights[inside])
            error += total / weights.sum() * abs(rate - mean)
    return {
        "ctr": ctr,
        "pctr": pctr,
        "copc": ctr / pctr,
        "calibration_error": error,
        "normalized_entropy": losses[0] / losses[1],
    }


def metrics(**options):
    """New metrics, one of each kind."""
    return [
        tf_ext.metrics.CTR(),
        tf_ext.metrics.PCTR(**options),
        tf_ext.metrics.COPC(**options),
        tf_ext.metrics.CalibrationError(BINS, **options),
        tf_ext.metrics.NormalizedEntropy(**options),
    ]


def as_it_is(shape=(1,)):
    """A model whose outputs are its feature `score`."""
    inputs = keras.Input(shape, name="score")
    outputs = keras.layers.Activation("linear")(inputs)
    return tf_ext.Model({"score": inputs}, outputs)


def evaluated(strategy, batch_size, part=None):
    """The metrics of all rows, of `evaluate` under a strategy.

    With a `part`, indices, this worker reads only these.
    """
    own = slice(None) if part is None else part
    labels, predictions, weights = (values[own] for values in rows())
    data = tf.data.Dataset.from_tensor_slices(
        ({"score": predictions[:, np.newaxis]}, labels, weights)
    ).batch(batch_size)
    if part is not None:
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.OFF
        )
        data = data.with_options(options)
    with strategy.scope():
        model = as_it_is()
        model.compile(
            tf_ext.optimizers.Optimizer("sgd"),
            "mse",
            weighted_metrics=metrics(),
        )
    return model.evaluate(data, verbose=0, return_dict=True)


# Users.

NUM_USERS = 10_000
_ITEMS = 40


def samples(size=ROWS, text=False):
    """`(users, labels, scores, weights)`: ids above 2^53, many ties."""
    rng = np.random.default_rng(11)
    # Neighbours that are one number as float64.
    users = 2**62 + (NUM_USERS * rng.random(size) ** 2).astype(np.int64)
    labels = (rng.random(size) < 0.3).astype(np.int64)
    scores = np.round(rng.normal(size=size) + 0.4 * labels, 1)
    weights = rng.integers(0, 3, size).astype(np.float32)
    if text:
        users = np.array([b"user %d" % user for user in users], object)
    return users, labels, scores.astype(np.float32), weights


def rankings(size=500):
    """`(labels [size, 5], scores [size, items])`: few distinct scores."""
    rng = np.random.default_rng(13)
    scores = rng.integers(0, 8, (size, _ITEMS)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.1] = -np.inf
    labels = rng.integers(0, _ITEMS, (size, 5))
    labels[rng.random(labels.shape) < 0.4] = -1
    return labels, scores


def user_callbacks(text=False):
    """`[(UserMetrics, width of a model's outputs)]`, of all rows."""
    users, labels, scores, weights = samples(text=text)
    data = tf.data.Dataset.from_tensor_slices(
        ({"score": scores[:, np.newaxis], "user": users}, labels, weights)
    )
    # Each pass has another order.
    data = data.shuffle(10_000, seed=1).batch(3_001)
    gauc = tf_ext.callbacks.UserMetrics(data, user="user")
    items, all_scores = rankings()
    data = tf.data.Dataset.from_tensor_slices(({"score": all_scores}, items))
    ranking = tf_ext.callbacks.UserMetrics(
        data.batch(77), recall_at=[1, 10], ndcg_at=[10], prefix="test_"
    )
    return [(gauc, 1), (ranking, _ITEMS)]


def user_metrics(strategy, text=False):
    """The values of `UserMetrics` in the history of `fit` under a strategy."""
    logs = {}
    for callback, width in user_callbacks(text):
        with strategy.scope():
            model = scaled()
        history = model.fit(
            training(width), verbose=0, callbacks=[callback]
        ).history
        for name, result in callback.results.items():
            logs[name] = history[callback.prefix + name][0]
            logs[f"left_out {name}"] = result.left_out
    return logs


class Scaled(tf_ext.Model):
    """Its outputs are the feature `score` times a weight that stays 1."""

    def __init__(self):
        super().__init__()
        self.scale = keras.layers.Dense(
            1, use_bias=False, kernel_initializer="ones"
        )

    def call(self, inputs):
        scores = inputs["score"]
        return scores * self.scale(tf.ones_like(scores[:, :1]))


def scaled():
    """A model that `fit` does not change."""
    model = Scaled()
    model.compile(tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.0)), "mse")
    return model


def training(width):
    """Two batches for a model of `scaled`."""
    return tf.data.Dataset.from_tensor_slices(
        ({"score": tf.ones([6, width])}, tf.ones([6, width]))
    ).batch(4)


def auc(labels, scores, weights):
    """The weighted AUC over all pairs; None without one."""
    mine, others = labels == 1, labels == 0
    pairs = weights[mine][:, np.newaxis] * weights[others]
    if not pairs.sum():
        return None
    difference = scores[mine][:, np.newaxis] - scores[others]
    wins = (difference > 0) + 0.5 * (difference == 0)
    return (pairs * wins).sum() / pairs.sum()


def expected_gauc(users, labels, scores, weights):
    """`(gauc, users, left out)`, user by user."""
    values, totals, left_out = [], [], 0
    by_user = {}
    for index, user in enumerate(users.tolist()):
        if weights[index]:
            by_user.setdefault(user, []).append(index)
    for indices in by_user.values():
        own = [v[indices].astype(np.float64) for v in (labels, scores, weights)]
        value = auc(*own)
        if value is None:
            left_out += 1
        else:
            values.append(value)
            totals.append(own[2].sum())
    return np.average(values, weights=totals), len(values), left_out


def expected_rankings(labels, scores, k, orders=400):
    """`(recall, ndcg)`: means over random orders of tied items."""
    rng = np.random.default_rng(3)
    recalls, ndcgs = [], []
    for own, row in zip(labels, scores):
        own = {item for item in own.tolist() if item >= 0}
        if not own:
            continue
        found, gained = 0.0, 0.0
        for _ in range(orders):
            order = np.lexsort((rng.random(len(row)), -row))[:k]
            hits = [
                item in own and row[item] > -np.inf for item in order.tolist()
            ]
            found += sum(hits)
            gained += sum(h / np.log2(i + 2) for i, h in enumerate(hits))
        best = sum(1 / np.log2(i + 2) for i in range(min(k, len(own))))
        recalls.append(found / orders / len(own))
        ndcgs.append(gained / orders / best)
    return np.mean(recalls), np.mean(ndcgs)


def left_out(labels):
    """How many users have no item."""
    return int((labels < 0).all(1).sum())
