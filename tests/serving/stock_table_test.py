# SPDX-License-Identifier: Apache-2.0
"""Rows of exported tables, which TensorFlow's own ops look up."""

import pathlib
import tempfile
import unittest.mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import id_column

import tf_ext
from tf_ext import serving
from tf_ext._keras import keras
from tf_ext.serving import stock_table, variable_files

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "StockTableTest::test_int8_of_a_single_weight_is_float16",
        "StockTableTest::test_rows_in_many_slices[02345678]",
        "StockTableTest::test_rows_of_known_and_unknown_ids[023457]",
    ),
]

_DIM = 3


def _model(initializer, rows, dim=_DIM):
    """A model that returns the rows of its ids."""
    table = tf_ext.SparseTable("deep", dim, "sgd", initializer)
    inputs = {"id": keras.Input([1], dtype="int64", name="id")}
    embedded = tf_ext.layers.EmbeddingFeatures([id_column("id")], table)
    model = tf_ext.Model(inputs, embedded(inputs))
    values = np.linspace(-1, 1, rows * dim, dtype=np.float32)
    table.import_rows(np.arange(rows), {"weights": values.reshape(rows, dim)})
    return model


class StockTableTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="tf_ext_export_")
        self.path = pathlib.Path(self.enterContext(folder), "models")

    @parameterized.product(
        dtype=["float32", "float16", "bfloat16", "int8"],
        initializer=["normal", tf_ext.initializers.Constant(0.3)],
    )
    def test_rows_of_known_and_unknown_ids(self, dtype, initializer):
        model = _model(initializer, rows=10)
        folder = serving.export(model, self.path, dtype=dtype)
        ids = {"id": tf.range(20, dtype=tf.int64)[:, tf.newaxis]}
        served = tf.saved_model.load(folder)
        rows = served.serve(ids)
        expected = model(ids)
        self.assertNotAllClose(expected[:10], expected[10:])
        tolerance = {"float32": 0.0, "float16": 5e-4}.get(dtype, 4e-3)
        self.assertAllClose(rows, expected, rtol=0, atol=tolerance)

    @parameterized.product(
        dtype=["float32", "bfloat16", "int8"], rows=[0, 1, 9]
    )
    def test_rows_in_many_slices(self, dtype, rows):
        model = _model("normal", rows)
        folder = pathlib.Path(serving.export(model, self.path, dtype=dtype))
        with unittest.mock.patch.object(variable_files, "_SLICE_BYTES", 8):
            sliced = pathlib.Path(serving.export(model, self.path, dtype=dtype))
        files = list(sliced.glob("variables/*"))
        self.assertGreaterEqual(len(files), 5 if rows == 9 else 2)
        # What was there before the rows is removed.
        data = [one for one in files if one.suffix != ".index"]
        for one in data:
            self.assertEndsWith(one.name, f"-of-{len(data):05}")
        self.assertLen(list(folder.glob("variables/*")), 2)
        self.assertEqual(serving.damaged_files(sliced), [])
        ids = {"id": tf.range(20, dtype=tf.int64)[:, tf.newaxis]}
        found, expected = map(tf.saved_model.load, (sliced, folder))
        self.assertAllEqual(found.serve(ids), expected.serve(ids))
        # Nothing else is left of what was written on the way.
        names = {path.name for path in folder.iterdir()}
        self.assertEqual({path.name for path in sliced.iterdir()}, names)

    def test_int8_of_a_single_weight_is_float16(self):
        folder = serving.export(_model("zeros", 6, 1), self.path, dtype="int8")
        [table] = serving.read_manifest(folder)["tables"]
        self.assertEqual(table["dtype"], "float16")
        self.assertEqual(table["bytes"], 6 * (8 + 2))

    def test_more_rows_than_int8_has_numbers_for(self):
        with unittest.mock.patch.object(stock_table, "_MOST_SCALED_ROWS", 5):
            with self.assertRaisesRegex(
                ValueError,
                'must not be "int8" for more than 5 rows. Received: table '
                "'deep' of 6 rows",
            ):
                serving.export(_model("zeros", 6), self.path, dtype="int8")
            self.assertFalse(self.path.exists())
            serving.export(_model("zeros", 5), self.path, dtype="int8")


if __name__ == "__main__":
    tf.test.main()
