# SPDX-License-Identifier: Apache-2.0
"""`layers.ItemFrequency`: how often items occur in batches."""

import tempfile
import warnings

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import generator, mirrored_strategy

import tf_ext
from tf_ext._keras import keras
from tf_ext.layers import ItemFrequency

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ItemFrequencyTest::test_estimates_frequencies",
    ),
]


def _expected(batches, rate):
    """{id: frequency} after the batches, an occurrence at a time."""
    last, interval, step = {}, {}, 0
    for batch in batches:
        step += len(batch) > 0
        for one, count in zip(*np.unique(batch, return_counts=True)):
            apart = (step - last.get(one, 0)) / count
            for _ in range(count):
                old = interval.get(one, apart)
                interval[one] = old + rate * (apart - old)
            last[one] = step
    return {one: 1 / value for one, value in interval.items()}


class ItemFrequencyTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.rng = generator(self)

    @parameterized.parameters("int32", "int64", "string")
    def test_formula(self, dtype):
        layer = ItemFrequency(100_000, rate=0.2)
        call = tf.function(
            lambda ids: layer(ids, training=True),
            input_signature=[tf.TensorSpec([None], dtype)],
        )
        shift = 2**53 if dtype == "int64" else 0
        batches = [
            self.rng.zipf(1.3, size) % 30 + shift
            for size in [*self.rng.integers(1, 20, 40), 0]
        ]
        if dtype == "string":
            batches = [batch.astype(str) for batch in batches]
        for step, batch in enumerate(batches):
            found = call(tf.constant(batch, dtype))
            expected = _expected(batches[: step + 1], 0.2)
            self.assertAllClose(found, [expected[one] for one in batch], 1e-5)
        ids = [*expected]
        found = layer(tf.constant(ids, dtype), training=False)
        self.assertAllClose(found, [*expected.values()], 1e-5)
        unseen = tf.constant(["x"] if dtype == "string" else [99], dtype)
        self.assertAllClose(layer(unseen), [1 / 40], 1e-5)

    def test_estimates_frequencies(self):
        chances = 1 / np.arange(1, 101)
        chances /= chances.sum()
        layer = ItemFrequency(1 << 16, rate=0.01)
        count = tf.function(lambda ids: layer(ids, training=True))
        for _ in range(2000):
            count(tf.constant(self.rng.choice(100, 64, p=chances)))
        # They range from 12 occurrences in a batch to one in eight batches.
        found = layer(tf.range(100)).numpy() / 64 / chances
        self.assertAllInRange(found, 0.6, 1.6)
        self.assertAllClose(np.mean(found), 1.0, atol=0.05)

    def test_items_of_a_bucket_are_counted_together(self):
        layer = ItemFrequency(1, rate=0.5)
        for _ in range(5):
            found = layer(tf.constant([1, 2, 3]), training=True)
        self.assertAllClose(found, [3.0] * 3)

    def test_saved_with_a_model(self):
        ids = keras.Input((), dtype="int64")
        layer = ItemFrequency(1000, rate=0.5)
        model = tf_ext.Model(ids, layer(ids))
        for _ in range(3):
            model(tf.constant([4, 4, 5]), training=True)
        path = f"{tempfile.mkdtemp(dir=self.get_temp_dir())}/model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        [*_, copy] = loaded.layers
        self.assertEqual(copy.get_config(), layer.get_config())
        asked = tf.constant([4, 5, 6])
        for training in (False, True):
            found = model(asked, training=training)
            self.assertAllEqual(loaded(asked, training=training), found)

    def test_in_a_layer_of_a_functional_model(self):
        class Outer(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.frequency = ItemFrequency(1000, rate=0.5)

            def call(self, ids):
                return self.frequency(ids, training=True)

        ids = keras.Input((), dtype="int64")
        with warnings.catch_warnings():
            # Keras 3 infers shapes before there are variables, and warns if
            # that fails.
            warnings.simplefilter("error")
            model = tf_ext.Model(ids, Outer()(ids))
        for expected in ([1.0, 1.0], [1.0, 1.0]):
            self.assertAllClose(model(tf.constant([4, 5])), expected)

    def test_refused(self):
        for arguments, message in (
            ((0,), "`num_buckets` of ItemFrequency .* at least 1"),
            ((5, 0.0), "`rate` of ItemFrequency .* above 0 and at most 1"),
            ((5, 1.5), "`rate` of ItemFrequency .* above 0 and at most 1"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                ItemFrequency(*arguments)
        for ids in ([1.0, 2.0], [[1], [2]]):
            with self.assertRaisesRegex(ValueError, "`ids` .* integers or str"):
                ItemFrequency(5)(tf.constant(ids))

    def test_is_exported(self):
        """Its weights are read by ops of resources."""
        ids = keras.Input((), dtype="int64", name="item")
        column = tf_ext.feature_column.category_column("item")
        table = tf_ext.SparseTable("rows", 2)
        rows = tf_ext.layers.EmbeddingFeatures([column], table)({"item": ids})
        frequency = keras.layers.Reshape((1,))(ItemFrequency(64)(ids))
        outputs = keras.layers.Concatenate()([rows, frequency])
        model = tf_ext.Model({"item": ids}, outputs)
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        items = {"item": np.arange(8)}
        model.fit(items, np.ones([8, 3]), verbose=0)
        expected = model.predict(items, verbose=0)
        folder = self.enterContext(tempfile.TemporaryDirectory())
        path = tf_ext.serving.export(model, f"{folder}/whole")
        served = tf.saved_model.load(path).signatures["serving_default"]
        [found] = served(item=tf.range(8, dtype=tf.int64)).values()
        self.assertAllClose(found, expected)
        path = tf_ext.serving.export_split(model, f"{folder}/split")
        lookup = tf_ext.serving.Lookup(path, dense="tensorflow")
        [found] = lookup.predict(items).values()
        self.assertAllClose(found, expected)

    def test_is_called_again_outside_of_replicas(self):
        """As Keras 3 does to evaluate, while a layer is not built."""

        class Unfinished(tf_ext.Model):
            def __init__(self):
                super().__init__()
                self.frequency = ItemFrequency(100, rate=0.1)
                self.dense = keras.layers.Dense(1)
                self.unused = keras.layers.Dense(1)

            def call(self, inputs, training=None):
                found = self.frequency(inputs, training=training)
                return self.dense(found[:, tf.newaxis])

        with mirrored_strategy().scope():
            model = Unfinished()
            model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        ids = np.arange(16) % 5
        model.fit(ids, np.ones(16), batch_size=8, verbose=0)
        found = model.predict(ids, batch_size=8, verbose=0)
        loss = model.evaluate(ids, np.ones(16), batch_size=8, verbose=0)
        self.assertAllClose(loss, np.mean((found - 1) ** 2), 1e-5)


if __name__ == "__main__":
    tf.test.main()
