# SPDX-License-Identifier: Apache-2.0
"""A model of TensorFlow Recommenders on tables, for every strategy.

Import it under tf_keras only: TensorFlow Recommenders refuses Keras 3.
"""

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

import tf_ext
from tf_ext._keras import keras

USERS, MOVIES = 40, 20
TOP_2 = "factorized_top_k/top_2_categorical_accuracy"
# After which a TwoTowers finds the movie of every user.
EPOCHS = 12
_DIM = 8


def tower(key, optimizer=None):
    """A model from ids to vectors; towers of the same key start alike."""
    if optimizer is None:
        # A rate at which the few steps of the tests suffice.
        optimizer = tf_ext.optimizers.SparseAdagrad(0.25, 3e-10, epsilon=0.0)
    ids = {key: keras.Input((), dtype="int64", name=key)}
    table = tf_ext.SparseTable(key, _DIM, optimizer, "normal", seed=1)
    column = tf_ext.feature_column.category_column(key)
    vectors = tf_ext.layers.EmbeddingFeatures([column], table)(ids)
    return tf_ext.Model(ids, _dense(_DIM, seed=2)(vectors))


def _dense(units, seed, **options):
    return keras.layers.Dense(
        units,
        kernel_initializer=keras.initializers.GlorotUniform(seed=seed),
        **options,
    )


class TwoTowers(tf_ext.Model, tfrs.Model):
    """Retrieval of movies, and their ratings; it has no `call`.

    Args:
      retrieves: bool, whether the loss has the task of retrieval. Its negatives
        are those of a replica's share of a batch.
      regularizer: Keras regularizer of the ratings' weights, or None.
    """

    def __init__(self, retrieves=True, regularizer=None):
        super().__init__()
        self.user, self.movie = tower("user"), tower("movie")
        self.retrieves = retrieves
        self.retrieval = tfrs.tasks.Retrieval(remove_accidental_hits=True)
        self.cross = tfrs.layers.dcn.Cross(
            kernel_initializer=keras.initializers.GlorotUniform(seed=3)
        )
        self.dot = tfrs.layers.feature_interaction.DotInteraction()
        self.rating = _dense(1, seed=4, kernel_regularizer=regularizer)
        self.ranking = tfrs.tasks.Ranking(
            keras.losses.MeanSquaredError(reduction="sum"),
            metrics=[keras.metrics.RootMeanSquaredError("rmse")],
        )

    def compute_loss(self, inputs, training=False):
        user = self.user({"user": inputs["user"]}, training=training)
        movie = self.movie({"movie": inputs["movie"]}, training=training)
        crossed = self.cross(tf.concat([user, movie], 1))
        dots = self.dot([user, movie])
        ratings = self.rating(tf.concat([crossed, dots], 1))
        loss = self.ranking(inputs["rating"][:, tf.newaxis], ratings)
        if self.retrieves:
            loss += self.retrieval(
                user,
                movie,
                candidate_ids=inputs["movie"],
                compute_metrics=not training,
            )
        return loss


def make_model(*args):
    """A TwoTowers, trained by two optimizers."""
    model = TwoTowers(*args)
    make = tf_ext.optimizers.Optimizer
    model.compile(
        tfrs.experimental.optimizers.CompositeOptimizer(
            [
                (make(keras.optimizers.Adagrad(0.1)), model_towers(model)),
                (make(keras.optimizers.Adam(0.01)), model_head(model)),
            ]
        )
    )
    return model


def model_towers(model):
    """A function to the variables of both towers."""
    towers = (model.user, model.movie)
    return lambda: [v for one in towers for v in one.trainable_variables]


def model_head(model):
    """A function to the other variables."""
    head = (model.cross, model.rating)
    return lambda: [v for one in head for v in one.trainable_variables]


def data(samples=400, batch=80):
    """Batches of samples; a movie is liked by two users."""
    users = np.random.default_rng(7).permutation(samples) % USERS
    features = {
        "user": users,
        "movie": 100 + users // 2,
        "rating": (users % 2 * 2.0 + 1.0).astype(np.float32),
    }
    return tf.data.Dataset.from_tensor_slices(features).batch(batch)


def evaluate_with_index(model, strategy):
    """The metrics of a trained model, with an exact index of its movies."""
    movies = tf.constant(100 + np.arange(MOVIES))
    with strategy.scope():
        index = tfrs.layers.factorized_top_k.BruteForce(k=2)
        index.index(model.movie({"movie": movies}), movies)
        # It has to be a list: the setter takes anything else for none.
        model.retrieval.factorized_metrics = [
            tfrs.metrics.FactorizedTopK(index, ks=[2])
        ]
        model.compile(model.optimizer)
    return model.evaluate(data(), return_dict=True, verbose=0)


class Clicks(tf_ext.Model, tfrs.experimental.models.Ranking):
    """The ranking model of the package, of the dot products of DLRM."""

    def __init__(self, regularizer=None):
        columns = [
            tf_ext.feature_column.category_column(key)
            for key in ("user", "movie")
        ]
        table = tf_ext.SparseTable("clicks", _DIM, "sgd", "normal", seed=1)
        super().__init__(
            tf_ext.layers.EmbeddingFeatures(columns, table, concatenate=False),
            bottom_stack=_dense(_DIM, seed=5),
            top_stack=keras.Sequential(
                [
                    _dense(1, seed=6, kernel_regularizer=regularizer),
                    keras.layers.Activation("sigmoid"),
                ]
            ),
        )


def make_clicks(*args):
    """A Clicks whose table and other variables have optimizers of their own."""
    model = Clicks(*args)
    make = tf_ext.optimizers.Optimizer
    model.compile(
        tfrs.experimental.optimizers.CompositeOptimizer(
            [
                (make("sgd"), lambda: model.embedding_trainable_variables),
                (
                    make(keras.optimizers.Adagrad(0.1)),
                    lambda: model.dense_trainable_variables,
                ),
            ]
        )
    )
    return model


def clicks_data(samples=400, batch=80):
    """`data` as (features, labels) of a Clicks."""

    def split(features):
        ids = {key: features[key] for key in ("user", "movie")}
        dense = tf.cast(ids["user"], tf.float32)[:, tf.newaxis] / USERS
        labels = tf.cast(features["rating"] > 2.0, tf.float32)
        return {"dense_features": dense, "sparse_features": ids}, labels

    return data(samples, batch).map(split)
