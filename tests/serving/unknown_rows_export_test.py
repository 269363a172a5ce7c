# SPDX-License-Identifier: Apache-2.0
"""Exports of sequences and weighted bags of ids that have no row."""

import numpy as np
import pytest
import split_lookups
import tensorflow as tf
from absl.testing import parameterized
from models import sequence_models as sequences
from saving_util import TestCase

import tf_ext
from tf_ext import serving
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "BagsTest::test_weighted_columns0",
    ),
]

_SHARED = {
    "unknown": "shared",
    "unknown_buckets": 3,
    "admission": tf_ext.admission.Count(3),
}
_OPTIONS = (
    _SHARED,
    {"unknown": "zeros", "admission": tf_ext.admission.Count(3)},
    {**_SHARED, "dtype": "float16", "l2": 0.1},
    {"unknown": [0.5, -0.5, 1.0, 2.0]},
    {},
)


def _tolerance(options):
    # Rows that shrink are read before they are rounded, and exported after.
    return 1e-3 if "dtype" in options else 1e-5


def _served(folder, features):
    loaded = tf.saved_model.load(folder).signatures["serving_default"]
    [found] = loaded(**features).values()
    return found


class SequencesTest(TestCase):
    @parameterized.parameters(*_OPTIONS)
    def test_of_an_attention_model(self, **options):
        tolerance = _tolerance(options)
        model = sequences.model(**options)
        data = sequences.data(np.random.default_rng(3), 45)
        model.fit(*data, batch_size=16, verbose=0)
        features, _ = sequences.data(np.random.default_rng(4), 20, ids=60)
        expected = model.predict(features, verbose=0)
        folder = serving.export(model, self.path("served"))
        inputs = {key: tf.constant(value) for key, value in features.items()}
        found = _served(folder, inputs)
        self.assertAllClose(found, expected, tolerance, tolerance)
        [table] = model.tables
        version = serving.export_split(model, self.path("split"))
        history = features["history"]
        rows = table.pull(history.ravel())
        found = _served(
            f"{version}/dense",
            {
                "item__history": tf.reshape(rows, [*history.shape, -1]),
                "item__history__mask": tf.constant(history != 0),
                "item__item": table.pull(features["item"]),
            },
        )
        self.assertAllClose(found, expected, tolerance, tolerance)


class BagsTest(TestCase):
    @parameterized.product(options=_OPTIONS[:4], combiner=["mean", "sqrtn"])
    def test_weighted_columns(self, options, combiner):
        tolerance = _tolerance(options)
        column = tf_ext.feature_column.category_column
        columns = [
            column("tags", combiner=combiner, weights="weights"),
            column("ids", hashing="identity", combiner="max"),
        ]
        inputs = {
            "tags": keras.Input((3,), dtype="string", name="tags"),
            "weights": keras.Input((3,), name="weights"),
            "ids": keras.Input((2,), dtype="int64", name="ids"),
        }
        table = tf_ext.SparseTable("bags", 4, "adagrad", "normal", **options)
        embedded = tf_ext.layers.EmbeddingFeatures(columns, table)(inputs)
        model = tf_ext.Model(inputs, keras.layers.Dense(1)(embedded))
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        model.fit(self._features(30), np.ones([30, 1]), batch_size=8, verbose=0)
        features = self._features(25, ids=70)
        expected = model.predict(features, verbose=0)
        folder = serving.export(model, self.path("served"))
        found = _served(folder, features)
        self.assertAllClose(found, expected, tolerance, tolerance)
        version = serving.export_split(model, self.path("split"))
        batch = {key: value.numpy().tolist() for key, value in features.items()}
        batch["tags"] = features["tags"].numpy().astype(str).tolist()
        rows = split_lookups.looked_up(self.directory(), version, batch)
        found = _served(f"{version}/dense", rows)
        self.assertAllClose(found, expected, tolerance, tolerance)

    def _features(self, size, ids=30):
        rng = np.random.default_rng(ids)
        tags = np.char.add("tag ", rng.integers(0, ids, [size, 3]).astype(str))
        weights = rng.uniform(0.5, 2, [size, 3]).astype(np.float32)
        return {
            "tags": tf.constant(tags),
            "weights": tf.constant(weights),
            "ids": tf.constant(rng.integers(0, ids, [size, 2])),
        }


if __name__ == "__main__":
    tf.test.main()
