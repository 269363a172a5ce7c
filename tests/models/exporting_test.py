# SPDX-License-Identifier: Apache-2.0
"""`Model.export` of subclassed models that were trained on hashed features."""

import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = pytest.mark.both_kerases

_RAGGED = {
    "user": tf.constant(list("abcd")),
    "tags": tf.ragged.constant([["x"], [], ["y", "x"], ["z"]]),
}
_DENSE = {"user": _RAGGED["user"], "tags": tf.constant(list("xyxz"))}


class Subclassed(tf_ext.Model):
    def __init__(self):
        super().__init__()
        columns = map(tf_ext.feature_column.category_column, _DENSE)
        table = tf_ext.SparseTable("table", dim=4)
        self.embedding = tf_ext.layers.EmbeddingFeatures(list(columns), table)
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(self.embedding(inputs))


def _trained(features):
    """A model that knows hashed features alone, and raw ones."""
    model = Subclassed()
    model.compile(tf_ext.optimizers.Optimizer("adam"), "mse")
    raw = tf.data.Dataset.from_tensor_slices((features, tf.ones([4]))).batch(3)
    model.fit(tf_ext.data.hash_columns(raw, model.embedding), verbose=0)
    return model, raw


class SubclassedTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(True, False)
    def test_needs_raw_features(self, is_ragged):
        features = _RAGGED if is_ragged else _DENSE
        model, raw = _trained(features)
        directory = tempfile.TemporaryDirectory(prefix="tf_ext_exports_")
        self.addCleanup(directory.cleanup)
        path = os.path.join(directory.name, "model")
        with self.assertRaisesRegex(
            ValueError, "has been called only with features that .* hashed"
        ):
            model.export(path)
        wanted = model.predict(raw, verbose=0)
        if is_ragged and IS_KERAS_3:
            with self.assertRaisesRegex(
                ValueError, "ragged or sparse .* Use tf_ext.serving.export"
            ):
                model.export(path)
            return
        model.export(path)
        served = tf.saved_model.load(path)
        found = np.asarray(served.serve(features))
        self.assertAllClose(found, wanted, rtol=1e-6)


if __name__ == "__main__":
    tf.test.main()
