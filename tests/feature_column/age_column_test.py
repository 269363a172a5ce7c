# SPDX-License-Identifier: Apache-2.0
"""The column of the time from one moment to another."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases.column_model_cases import ColumnModelCases

from tf_ext._keras import keras
from tf_ext.feature_column import (
    AgeColumn,
    age_column,
    category_column,
    columns_to_bags,
    crossed_column,
    sequence_category_column,
)
from tf_ext.feature_column import bags as bags_module

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ModelTest::test_*",
    ),
]

_LIMITS = [-10, 0, 3_600, 86_400]


def _ids_as(column, ids):
    """The signs of integers in the namespace of a column."""
    plain = category_column("x", namespace=column.namespace)
    return plain.signs(np.array(ids, np.int64))


def _column(**arguments):
    return age_column("made", "shown", _LIMITS, **arguments)


class SignsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters("int32", "int64")
    def test_are_those_of_the_buckets_of_differences(self, dtype):
        ages = [-11, -10, -1, 0, 1, 3_599, 3_600, 86_399, 86_400, 2**30]
        shown = tf.range(1, len(ages) + 1)
        features = {
            "made": tf.cast(shown - ages, dtype),
            "shown": tf.cast(shown, dtype),
        }
        ids = np.searchsorted(_LIMITS, ages, side="right")
        column = _column()
        bags = columns_to_bags([column], features)
        self.assertAllEqual(bags.signs, _ids_as(column, ids))
        self.assertAllEqual(column.signs(ages), bags.signs)

    def test_no_age_overflows(self):
        ends = [-(2**63), 2**63 - 1]
        features = {
            "made": tf.constant([ends[0], ends[1], ends[0]], tf.int64),
            "shown": tf.constant([ends[1], ends[0], ends[0]], tf.int64),
        }
        for missing in (None, 5):
            column = _column(missing=missing)
            signs = columns_to_bags([column], features).signs
            self.assertAllEqual(signs, _ids_as(column, [4, 0, 2]))

    def test_of_bags_and_of_other_shapes(self):
        column = _column(combiner="mean")
        ragged = tf.ragged.constant([[100, -10_000], [], [0]], tf.int64)
        dense = tf.constant([[100, -10_000], [0, 0], [0, 0]], tf.int64)
        for shown in ([100, 5, 7_200], [[100], [5], [7_200]]):
            shown = tf.constant(shown, tf.int64)
            for made, ids, splits in (
                (ragged, [2, 3, 3], [0, 2, 2, 3]),
                (ragged.to_sparse(), [2, 3, 3], [0, 2, 2, 3]),
                (dense, [2, 3, 2, 2, 3, 3], [0, 2, 4, 6]),
            ):
                bags = columns_to_bags([column], {"made": made, "shown": shown})
                self.assertAllEqual(bags.signs, _ids_as(column, ids))
                self.assertAllEqual(bags.row_splits, splits)

    def test_missing_times_are_left_out(self):
        column = _column(missing=0)
        features = {"made": [0, 5, 5, 0], "shown": [5, 0, 5, 0]}
        bags = columns_to_bags([column], features)
        self.assertAllEqual(bags.row_splits, [0, 0, 0, 1, 1])
        self.assertAllEqual(bags.signs, _ids_as(column, [2]))

    def test_beside_other_columns_of_the_features(self):
        columns = [
            _column(),
            age_column("made", "other", _LIMITS),
            age_column("made", "shown", [5]),
            _column(missing=1),
            category_column("made"),
            crossed_column(["made", _column()]),
        ]
        features = {"made": [1, 2], "shown": [10, 20], "other": [9_000, 0]}
        bags = columns_to_bags(columns, features)
        apart = [columns_to_bags([one], features).signs for one in columns]
        self.assertAllEqual(bags.signs, tf.concat(apart, 0))
        identities = {one.hashing_identity for one in columns}
        self.assertLen(identities, 6)

    def test_features_that_are_not_there(self):
        user = {"user": tf.constant(["ann"])}
        columns = [category_column("user"), _column(optional=True)]
        self.assertAllEqual(
            columns_to_bags(columns, user).row_splits, [0, 1, 1]
        )
        for features, missing in (
            (user, "'made' of column 'made_age'"),
            (
                {**user, "made": tf.constant([5])},
                "'shown' of column 'made_age'",
            ),
        ):
            with self.assertRaisesRegex(ValueError, missing):
                columns_to_bags([columns[0], _column()], features)

    @parameterized.parameters(
        ([1, 2, 3], tf.errors.InvalidArgumentError, "the same batch size"),
        ([1], tf.errors.InvalidArgumentError, "the same batch size"),
        ([[1, 2], [1, 2]], ValueError, "'shown' .* one value for each sample"),
        (5, ValueError, "'shown' .* one value for each sample"),
        ([1.0, 2.0], ValueError, "'made' and 'shown' .* one is of float32"),
        (tf.ragged.constant([[1], [2]]), ValueError, "'shown' .* be dense"),
    )
    def test_features_that_do_not_fit(self, shown, error, message):
        for made in ([1, 2], tf.ragged.constant([[1], [2, 3]])):
            with self.assertRaisesRegex(error, message):
                columns_to_bags([_column()], {"made": made, "shown": shown})

    def test_an_error_that_is_returned(self):
        for made in ([1, 2], tf.ragged.constant([[1], [2, 3]])):
            for shown in ([], [1], [1, 2, 3]):
                features = {"made": made, "shown": tf.constant(shown, tf.int64)}
                found = bags_module.hash_batch([_column()], features, True)
                self.assertIn("the same batch size", str(found.error.numpy()))


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (dict(key=""), "key", "a string that is not empty"),
        (dict(until=""), "until", "a string that is not empty"),
        (dict(until="made"), "until", "another feature"),
        (dict(boundaries=[]), "boundaries", "rising integers"),
        (dict(boundaries=[1, 1]), "boundaries", "rising integers"),
        (dict(boundaries=[0.5]), "boundaries", "rising integers"),
        (dict(boundaries=[2**61]), "boundaries", "rising integers"),
        (dict(boundaries="12"), "boundaries", "rising integers"),
        (dict(boundaries=5), "boundaries", "rising integers"),
        (dict(missing="0"), "missing", "an int or None"),
        (dict(optional=1), "optional", "True or False"),
        (dict(combiner="min"), "combiner", "one of sum, mean"),
        (dict(name=""), "name", "a string that is not empty"),
        (dict(namespace=""), "namespace", "a string that is not empty"),
    )
    def test_are_checked(self, arguments, argument, allowed):
        given = {"key": "made", "until": "shown", "boundaries": [1]}
        with self.assertRaisesRegex(
            ValueError, f"Argument `{argument}` of age_column must be {allowed}"
        ):
            age_column(**{**given, **arguments})

    def test_sequences_are_refused(self):
        with self.assertRaisesRegex(ValueError, "`column` of sequence_cat"):
            sequence_category_column(_column())

    def test_survive_a_configuration(self):
        serialize = keras.utils.serialize_keras_object
        for one in (_column(missing=0), crossed_column(["user", _column()])):
            again = keras.utils.deserialize_keras_object(serialize(one))
            self.assertEqual(again, one)
            self.assertEqual(hash(again), hash(one))
        self.assertIsInstance(_column(), AgeColumn)


class ModelTest(ColumnModelCases, tf.test.TestCase):
    """Columns of ages, through what a model goes through."""

    def columns(self):
        return [_column(missing=0), crossed_column(["user", _column()])]

    def data(self):
        rng = np.random.default_rng(3)
        shown = rng.integers(10**9, 2 * 10**9, 50)
        ages = rng.integers(0, 10_000, 50)
        features = {
            "made": np.where(np.arange(50) % 7, shown - ages, 0),
            "shown": shown,
            "user": rng.choice(["ann", "bob"], 50),
        }
        labels = (ages < 3_600).astype(np.float32)[:, np.newaxis]
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(20)


if __name__ == "__main__":
    tf.test.main()
