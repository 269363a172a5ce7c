# SPDX-License-Identifier: Apache-2.0
"""Ids of uint64, whose upper half int64 does not have, and of bool."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from saving_util import TestCase

import tf_ext
from tf_ext import hashing
from tf_ext._keras import keras
from tf_ext.feature_column import (
    category_column,
    columns_to_bags,
    crossed_column,
    sequence_category_column,
)

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ModelTest::test_trains_as_with_texts",
    ),
]

_IDS = np.uint64([0, 5, 2**63 - 1, 2**63, 2**64 - 1])
_FLAGS = np.array([True, False, True, True, False])
_TEXTS = np.array([str(x) for x in _IDS], object)


def _signs(column, **features):
    tensors = {key: tf.constant(value) for key, value in features.items()}
    return columns_to_bags([column], tensors).signs.numpy().tolist()


class SignsTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("any", {}),
        ("buckets", {"bucket_size": 7}),
        ("missing", {"missing": 0}),
        ("missing_text", {"missing": "5"}),
    )
    def test_of_uint64_are_those_of_the_texts(self, options):
        column = category_column("id", **options)
        found = _signs(column, id=_IDS)
        self.assertEqual(found, _signs(column, id=_TEXTS))
        self.assertLen(found, 5 - ("missing" in options))

    def test_of_uint64_that_are_signs_for_some_columns_alone(self):
        columns = [
            category_column("id"),
            category_column("id", hashing="identity"),
        ]
        for some in (columns, columns[::-1]):
            found = columns_to_bags(some, {"id": tf.constant(_IDS)}).signs
            first, second = (_signs(column, id=_IDS) for column in some)
            self.assertEqual(found.numpy().tolist(), first + second)

    def test_of_uint64_in_a_cross(self):
        column = crossed_column(["id", "flag"])
        found = _signs(column, id=_IDS, flag=_FLAGS)
        texts = _signs(column, id=_TEXTS, flag=_FLAGS.astype(np.int64))
        self.assertEqual(found, texts)
        numpys = hashing.hash_cross([_IDS, _FLAGS], "id_X_flag")
        self.assertEqual(found, numpys.tolist())
        identity = category_column("id", hashing="identity")
        column = crossed_column([identity, "flag"])
        self.assertEqual(_signs(column, id=_IDS, flag=_FLAGS), found)

    def test_of_uint64_are_its_bits(self):
        column = category_column("id", hashing="identity")
        found = _signs(column, id=_IDS)
        self.assertEqual(found, _IDS.view(np.int64).tolist())

    def test_of_uint64_with_boundaries(self):
        column = category_column("id", boundaries=[3.0, 2.0**63])
        found = _signs(column, id=_IDS)
        # 2^63 - 1 is rounded to 2^63, as all numbers are to float32.
        self.assertEqual(found, _signs(column, id=_IDS.astype(np.float32)))
        self.assertLen(set(found), 3)
        numpys = hashing.hash_category(_IDS, "id", boundaries=[3.0, 2.0**63])
        self.assertEqual(found, numpys.tolist())

    def test_of_numpy(self):
        for values in (_IDS, _FLAGS, _IDS[::2], _IDS.reshape([5, 1])):
            as_numbers = values.ravel().tolist()
            texts = [str(int(one)) for one in as_numbers]
            found = hashing.hash_category(values, "id")
            self.assertEqual(found.shape, values.shape)
            expected = hashing.hash_category(texts, "id")
            self.assertEqual(found.ravel().tolist(), expected.tolist())

    def test_of_bool(self):
        column = category_column("flag")
        found = _signs(column, flag=_FLAGS)
        self.assertEqual(found, _signs(column, flag=_FLAGS.astype(np.int64)))

    def test_of_sequences(self):
        column = sequence_category_column(category_column("id"), max_length=2)
        ids = tf.RaggedTensor.from_row_lengths(_IDS, [0, 3, 2])
        texts = tf.RaggedTensor.from_row_lengths(_TEXTS, [0, 3, 2])
        found = columns_to_bags([column], {"id": ids})
        for one, other in zip(found, columns_to_bags([column], {"id": texts})):
            np.testing.assert_array_equal(one, other)


class ModelTest(TestCase):
    def _model(self, dtype):
        inputs = {
            "id": keras.Input((), dtype=dtype, name="id"),
            "flag": keras.Input((), dtype="bool", name="flag"),
        }
        table = tf_ext.SparseTable(
            "ids", 2, tf_ext.optimizers.SparseSGD(0.1), "normal"
        )
        layer = tf_ext.layers.EmbeddingFeatures(
            [category_column("id"), category_column("flag")], table
        )
        model = tf_ext.Model(inputs, layer(inputs))
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        return model, layer

    def test_trains_as_with_texts(self):
        labels, found = np.ones([5, 4], np.float32), {}
        for dtype, ids in (("uint64", _IDS), ("string", _TEXTS)):
            model, layer = self._model(dtype)
            features = {"id": ids, "flag": _FLAGS}
            model.fit(features, labels, batch_size=2, verbose=0, shuffle=False)
            found[dtype] = model.predict(features, verbose=0)
            tensors = {k: tf.constant(v) for k, v in features.items()}
            data = tf.data.Dataset.from_tensors((tensors, labels))
            hashed = tf_ext.data.hash_columns(data, layer.columns)
            self.assertAllEqual(model.predict(hashed, verbose=0), found[dtype])
            path = self.path("x.keras")
            model.save(path)
            loaded = keras.models.load_model(path)
            again = loaded.predict(features, verbose=0)
            self.assertAllEqual(again, found[dtype])
            served = tf_ext.serving.export(model, self.directory())
            serve = tf.saved_model.load(served).signatures["serving_default"]
            [outputs] = serve(**tensors).values()
            self.assertAllClose(outputs, found[dtype])
        self.assertAllEqual(found["uint64"], found["string"])


if __name__ == "__main__":
    tf.test.main()
