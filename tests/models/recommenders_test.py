# SPDX-License-Identifier: Apache-2.0
"""Tables in a model of TensorFlow Recommenders, which is for tf_keras only."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf
from models.model_building import generator, mirrored_strategy

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = pytest.mark.both_kerases(slow=True)

_USERS, _MOVIES = 40, 20


def _tower(name, optimizer):
    """A model from ids to a vector."""
    ids = {name: keras.Input((), dtype="string", name=name)}
    table = tf_ext.SparseTable(name, 8, optimizer, "normal", seed=1)
    column = tf_ext.feature_column.category_column(name)
    vectors = tf_ext.layers.EmbeddingFeatures([column], table)(ids)
    return tf_ext.Model(ids, keras.layers.Dense(8)(vectors))


class RecommendersTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        if IS_KERAS_3:
            self.skipTest("TensorFlow Recommenders refuses Keras 3")
        if importlib.util.find_spec("tensorflow_recommenders") is None:
            self.skipTest("TensorFlow Recommenders is not installed")

    def test_two_towers(self):
        import tensorflow_recommenders as tfrs

        keras.utils.set_random_seed(3)

        class Retrieval(tfrs.Model):
            def __init__(self, movies):
                super().__init__()
                self.user = _tower("user", tf_ext.optimizers.SparseAdagrad(0.5))
                self.movie = _tower("movie", "adagrad")
                candidates = movies.map(self.movie)
                self.task = tfrs.tasks.Retrieval(
                    metrics=tfrs.metrics.FactorizedTopK(candidates, ks=[2])
                )

            def compute_loss(self, inputs, training=False):
                return self.task(
                    self.user({"user": inputs["user"]}, training=training),
                    self.movie({"movie": inputs["movie"]}, training=training),
                    compute_metrics=not training,
                )

        users = np.arange(400) % _USERS
        generator(self).shuffle(users)
        ratings = tf.data.Dataset.from_tensor_slices(
            {
                "user": np.char.add("u", users.astype(str)),
                # Two users like each movie.
                "movie": np.char.add("m", (users // 2).astype(str)),
            }
        ).batch(50)
        names = np.char.add("m", np.arange(_MOVIES).astype(str))
        movies = tf.data.Dataset.from_tensor_slices({"movie": names}).batch(10)
        model = Retrieval(movies)
        model.compile(
            tf_ext.optimizers.Optimizer(keras.optimizers.Adagrad(0.5))
        )
        top_2 = "factorized_top_k/top_2_categorical_accuracy"
        untrained = model.evaluate(ratings, return_dict=True, verbose=0)
        self.assertLess(untrained[top_2], 0.4)
        model.fit(ratings, epochs=20, verbose=0)
        trained = model.evaluate(ratings, return_dict=True, verbose=0)
        self.assertGreater(trained[top_2], 0.9)
        self.assertEqual(model.user.tables[0].size(), _USERS)
        self.assertEqual(model.movie.tables[0].size(), _MOVIES)

    def test_same_model_in_one_process_and_mirrored(self):
        from models import recommenders_models as models

        histories = []
        for strategy in (tf.distribute.get_strategy(), mirrored_strategy()):
            with strategy.scope():
                model = models.make_model()
                # Every replica has the loss of a regularizer.
                regularizer = keras.regularizers.L2(0.1)
                sums = models.make_model(False, regularizer)
                means = models.make_clicks(regularizer)
            model.fit(models.data(), epochs=models.EPOCHS, verbose=0)
            metrics = models.evaluate_with_index(model, strategy)
            self.assertBetween(metrics[models.TOP_2], 0.95, 1.0)
            self.assertLess(metrics["rmse"], 0.1)
            # The last batch is of one sample, which one replica has; or of
            # many, as the package's ranking model takes no empty batches.
            data = models.data(406, batch=81)
            clicks = models.clicks_data(400, batch=81)
            histories += [
                sums.fit(data, epochs=2, verbose=0).history,
                means.fit(clicks, epochs=2, verbose=0).history,
                means.evaluate(clicks, return_dict=True, verbose=0),
            ]
        self.assertAllClose(histories[:3], histories[3:], 1e-5, 1e-6)

    def test_streaming_index(self):
        import tensorflow_recommenders as tfrs
        from models import recommenders_models as models

        model = models.make_model()
        model.fit(models.data(), epochs=models.EPOCHS, verbose=0)
        index = tfrs.layers.factorized_top_k.Streaming(model.user, k=2)
        movies = tf.data.Dataset.range(100, 100 + models.MOVIES).batch(8)
        index.index_from_dataset(
            movies.map(lambda ids: (ids, model.movie({"movie": ids})))
        )
        users = np.arange(models.USERS)
        _, found = index({"user": tf.constant(users)})
        wanted = 100 + users // 2
        hits = np.any(found.numpy() == wanted[:, np.newaxis], axis=1)
        self.assertGreaterEqual(hits.mean(), 0.95)


if __name__ == "__main__":
    tf.test.main()
