# SPDX-License-Identifier: Apache-2.0
"""What stands for columns in a batch whose features have been hashed."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tf_ext.feature_column import (
    category_column,
    crossed_column,
    hashed_features,
    sequence_category_column,
)
from tf_ext.feature_column.bags import hash_batch

pytestmark = pytest.mark.both_kerases(slow=True)

_COLUMNS = {
    "one": category_column("one"),
    "one_wide": category_column("one_wide"),
    "wide": category_column("wide"),
    "missing": category_column("one", missing=2, namespace="m"),
    "buckets": category_column("number", boundaries=[1.0]),
    "bag": category_column("bag"),
    "weighted": category_column("bag", weights="weights", namespace="w"),
    "cross": crossed_column(["one", "one_wide"]),
    "cross_of_bags": crossed_column(["one", "bag"]),
    "last_two": sequence_category_column("bag", max_length=2, name="two"),
    "sequence": sequence_category_column("bag", name="all"),
}


def _features():
    return {
        "one": tf.constant([1, 2, 3]),
        "one_wide": tf.constant([["a"], ["b"], ["c"]]),
        "wide": tf.constant([[1, 2], [3, 4], [5, 6]]),
        "number": tf.constant([0.5, np.nan, 1.5]),
        "bag": tf.ragged.constant([["a"], [], ["b", "c", "a"]]),
        "weights": tf.ragged.constant([[0.5], [], [1.0, 2.0, 3.0]]),
    }


def _split(columns, features=None):
    features = features or _features()
    hashed = hash_batch(columns, features, return_error=False)
    return hashed, hashed_features.split(columns, hashed, features)


class SplitTest(tf.test.TestCase, parameterized.TestCase):
    def assert_same(self, found, expected):
        for one, other in zip(found.bags, expected.bags, strict=True):
            self.assertAllEqual(one, other)
        self.assertEqual(found.masks.keys(), expected.masks.keys())
        for column, mask in expected.masks.items():
            self.assertAllEqual(found.masks[column], mask)

    @parameterized.parameters(*([name] for name in _COLUMNS), [*_COLUMNS])
    def test_is_joined_as_it_was(self, *names):
        columns = [_COLUMNS[name] for name in names]
        hashed, entries = _split(columns)
        self.assert_same(hashed_features.join(columns, entries), hashed)

    def test_is_joined_in_another_order_and_in_part(self):
        _, entries = _split(list(_COLUMNS.values()))
        for names in (("cross", "one"), ("sequence", "weighted", "one")):
            columns = [_COLUMNS[name] for name in names]
            found = hashed_features.join(columns, entries)
            self.assert_same(found, hash_batch(columns, _features(), False))

    def test_columns_of_one_value_are_dense(self):
        columns = list(_COLUMNS.values())
        _, entries = _split(columns)
        signs = {
            name: entries[hashed_features.identity_of(column)]["signs"]
            for name, column in _COLUMNS.items()
        }
        dense = {
            name
            for name, one in signs.items()
            if not isinstance(one, tf.RaggedTensor)
        }
        self.assertEqual(dense, {"one", "one_wide", "cross"})

    def test_masks_without_a_limit_are_ragged(self):
        columns = [_COLUMNS["last_two"], _COLUMNS["sequence"]]
        # Where a graph does not know how long the sequences are.
        dataset = tf.data.Dataset.from_tensors(_features())
        entries = dataset.map(
            lambda batch: _split(columns, batch)[1]
        ).get_single_element()
        two, whole = (
            entries[hashed_features.identity_of(column)]["mask"]
            for column in columns
        )
        self.assertAllEqual(two, [[True, False], [False] * 2, [True] * 2])
        self.assertIsInstance(whole, tf.RaggedTensor)
        self.assertEqual(whole.to_list(), [[True], [], [True] * 3])
        found = hashed_features.join(columns, entries)
        self.assert_same(found, hash_batch(columns, _features(), False))


class SharedTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.columns = [category_column(key) for key in "abc"]
        self.key = hashed_features.key_of(self.columns)
        self.signs = np.arange(12).reshape(4, 3)

    def joined(self, entry, *places):
        entries = hashed_features.by_identity({self.key: entry})
        columns = [self.columns[place] for place in places]
        return hashed_features.join(columns, entries).bags

    @parameterized.parameters([[0, 1, 2]], [[0]], [[2, 0]], [[1, 2]])
    def test_columns_of_one_matrix(self, places):
        bags = self.joined({"signs": tf.constant(self.signs)}, *places)
        self.assertAllEqual(bags.signs, self.signs[:, places].T.ravel())
        self.assertAllEqual(bags.row_splits, range(4 * len(places) + 1))

    @parameterized.parameters([[0, 1, 2]], [[1]], [[2, 0]])
    def test_values_that_are_not_there(self, places):
        present = np.arange(12).reshape(4, 3) % 5 > 0
        entry = {
            "signs": tf.constant(self.signs),
            "present": tf.constant(present),
        }
        bags = self.joined(entry, *places)
        there = present[:, places].T.ravel()
        self.assertAllEqual(bags.signs, self.signs[:, places].T.ravel()[there])
        self.assertAllEqual(np.diff(bags.row_splits), there.astype(int))

    def test_a_single_column_whose_values_are_not_there(self):
        key = hashed_features.identity_of(self.columns[0])
        entry = {
            "signs": tf.constant([[5], [0], [7]], tf.int64),
            "present": tf.constant([[True], [False], [True]]),
        }
        entries = hashed_features.by_identity({key: entry})
        bags = hashed_features.join(self.columns[:1], entries).bags
        self.assertAllEqual(bags.signs, [5, 7])
        self.assertAllEqual(bags.row_splits, [0, 1, 1, 2])


if __name__ == "__main__":
    tf.test.main()
