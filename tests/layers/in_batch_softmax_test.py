# SPDX-License-Identifier: Apache-2.0
"""`layers.InBatchSoftmax`: logits, accidental hits, gradients, replicas."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import two_tower_cases
from models.model_building import generator, mirrored_strategy

from tf_ext._keras import keras
from tf_ext.layers import InBatchSoftmax

pytestmark = pytest.mark.both_kerases(slow=True)


class InBatchSoftmaxTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.rng = generator(self)

    def vectors(self, count, dim=5):
        return self.rng.normal(size=(count, dim)).astype(np.float32)

    def test_formula(self):
        queries, candidates = self.vectors(6), self.vectors(6)
        probability = self.rng.uniform(0.1, 3.0, 6)
        layer = InBatchSoftmax(temperature=0.3)
        logits = queries @ candidates.T / 0.3
        for given, corrected in (
            (None, logits),
            (probability, logits - np.log(probability)),
            # Popular items in other units: the same softmax.
            (probability * 1e-3, logits - np.log(probability)),
        ):
            weights = np.exp(corrected)
            expected = -np.log(np.diag(weights) / weights.sum(1))
            found = tf.function(layer)(queries, candidates, None, given)
            self.assertAllClose(found, expected, 1e-5)
        zero = layer(queries, candidates, None, np.zeros(6))
        self.assertAllClose(zero, layer(queries, candidates), 1e-5)

    @parameterized.parameters("int64", "string")
    def test_accidental_hits(self, dtype):
        # As float64, 2^53 and 2^53 + 1 are one number.
        items = self.rng.integers(0, 5, 64) + 2**53
        ids = items if dtype == "int64" else np.char.add("i", items.astype(str))
        queries, candidates = self.vectors(64) * 5, self.vectors(64) * 5
        layer = InBatchSoftmax()
        ids = tf.constant(ids)
        logits, labels = layer.logits(queries, candidates, ids)
        self.assertAllEqual(labels, np.arange(64))
        found = tf.nn.softmax(logits).numpy()
        same = (items[:, None] == items) & ~np.eye(64, dtype=bool)
        self.assertGreater(same.sum(), 64)
        self.assertLess(found[same].max(), 1e-6)
        weights = np.where(same, 0, np.exp(np.float64(queries @ candidates.T)))
        expected = weights / weights.sum(1, keepdims=True)
        self.assertAllClose(found, expected, 1e-3, 1e-6)
        losses = layer(queries, candidates, ids)
        self.assertAllClose(losses, -np.log(np.diag(expected)), 1e-3, 1e-5)

    def test_gradients(self):
        queries = tf.constant(self.vectors(8), tf.float32)
        candidates = tf.constant(self.vectors(8), tf.float32)
        ids = tf.constant([1, 1, 2, 3, 4, 4, 4, 5])
        probability = tf.constant(self.rng.uniform(0.1, 3.0, 8))
        layer = InBatchSoftmax(0.5)

        def loss(queries, candidates):
            return tf.reduce_mean(layer(queries, candidates, ids, probability))

        theoretical, numerical = tf.test.compute_gradient(
            loss, [queries, candidates], delta=1e-2
        )
        self.assertAllClose(theoretical, numerical, 0, 2e-3)
        # If all others are the same item, there is nothing to learn.
        with tf.GradientTape() as tape:
            tape.watch(candidates)
            losses = layer(queries, candidates, tf.ones(8, tf.int64))
        self.assertAllEqual(losses, np.zeros(8))
        gradient = tape.gradient(losses, candidates)
        self.assertAllClose(gradient, np.zeros([8, 5]), 0, 1e-6)

    def test_half_precision_is_computed_in_full(self):
        queries = tf.cast(self.vectors(4) * 200, tf.float16)
        losses = InBatchSoftmax()(queries, queries)
        self.assertEqual(losses.dtype, tf.float32)
        self.assertAllEqual(tf.math.is_finite(losses), [True] * 4)

    def test_functional_model(self):
        inputs = {
            "user": keras.Input((4,), name="user"),
            "item": keras.Input((4,), name="item"),
            "id": keras.Input((), dtype="string", name="id"),
        }
        tower = keras.layers.Dense(3)
        layer = InBatchSoftmax(0.5)
        losses = layer(
            tower(inputs["user"]), inputs["item"][:, :3], inputs["id"]
        )
        model = keras.Model(inputs, losses)
        batch = {
            "user": tf.constant(self.vectors(5, 4)),
            "item": tf.constant(self.vectors(5, 4)),
            "id": tf.constant(list("abcab")),
        }
        expected = layer(
            tower(batch["user"]), batch["item"][:, :3], batch["id"]
        )
        self.assertAllClose(model(batch), expected)
        copy = InBatchSoftmax.from_config(layer.get_config())
        self.assertEqual(copy.get_config(), layer.get_config())

    def test_refused(self):
        for options, message in (
            ({"temperature": 0}, "`temperature` .* above 0"),
            ({"temperature": float("nan")}, "`temperature` .* above 0"),
            ({"global_negatives": 1}, "`global_negatives` .* True or False"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                InBatchSoftmax(**options)
        layer, vectors = InBatchSoftmax(), tf.ones([3, 2])
        for arguments, message in (
            ((vectors[0], vectors), r"`queries` .* floats \[batch_size, dim\]"),
            ((vectors, vectors[:, :1]), r"`candidates` .* \[batch_size, 2\]"),
            ((vectors, vectors, vectors), "`ids` .* integers or strings"),
            (
                (vectors, vectors, None, vectors),
                r"`sampling_probability` .* floats \[batch_size\]",
            ),
        ):
            with self.assertRaisesRegex(ValueError, message):
                layer.logits(*arguments)

    @pytest.mark.slow
    def test_mirrored_replicas(self):
        # Whole batches: Keras gives unequal shares the same weight.
        data = two_tower_cases.dataset(text=True, samples=60)
        alone, mirrored = tf.distribute.get_strategy(), mirrored_strategy()
        expected = two_tower_cases.trained(alone, data, text=True)
        self.assertLess(expected["losses"][-1], expected["losses"][0])
        found = two_tower_cases.trained(mirrored, data, text=True)
        self.assert_same(found, expected)
        own = two_tower_cases.trained(
            mirrored, data, text=True, global_negatives=False
        )
        # Items are counted on all replicas; there are fewer negatives.
        for one, other in zip(own["frequency"], expected["frequency"]):
            self.assertAllClose(one, other, 1e-6)
        self.assertLess(own["losses"][0], expected["losses"][0] - 0.1)

    def assert_same(self, found, expected):
        for name in ("losses", "variables", "frequency"):
            for one, other in zip(found[name], expected[name], strict=True):
                self.assertAllClose(one, other, 1e-5, 1e-5)
        for name, fields in expected["tables"].items():
            rows, others = fields["weights"], found["tables"][name]["weights"]
            self.assertCountEqual(rows, others)
            for sign, row in rows.items():
                self.assertAllClose(others[sign], row, 1e-5, 1e-5)


if __name__ == "__main__":
    tf.test.main()
