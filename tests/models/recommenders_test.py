"""Tables in a model of TensorFlow Recommenders, which is for tf_keras only."""

import importlib.util

import numpy as np
import tensorflow as tf
from model_building import generator

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

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

    def test_composed_optimizers(self):
        import tensorflow_recommenders as tfrs

        class Dot(tf_ext.Model, tfrs.Model):
            def __init__(self):
                super().__init__()
                self.user = _tower("user", tf_ext.optimizers.SparseSGD(0.5))
                self.movie = _tower("movie", "sgd")

            def compute_loss(self, inputs, training=False):
                user = self.user({"user": inputs["user"]}, training=training)
                movie = self.movie(inputs, training=training)
                return tf.reduce_mean(tf.reduce_sum(user * movie, 1) ** 2)

        make = tf_ext.optimizers.Optimizer
        compose = tfrs.experimental.optimizers.CompositeOptimizer
        model = Dot()
        parts = [
            lambda: model.user.trainable_variables,
            lambda: model.movie.trainable_variables,
        ]
        composed = compose(list(zip([make("sgd"), make("adam")], parts)))
        with self.assertRaisesRegex(
            ValueError,
            "must be a single optimizer.* composed of several. Wrap each of "
            "them, .*: CompositeOptimizer",
        ):
            make(composed)
        plain = [keras.optimizers.SGD(), keras.optimizers.SGD()]
        with self.assertRaisesRegex(ValueError, "Received: optimizer="):
            model.compile(compose(list(zip(plain, parts))))
        model.compile(composed)
        data = tf.data.Dataset.from_tensors(
            {"user": ["a", "b", "c"], "movie": ["x", "y", "x"]}
        )
        losses = model.fit(data, epochs=5, verbose=0).history["loss"]
        self.assertLess(losses[-1], losses[0])
        self.assertEqual([t.size() for t in model.tables], [3, 2])


if __name__ == "__main__":
    tf.test.main()
