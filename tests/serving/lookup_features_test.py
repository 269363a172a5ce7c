# SPDX-License-Identifier: Apache-2.0
"""The features of a request, and the weights of what it asks for."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

from tf_ext.serving import Ragged
from tf_ext.serving.lookups import features
from tf_ext.serving.lookups.tables import Table
from tf_ext.serving.sinks.sink import FoundRows, SinkError


def _objects(*members):
    array = np.empty(len(members), object)
    array[:] = members
    return array


class ReadFeatureTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("texts", ["x", "yy"], None, ["x", "yy"], (2,)),
        ("bytes_with_zeros", [b"x\0", b"y"], None, [b"x\0", b"y"], (2,)),
        ("integers", [3, 4], True, [3, 4], (2,)),
        ("lists_of_one_size", [[1, 2], [3, 4]], None, [1, 2, 3, 4], (2, 2)),
        ("lists_of_one_value", [[1], [2]], False, [1, 2], (2, 1)),
        ("empty_lists", [[], []], None, [], (2, 0)),
        ("no_sample", [], None, [], (0,)),
        ("deep_lists", [[[1], [2]], [[3], [4]]], None, [1, 2, 3, 4], (2, 2, 1)),
        ("deep_array", np.ones([2, 1, 3]), True, [1] * 6, (2, 1, 3)),
    )
    def test_of_one_size(self, given, ragged, values, shape):
        found = features.read_feature("a", given, ragged)
        self.assertEqual(found.values.tolist(), values)
        self.assertIsNone(found.row_splits)
        self.assertEqual(found.shape, shape)
        self.assertEqual(found.batch_size, len(given))

    @parameterized.named_parameters(
        ("known_to_be", [[1, 2], [3, 4]], True, [1, 2, 3, 4], [0, 2, 4]),
        ("of_one_value", [[1], [2]], True, [1, 2], [0, 1, 2]),
        ("of_two_sizes", [[1], [2, 3]], None, [1, 2, 3], [0, 1, 3]),
        ("with_an_empty_one", [[], [5]], False, [5], [0, 0, 1]),
        ("array", np.array([[1, 2], [3, 4]]), True, [1, 2, 3, 4], [0, 2, 4]),
        ("arrays", _objects(np.ones(1), np.ones(2)), None, [1] * 3, [0, 1, 3]),
        ("splits", Ragged([7, 8], [0, 0, 2]), None, [7, 8], [0, 0, 2]),
    )
    def test_of_bags(self, given, ragged, values, splits):
        found = features.read_feature("a", given, ragged)
        self.assertEqual(found.values.tolist(), values)
        self.assertEqual(found.row_splits.tolist(), splits)
        self.assertEqual(found.batch_size, len(splits) - 1)
        self.assertIsNone(found.width)
        self.assertIs(found.splits, found.row_splits)

    def test_splits_of_a_dense_feature(self):
        found = features.read_feature("a", np.zeros([2, 3]), None)
        self.assertEqual(found.width, 3)
        self.assertEqual(found.splits.tolist(), [0, 3, 6])
        self.assertEqual(features.read_feature("a", [1, 2], None).width, 1)

    @parameterized.parameters(
        ([1, 2**63 - 1], "int64"),
        ([1, 2**63], "uint64"),
        ([1, 2**64 - 1], "uint64"),
        ([1, 2.0**63], "float64"),
        ([1.5, 2.0], "float64"),
        ([], "int64"),
        (np.zeros([0]), "float64"),
        ([True, False], "bool"),
    )
    def test_types_of_numbers(self, given, dtype):
        found = features.read_feature("a", given, None).values
        self.assertEqual(found.dtype, dtype)
        self.assertEqual(found.tolist(), list(given))

    @parameterized.parameters([[0, 1]], [[1, 2]], [[0, 3]], [[0, 2, 1, 2]])
    def test_wrong_splits(self, splits):
        with self.assertRaisesRegex(ValueError, "'a' must start at 0, not"):
            features.read_feature("a", Ragged([7, 8], splits), None)

    def test_batch_sizes(self):
        one, two = (
            features.read_feature("a", [0] * size, None) for size in (1, 2)
        )
        self.assertEqual(features.batch_size_of({"a": two, "b": two}), 2)
        with self.assertRaisesRegex(ValueError, "'a' is 1 and that of 'b' is"):
            features.batch_size_of({"a": one, "b": two})


class WeightsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.table = Table("user", 2, "float32", "", False)

    def test_of_no_sign(self):
        found = FoundRows(np.empty([0, 8], np.uint8), np.empty([0], bool))
        self.assertEqual(self.table.weights([], found).shape, (0, 2))

    def test_of_another_width(self):
        rows = np.zeros([1, 12], np.uint8)
        with self.assertRaisesRegex(SinkError, "have 12 bytes, but should ha"):
            self.table.weights([5], FoundRows(rows, np.array([True])))


if __name__ == "__main__":
    tf.test.main()
