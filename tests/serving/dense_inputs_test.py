# SPDX-License-Identifier: Apache-2.0
"""Features of a request that the dense part of a model takes as they are."""

import numpy as np
from absl.testing import absltest, parameterized

from tf_ext.serving.lookups.dense import other_inputs
from tf_ext.serving.lookups.features import Ragged


def _inputs(features, *inputs):
    """`other_inputs` of `(of_model, dtype, shape)`, by their names."""
    manifest = {
        "inputs": [
            {"input": name, "of_model": name, "dtype": dtype, "shape": shape}
            for name, dtype, shape in inputs
        ]
    }
    return other_inputs(manifest, features)


class OtherInputsTest(parameterized.TestCase):
    @parameterized.parameters(
        ([1, 2], [None], [1.0, 2.0]),
        ([1, 2], [None, 1], [[1.0], [2.0]]),
        ([[1, 2]], [None, 2], [[1.0, 2.0]]),
        ([[1], [2]], [None, 1], [[1.0], [2.0]]),
        ([1, 2], None, [1.0, 2.0]),
    )
    def test_shapes_of_dense_features(self, given, shape, wanted):
        found = _inputs({"x": given}, ("x", "float32", shape))["x"]
        self.assertEqual(found.dtype, np.float32)
        self.assertEqual(found.tolist(), wanted)

    def test_values_and_row_splits_of_a_ragged_one(self):
        found = _inputs(
            {"tags": Ragged([5, 6, 7], [0, 2, 3])},
            ("tags/values", "float32", [None]),
            ("tags/row_splits", "int64", [None]),
        )
        self.assertEqual(found["tags/values"].tolist(), [5.0, 6.0, 7.0])
        self.assertEqual(found["tags/row_splits"].tolist(), [0, 2, 3])
        self.assertEqual(found["tags/values"].dtype, np.float32)
        self.assertEqual(found["tags/row_splits"].dtype, np.int64)

    def test_a_name_with_a_slash_is_taken_whole_first(self):
        features = {"a/values": [1.0], "a": Ragged([2.0], [0, 1])}
        found = _inputs(features, ("a/values", "float32", [None]))
        self.assertEqual(found["a/values"].tolist(), [1.0])

    @parameterized.parameters("price", "price/values", "x/other")
    def test_missing(self, name):
        message = f"The feature '{name}' is missing. Present are: 'x'"
        with self.assertRaisesRegex(ValueError, message):
            _inputs({"x": [1.0]}, (name, "float32", [None]))

    @parameterized.parameters(
        ([1, 2], "int32"),
        ([1, 2], "float64"),
        ([1.5, 2.0], "float16"),
        ([True, False], "int64"),
        (["a", "b"], "string"),
        ([b"a", b"b"], "string"),
        ([], "int64"),
        ([], "string"),
    )
    def test_types_that_are_cast(self, given, dtype):
        found = _inputs({"x": given}, ("x", dtype, [None]))["x"]
        wanted = object if dtype == "string" else dtype
        self.assertEqual(found.dtype, wanted)
        self.assertLen(found, len(given))

    @parameterized.parameters(
        ([1.5, 2.0], "int64", "'x' must be of int64, but is of float64"),
        (["a", "b"], "float32", "'x' must be of float32, but is of "),
        ([1, 2], "string", "'x' must be of string, but is of int64"),
    )
    def test_types_that_are_refused(self, given, dtype, message):
        with self.assertRaisesRegex(ValueError, message):
            _inputs({"x": given}, ("x", dtype, [None]))

    def test_bags_are_no_dense_feature(self):
        features = {"x": Ragged([1, 2, 3], [0, 2, 3])}
        with self.assertRaisesRegex(ValueError, "'x' must be dense, but its"):
            _inputs(features, ("x", "int64", [None, 2]))


if __name__ == "__main__":
    absltest.main()
