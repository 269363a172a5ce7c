# SPDX-License-Identifier: Apache-2.0
"""`Column.signs` against the bags of a batch."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tf_ext.feature_column import (
    category_column,
    columns_to_bags,
    crossed_column,
    sequence_category_column,
)

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "SignsTest::test_are_those_of_a_batch_arrays_of_strings",
        "SignsTest::test_are_those_of_a_batch_buckets",
        "SignsTest::test_are_those_of_a_batch_integers",
        "SignsTest::test_are_those_of_a_batch_sequences",
        "SignsTest::test_are_those_of_a_batch_unsigned",
    ),
]

_TEXTS = ["ann", "", "bob", "5", "\u00e9"]
_CASES = {
    "strings": (category_column("x"), _TEXTS),
    "arrays_of_strings": (category_column("x"), np.array(_TEXTS, object)),
    "integers": (category_column("x", namespace="y"), [5, -1, 2**40]),
    "small_integers": (category_column("x"), np.array([1, 2], np.int8)),
    "unsigned": (category_column("x"), np.array([2**64 - 1], np.uint64)),
    "buckets": (category_column("x", bucket_size=3), _TEXTS),
    "boundaries": (category_column("x", boundaries=[0.1, 2.0]), [0.1, 5.0]),
    "identity": (category_column("x", hashing="identity"), [7, -7]),
    "sequences": (sequence_category_column("x", max_length=1), _TEXTS),
    "tensors": (category_column("x"), tf.constant([[1, 2], [3, 4]])),
}


class SignsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        (name, *case) for name, case in _CASES.items()
    )
    def test_are_those_of_a_batch(self, column, values):
        signs = column.signs(values)
        self.assertEqual(signs.dtype, tf.int64)
        self.assertAllEqual(signs.shape, np.shape(values))
        flat = tf.reshape(tf.convert_to_tensor(values), [-1])
        bags = columns_to_bags([column], {"x": flat})
        self.assertAllEqual(tf.reshape(signs, [-1]), bags.signs)
        traced = tf.function(column.signs)(tf.convert_to_tensor(values))
        self.assertAllEqual(traced, signs)

    def test_weights_are_not_needed(self):
        column = category_column("x", weights="w")
        self.assertAllEqual(
            column.signs(["a"]), category_column("x").signs(["a"])
        )

    def test_of_crosses(self):
        column = crossed_column(
            ["x", category_column("y", bucket_size=2)], bucket_size=100
        )
        x, y = ["a", "b", "c"], [1, 2, 3]
        bags = columns_to_bags([column], {"x": x, "y": y})
        self.assertAllEqual(column.signs([x, y]), bags.signs)
        self.assertAllEqual(column.signs([[x], [y]]), [bags.signs])

    def test_of_nothing(self):
        for values in ([], np.zeros([0, 3], np.float32)):
            signs = category_column("x").signs(values)
            self.assertAllEqual(signs, np.zeros(np.shape(values), np.int64))
            self.assertEqual(signs.dtype, tf.int64)

    def test_refuses_other_values(self):
        plain, cross = category_column("x"), crossed_column(["x", "y"])
        for column, values, words in (
            (plain, [1.5], "floats, which cannot be ids"),
            (category_column("x", missing="-"), ["a", "-", "-"], "ed: 2 of"),
            (
                category_column("x", boundaries=[1.0]),
                [float("nan")],
                "no missing values",
            ),
            (category_column("x", hashing="identity"), ["a"], "of strings"),
            (plain, tf.ragged.constant([["a"], []]), "must be dense"),
            (cross, ["a", "b", "c"], "a list of 2 arrays"),
            (cross, [["a", "b"], ["c"]], "of one shape"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                column.signs(values)


if __name__ == "__main__":
    tf.test.main()
