# SPDX-License-Identifier: Apache-2.0
"""Metrics of users after each epoch of `fit`."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import metric_cases as cases
from models.model_building import mirrored_strategy

import tf_ext
from tf_ext._keras import keras
from tf_ext.callbacks import UserMetrics

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "UserMetricsTest::test_in_the_logs_of_fit1",
        "UserMetricsTest::test_under_mirrored_strategy",
    ),
]


def _batches(features, *others, size=2):
    return tf.data.Dataset.from_tensor_slices((features, *others)).batch(size)


def _samples(**features):
    scores = tf.constant([[0.1], [0.4], [0.3], [0.2], [0.2]])
    users = tf.constant([2**53, 2**53, 2**53 + 1, 2**53 + 1, 5])
    return {"score": scores, "user": users, **features}


class UserMetricsTest(tf.test.TestCase, parameterized.TestCase):
    def assert_expected(self, found, text):
        data = cases.samples(text=text)
        value, _, left_out = cases.expected_gauc(*data)
        self.assertAllClose(found["gauc"], value, 0.0, 1e-6)
        self.assertEqual(found["left_out gauc"], left_out)
        labels, scores = cases.rankings()
        for name, function, k in (
            ("recall@1", tf_ext.metrics.recall_at_k, 1),
            ("recall@10", tf_ext.metrics.recall_at_k, 10),
            ("ndcg@10", tf_ext.metrics.ndcg_at_k, 10),
        ):
            expected = function(labels, scores, k)
            self.assertAllClose(found[name], expected.value, 0, 1e-9)
            self.assertEqual(found[f"left_out {name}"], expected.left_out)

    @parameterized.parameters(False, True)
    def test_in_the_logs_of_fit(self, text):
        found = cases.user_metrics(tf.distribute.get_strategy(), text=text)
        self.assert_expected(found, text)

    def test_under_mirrored_strategy(self):
        found = {}
        for callback, _ in cases.user_callbacks():
            with mirrored_strategy().scope():
                model = cases.scaled()
            for name, result in callback.evaluate(model).items():
                found[name] = result.value
                found[f"left_out {name}"] = result.left_out
        self.assert_expected(found, text=False)

    def test_of_each_epoch_and_before_callbacks_that_follow(self):
        class Turned(cases.Scaled):
            """Its scores change their order in the second epoch."""

            def call(self, inputs):
                epoch = tf.cast(self.optimizer.iterations, tf.float32) // 2
                return super().call(inputs) * (1.5 - epoch)

        data = _batches(_samples(), [0, 1, 0, 1, 1])
        seen = []
        callbacks = [
            UserMetrics(data, user="user"),
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: seen.append(logs["val_gauc"])
            ),
            keras.callbacks.EarlyStopping(
                "val_gauc", mode="max", patience=1, verbose=0
            ),
        ]
        model = Turned()
        model.compile(
            tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.0)), "mse"
        )
        history = model.fit(
            cases.training(1), epochs=5, verbose=0, callbacks=callbacks
        ).history
        # One user's pair is in order, the other's is not, until they swap.
        self.assertEqual(seen, history["val_gauc"])
        self.assertEqual(callbacks[0].results["gauc"][1:], (2, 1))
        self.assertLen(seen, 2)

    def test_of_one_output_of_several(self):
        inputs = keras.Input([1], name="score")
        model = tf_ext.Model(
            {"score": inputs},
            {
                "click": keras.layers.Activation("linear")(inputs),
                "buy": keras.layers.Rescaling(-1.0)(inputs),
            },
        )
        labels = {"click": [0, 1, 0, 1, 1], "buy": [1, 0, 0, 1, 1]}
        weights = {"click": [1.0, 1, 1, 1, 1], "buy": [1.0, 1, 3, 3, 1]}
        data = _batches(_samples(), labels, weights)
        for output, expected in (("click", 0.5), ("buy", 1.0)):
            metrics = UserMetrics(data, user="user", output=output)
            found = metrics.evaluate(model)["gauc"]
            self.assertEqual(found, (expected, 2, 1))
        with self.assertRaisesRegex(ValueError, "`output` .*one output.*click"):
            UserMetrics(data, user="user", output="click").evaluate(
                cases.as_it_is()
            )

    def test_labels_and_weights_of_all_outputs(self):
        inputs = keras.Input([1], name="score")
        reverse = keras.layers.Rescaling(-1.0)(inputs)
        model = tf_ext.Model({"score": inputs}, [inputs, reverse])
        data = _batches(_samples(), [0, 1, 0, 1, 1], [1.0, 1, 3, 3, 1])
        # By output: the pairs of both users, with weights 2 and 6.
        for output, expected in ((0, 0.25), (1, 0.75)):
            metrics = UserMetrics(data, user="user", output=output)
            found = metrics.evaluate(model)["gauc"]
            self.assertEqual(found, (expected, 2, 1))

    def test_with_a_table_and_ragged_features(self):
        table = tf_ext.SparseTable("items", 4, initializer="normal")
        column = tf_ext.feature_column.category_column("items")

        class WithTable(tf_ext.Model):
            def __init__(self):
                super().__init__()
                self.features = tf_ext.layers.EmbeddingFeatures([column], table)

            def call(self, inputs, training=None):
                rows = self.features(inputs, training=training)
                return tf.reduce_sum(rows, 1)

        items = tf.ragged.constant([[1], [2, 3], [], [4], [5]], dtype=tf.int64)
        data = _batches(_samples(items=items), [0, 1, 0, 1, 1])
        model = WithTable()
        found = UserMetrics(data, user="user").evaluate(model)["gauc"]
        self.assertEqual(found[1:], (2, 1))
        # Validation creates no rows.
        self.assertEqual(table.size(), 0)

    def test_weights_and_labels_keep_their_precision(self):
        self.addCleanup(keras.mixed_precision.set_global_policy, "float32")
        keras.mixed_precision.set_global_policy("mixed_float16")
        # As float16 they would be infinite.
        weights = [1e6, 1e6, 3e6, 3e6, 1.0]
        data = _batches(_samples(), [0, 1, 0, 1, 1], weights)
        model = cases.as_it_is()
        found = UserMetrics(data, user="user").evaluate(model)["gauc"]
        self.assertAllClose(found.value, 0.25)

    @parameterized.parameters(
        ("dataset", {"dataset": [1]}, "a tf.data.Dataset"),
        ("user", {}, "given unless recall_at or ndcg_at is"),
        ("user", {"user": "u", "recall_at": [1]}, "given unless"),
        ("recall_at", {"recall_at": 5}, "a list of integers"),
        ("recall_at", {"recall_at": [0]}, "at least 1"),
        ("ndcg_at", {"ndcg_at": [1.5]}, "an integer"),
    )
    def test_refuses_arguments(self, name, given, text):
        given = {"dataset": _batches(_samples(), [0, 1, 0, 1, 1]), **given}
        with self.assertRaisesRegex(
            ValueError, f"`{name}` of UserMetrics must be .*{text}"
        ):
            UserMetrics(**given)

    @parameterized.parameters(
        ("user", {"user": "nobody"}, ([0, 1, 0, 1, 1],), "'score', 'user'"),
        ("user", {"user": "score"}, ([0, 1, 0, 1, 1],), "integers or strings"),
        ("labels", {"user": "user"}, (np.ones([5, 2]),), r"\[batch_size\]"),
        ("dataset", {"user": "user"}, (), "features, labels"),
        ("dataset", {"user": "user"}, ([0] * 5,) * 3, "features, labels"),
        ("labels", {"recall_at": [1]}, ([0.0] * 5,), "integers"),
        ("labels", {"recall_at": [1]}, ([3] * 5,), "index of one of 1 items"),
    )
    def test_refuses_data(self, name, given, others, text):
        data = _batches(_samples(), *others)
        with self.assertRaisesRegex(
            ValueError, f"`{name}` of UserMetrics must be .*{text}"
        ):
            UserMetrics(data, **given).evaluate(cases.as_it_is())

    def test_users_are_one_a_sample(self):
        labels = [0, 1, 0, 1, 1]
        users = _samples()["user"][:, tf.newaxis]
        found = [
            UserMetrics(_batches(_samples(**of), labels), user="user").evaluate(
                cases.as_it_is()
            )["gauc"]
            for of in ({}, {"user": users})
        ]
        self.assertEqual(*found)
        two = _samples(user=tf.tile(users, [1, 2]))
        with self.assertRaisesRegex(
            ValueError,
            r"`user` of UserMetrics must be \[batch_size\] or .*, 2\]",
        ):
            UserMetrics(_batches(two, labels), user="user").evaluate(
                cases.as_it_is()
            )

    def test_refuses_data_without_an_end(self):
        data = _batches(_samples(), [0, 1, 0, 1, 1]).repeat()
        with self.assertRaisesRegex(ValueError, "`dataset` .* must be finite"):
            UserMetrics(data, user="user")

    def test_refuses_scores_that_are_nan(self):
        features = {"score": tf.constant([[1.0, np.nan], [1.0, 2.0]])}
        data = _batches(features, [0, 1])
        with self.assertRaisesRegex(ValueError, "`scores` .*not NaN"):
            UserMetrics(data, ndcg_at=[1]).evaluate(cases.as_it_is([2]))

    def test_infinite_scores_of_items(self):
        # Alone at the top, one of two there, and excluded with all others.
        scores = [[np.inf, 1, 2], [1, np.inf, np.inf], [-np.inf] * 3]
        data = _batches({"score": tf.constant(scores)}, [0, 1, 2])
        metrics = UserMetrics(data, recall_at=[1], ndcg_at=[1])
        found = metrics.evaluate(cases.as_it_is([3]))
        for name in ("recall@1", "ndcg@1"):
            self.assertEqual(found[name], ((1 + 0.5 + 0) / 3, 3, 0))


if __name__ == "__main__":
    tf.test.main()
