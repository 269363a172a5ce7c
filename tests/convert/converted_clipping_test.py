# SPDX-License-Identifier: Apache-2.0
"""Converted models whose optimizer clips each variable by its norm."""

import numpy as np
import pytest
import tensorflow as tf
from saving_util import TestCase

import tf_ext
from tf_ext._keras import keras

pytestmark = pytest.mark.both_kerases(slow=True)

_IDS = 40


def _model():
    keras.utils.set_random_seed(3)
    inputs, parts = [], []
    for name in ("user", "item"):
        inputs.append(keras.Input((1,), dtype="int64", name=name))
        rows = keras.layers.Embedding(_IDS, 4, name=f"rows_{name}")
        parts.append(keras.layers.Flatten()(rows(inputs[-1])))
    hidden = keras.layers.Concatenate()(parts)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def _batches(count):
    """Without an id that occurs twice: tables sum the gradients of one."""
    rng = np.random.default_rng(4)
    for _ in range(count):
        ids = [rng.permutation(_IDS)[:16, np.newaxis] for _ in range(2)]
        # Unlike, so that norms are.
        yield ids, ids[0] / 10.0 + rng.normal(size=(16, 1))


class ClippingTest(TestCase):
    def _train_alike(self, *models):
        """Trains two models, which predict the same after it."""
        for features, labels in _batches(10):
            for model in models:
                model.train_on_batch(features, labels)
        expected, found = (one.predict(features, verbose=0) for one in models)
        self.assertAllClose(found, expected, 1e-5, 1e-5)

    def test_trains_on_as_in_keras(self):
        before = _model()
        sgd = keras.optimizers.SGD(0.5, clipnorm=0.1)
        before.compile(sgd, "mse")
        done = tf_ext.convert.model_from_keras(before)
        self.assertEqual(done.notes, ())
        self._train_alike(before, done.model)
        ids = dict.fromkeys(("user", "item"), np.arange(_IDS))
        back = tf_ext.convert.model_to_keras(done.model, ids)
        self.assertEqual(back.notes, ())
        self._train_alike(before, back.model)

    def test_a_table_that_becomes_several_embeddings(self):
        inputs = {
            key: keras.Input((1,), dtype="int64", name=key) for key in "ab"
        }
        rule = tf_ext.optimizers.SparseSGD(0.1)
        columns = [tf_ext.feature_column.category_column(key) for key in "ab"]
        table = tf_ext.SparseTable("rows", 2, rule)
        rows = tf_ext.layers.EmbeddingFeatures(columns, table)(inputs)
        model = tf_ext.Model(inputs, rows)
        for options, notes in (
            ({}, []),
            ({"clipnorm": 1.0}, ["`clipnorm` clips the 2 Embeddings"]),
        ):
            sgd = keras.optimizers.SGD(0.1, **options)
            model.compile(tf_ext.optimizers.Optimizer(sgd), "mse")
            done = tf_ext.convert.model_to_keras(model, {"a": [1], "b": [1]})
            found = [note.partition(" of table")[0] for note in done.notes]
            self.assertEqual(found, notes)


if __name__ == "__main__":
    tf.test.main()
