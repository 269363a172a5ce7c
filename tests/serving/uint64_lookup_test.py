# SPDX-License-Identifier: Apache-2.0
"""Lookups of ids that int64 does not have."""

import os

import numpy as np
import pytest
import tensorflow as tf
from saving_util import TestCase

import tf_ext
from tf_ext._keras import keras

pytestmark = pytest.mark.both_kerases(slow=True)

_IDS = np.array([0, 7, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)


class LookupTest(TestCase):
    def _embed(self, *columns):
        """What a layer finds, and a function that looks it up."""
        inputs = {
            key: keras.Input((), dtype="uint64", name=key) for key in "ab"
        }
        layer = tf_ext.layers.EmbeddingFeatures(
            columns, tf_ext.SparseTable("rows", 3)
        )
        model = tf_ext.Model(inputs, layer(inputs))
        features = {"a": _IDS, "b": _IDS[::-1].copy()}
        rows = layer(
            {key: tf.constant(value) for key, value in features.items()},
            training=True,
        )
        path = os.path.join(self.directory(), "split")
        version = tf_ext.serving.export_split(model, path)
        lookup = self.enterContext(
            tf_ext.serving.Lookup(version, dense="tensorflow")
        )

        def look_up(of=lambda ids: ids):
            found = lookup.embed({key: of(features[key]) for key in features})
            [embedded] = [v for v in found.values() if v.dtype.kind == "f"]
            return embedded

        return rows, look_up

    def test_crosses_of_signs_have_their_texts(self):
        column = tf_ext.feature_column.category_column
        rows, look_up = self._embed(
            tf_ext.feature_column.crossed_column(
                ["a", column("b", hashing="identity")]
            )
        )
        self.assertAllEqual(look_up(), rows)

    def test_lists_of_integers_of_any_size(self):
        column = tf_ext.feature_column.category_column
        rows, look_up = self._embed(column("a"))
        self.assertAllEqual(look_up(lambda ids: ids.tolist()), rows)
        with self.assertRaisesRegex(ValueError, "The feature 'a' must be"):
            look_up(lambda ids: [-1, *ids.tolist()[1:]])
        with self.assertRaisesRegex(ValueError, "'a'.*float"):
            look_up(lambda ids: [0.5, *ids.tolist()[1:]])


if __name__ == "__main__":
    tf.test.main()
