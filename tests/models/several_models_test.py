# SPDX-License-Identifier: Apache-2.0
"""Several models in one process: trained apart, averaged, saved as one."""

import gc
import pathlib
import weakref

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "AverageTest::test_a_shared_table_has_both_updates",
    ),
]

_RANDOM = np.random.default_rng(3)
_FEATURES = {
    "user": _RANDOM.integers(40, size=70),
    "item": _RANDOM.integers(30, size=70),
}
_LABELS = (_RANDOM.random((70, 1)) < 0.4).astype(np.float32)


def _inputs():
    return {key: keras.Input((), dtype="int64", name=key) for key in _FEATURES}


def _model(name, table):
    inputs = _inputs()
    columns = [tf_ext.feature_column.category_column(key) for key in _FEATURES]
    embeddings = tf_ext.layers.EmbeddingFeatures(columns, table)(inputs)
    outputs = keras.layers.Dense(1, activation="sigmoid")(embeddings)
    return _compiled(tf_ext.Model(inputs, outputs, name=name))


def _compiled(model):
    model.compile(tf_ext.optimizers.Optimizer("adam"), "binary_crossentropy")
    return model


def _average(models):
    inputs = _inputs()
    outputs = [model(inputs) for model in models]
    return tf_ext.Model(inputs, keras.layers.Average()(outputs))


def _predict(model):
    # The last batch is not full.
    return model.predict(_FEATURES, batch_size=32, verbose=0)


class AverageTest(parameterized.TestCase, tf.test.TestCase):
    def _models(self, kind):
        if kind == "shared":
            table = tf_ext.SparseTable("rows", dim=3)
            tables = [table, table]
        else:
            names = {"other_names": ["one", "two"], "same_name": ["rows"] * 2}
            tables = [
                tf_ext.SparseTable(name, dim=dim, optimizer=rule, seed=dim)
                for name, dim, rule in zip(
                    names[kind], (3, 5), ("adam", "adagrad")
                )
            ]
        models = [_model(f"model_{i}", one) for i, one in enumerate(tables)]
        for model in models:
            model.fit(_FEATURES, _LABELS, batch_size=32, verbose=0)
        return models

    @parameterized.parameters("other_names", "same_name", "shared")
    def test_saved_as_one(self, kind):
        models = self._models(kind)
        expected = np.mean([_predict(model) for model in models], axis=0)
        average = _average(models)
        self.assertAllClose(_predict(average), expected, 1e-6)

        folder = pathlib.Path(self.get_temp_dir())
        average.save(folder / f"{kind}.keras")
        loaded = keras.models.load_model(folder / f"{kind}.keras")
        self.assertAllClose(_predict(loaded), expected, 1e-6)
        average.export(str(folder / kind))
        served = tf.saved_model.load(str(folder / kind))
        features = {k: tf.constant(v) for k, v in _FEATURES.items()}
        self.assertAllClose(served.serve(features), expected, 1e-6)

    @parameterized.parameters("other_names", "same_name", "shared")
    def test_trained_as_one(self, kind):
        models = self._models(kind)
        average = _compiled(_average(models))
        before = [_predict(model) for model in models]
        average.fit(_FEATURES, _LABELS, batch_size=32, verbose=0)
        after = [_predict(model) for model in models]
        for one, other in zip(before, after):
            self.assertNotAllClose(one, other, atol=1e-5)
        self.assertAllClose(_predict(average), np.mean(after, axis=0), 1e-6)

    def test_a_shared_table_has_both_updates(self):
        table = tf_ext.SparseTable("rows", dim=3)
        first, second = _model("first", table), _model("second", table)
        before = _predict(first)
        second.fit(_FEATURES, _LABELS, batch_size=32, verbose=0)
        self.assertNotAllClose(_predict(first), before, atol=1e-5)


class FreedTest(tf.test.TestCase):
    def test_rows_go_with_their_model(self):
        freed = []
        for trial in range(3):
            table = tf_ext.SparseTable("rows", dim=3)
            model = _model("model", table)
            model.fit(_FEATURES, _LABELS, verbose=0)
            freed.append(weakref.ref(table))
            del table, model
            gc.collect()
            self.assertEqual([one() for one in freed], [None] * (trial + 1))


if __name__ == "__main__":
    tf.test.main()
