"""Models that read sequences, split from their tables."""

import pathlib

import numpy as np
import sequence_models as sequences
import tensorflow as tf
from absl.testing import absltest
from saving_util import TestCase

import tf_ext
from tf_ext._keras import keras
from tf_ext.serving import export_split, read_manifest

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

    def test_ragged_sequences_are_refused(self):
        column = tf_ext.feature_column.sequence_category_column(
            "history", ragged=True
        )
        layer = tf_ext.layers.EmbeddingFeatures(
            [column], sequences.table(), concatenate=False
        )

        class Summed(tf_ext.Model):
            def __init__(self):
                super().__init__()
                self.embed = layer

            def call(self, inputs):
                return tf.reduce_sum(self.embed(inputs)["history"], 1)

        model = Summed()
        model({"history": self.features["history"]})
        with self.assertRaisesRegex(
            ValueError,
            "cannot be split: the sequence 'history' is ragged.*ragged=False, "
            "or use tf_ext.serving.export",
        ):
            export_split(model, self.path)


if __name__ == "__main__":
    absltest.main()
