# SPDX-License-Identifier: Apache-2.0
"""A table of more weights than a protobuf holds is exported and served."""

import pathlib
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest
from models.model_building import id_column

import tf_ext
from tf_ext._keras import keras

pytestmark = pytest.mark.both_kerases(slow=True)

_DIM = 512
_ROWS = 1_200_000  # 2.46 GB of weights
_BATCH = 50_000


class LargeExportTest(absltest.TestCase):
    @pytest.mark.slow
    @pytest.mark.timeout(1200)
    def test_above_2_gb(self):
        path = pathlib.Path(
            self.enterContext(tempfile.TemporaryDirectory(prefix="tf_ext_"))
        )
        table = tf_ext.SparseTable("large", _DIM, "sgd", "zeros")
        rng = np.random.default_rng(1)
        for begin in range(0, _ROWS, _BATCH):
            signs = np.arange(begin, begin + _BATCH)
            weights = rng.random((_BATCH, _DIM), np.float32)
            table.import_rows(signs, {"weights": weights})
        inputs = {"user": keras.Input((), dtype="int64", name="user")}
        layer = tf_ext.layers.EmbeddingFeatures([id_column("user")], table)
        model = tf_ext.Model(inputs, layer(inputs))
        folder = pathlib.Path(tf_ext.serving.export(model, path))
        signs = np.array([0, _ROWS // 2, _ROWS - 1, _ROWS])
        asked = {"user": tf.constant(signs)}
        expected = model(asked).numpy()
        self.assertGreater(np.abs(expected[:3]).min(axis=1).max(), 0)
        self.assertFalse(expected[3].any())
        table.clear()
        loaded = tf.saved_model.load(str(folder))
        np.testing.assert_array_equal(loaded.serve(asked), expected)
        graph = (folder / "saved_model.pb").stat().st_size
        self.assertLess(graph, 2**20)
        files = folder.glob("variables/*")
        size = sum(file.stat().st_size for file in files)
        self.assertGreater(size, 2**31)
        self.assertLess(size, 1.02 * _ROWS * (8 + 4 * _DIM))


if __name__ == "__main__":
    absltest.main()
