# SPDX-License-Identifier: Apache-2.0
"""Models that read sequences, split from their tables."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest
from models import sequence_models as sequences
from models.model_building import id_column
from saving_util import TestCase

import tf_ext
from tf_ext._keras import keras
from tf_ext.serving import export_split, read_manifest

pytestmark = [
    pytest.mark.both_kerases(slow=True),
]

_SAMPLES = 16


def _embedding(manifest, column):
    [found] = [e for e in manifest["embeddings"] if e["column"] == column]
    return found


class SequenceSplitTest(TestCase):
    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(self.directory())
        self.features, self.labels = sequences.data(
            np.random.default_rng(3), _SAMPLES
        )

    def _dense(self, version, **inputs):
        loaded = tf.saved_model.load(f"{version}/dense")
        default = loaded.signatures["serving_default"]
        found = default(**{k: tf.constant(v) for k, v in inputs.items()})
        return found["output_0"]

    def test_takes_rows_at_positions_and_their_mask(self):
        model = sequences.model()
        model.fit(self.features, self.labels, verbose=0)
        version = export_split(model, self.path)
        manifest = read_manifest(version)
        about = _embedding(manifest, "history")
        self.assertEqual(about["input"], "item__history")
        self.assertEqual(about["mask"], "item__history__mask")
        self.assertEqual(about["shape"], [sequences.LENGTH, sequences.DIM])
        self.assertEqual(about["features"], {"history": "history"})
        self.assertEqual(about["kind"], "SequenceColumn")
        self.assertEqual(about["config"]["max_length"], sequences.LENGTH)
        self.assertNotIn("mask", _embedding(manifest, "item"))
        self.assertEmpty(manifest["inputs"])
        [table] = model.tables
        history = self.features["history"]
        mask = history != sequences.PADDING
        rows = table.pull(history.ravel()).numpy()
        found = self._dense(
            version,
            item__history=rows.reshape([*history.shape, -1]),
            item__history__mask=mask,
            item__item=table.pull(self.features["item"]),
        )
        expected = model(self.features, training=False)
        # Attention lets masked positions see the others.
        self.assertAllClose(found, expected, rtol=0, atol=1e-6)
        other = self._dense(
            version,
            item__history=rows.reshape([*history.shape, -1]),
            item__history__mask=np.ones_like(mask),
            item__item=table.pull(self.features["item"]),
        )
        self.assertNotAllClose(other, expected, atol=1e-3)

    def test_takes_no_mask_that_is_not_used(self):
        inputs = sequences.inputs()
        layer = tf_ext.layers.EmbeddingFeatures(
            sequences.columns(3), sequences.table(), concatenate=False
        )
        outputs = keras.layers.Flatten()(layer(inputs)["history"])
        model = tf_ext.Model(inputs, outputs)
        version = export_split(model, self.path)
        manifest = read_manifest(version)
        self.assertNotIn("mask", _embedding(manifest, "history"))
        self.assertEmpty(manifest["inputs"])
        given = np.ones([2, 3, sequences.DIM], np.float32)
        found = self._dense(
            version,
            item__history=given,
            item__item=np.ones([2, sequences.DIM], np.float32),
        )
        self.assertAllEqual(found, given.reshape([2, -1]))

    def test_takes_values_and_row_splits_of_a_ragged_sequence(self):
        table = sequences.table()
        column = tf_ext.feature_column.sequence_category_column(
            id_column("history", missing=sequences.PADDING),
            max_length=3,
            ragged=True,
        )
        layer = tf_ext.layers.EmbeddingFeatures(
            [column, id_column("item")], table, concatenate=False
        )

        class Summed(tf_ext.Model):
            def __init__(self):
                super().__init__()
                self.embed = layer

            def call(self, inputs, training=None):
                found = self.embed(inputs, training=training)
                return tf.reduce_sum(found["history"], 1) * found["item"]

        model = Summed()
        features = {
            "history": tf.ragged.constant([[4, 5], [], [6, 4, 7]], tf.int64),
            "item": tf.constant([5, 6, 7], tf.int64),
        }
        expected = model(features, training=True)
        self.assertNotAllClose(expected[0], tf.zeros([sequences.DIM]), 1e-3)
        version = export_split(model, self.path)
        manifest = read_manifest(version)
        about = _embedding(manifest, "history")
        self.assertEqual(about["input"], "item__history")
        self.assertEqual(about["row_splits"], "item__history__row_splits")
        self.assertEqual(about["shape"], [None, sequences.DIM])
        self.assertNotIn("mask", about)
        self.assertNotIn("row_splits", _embedding(manifest, "item"))
        self.assertEmpty(manifest["inputs"])
        given = {
            "item__history": table.pull(features["history"].values),
            "item__item": table.pull(features["item"]),
        }
        splits = features["history"].row_splits
        found = self._dense(version, item__history__row_splits=splits, **given)
        self.assertAllClose(found, expected, rtol=0, atol=1e-6)
        # The last row belongs to no sample.
        cut_off = np.array([0, 2, 2, 4])
        with self.assertRaises(tf.errors.InvalidArgumentError):
            self._dense(version, item__history__row_splits=cut_off, **given)


if __name__ == "__main__":
    absltest.main()
