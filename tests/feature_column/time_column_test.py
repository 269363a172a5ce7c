# SPDX-License-Identifier: Apache-2.0
"""The column of the hour or the weekday of a time."""

import datetime
import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases.column_model_cases import ColumnModelCases

import tf_ext
from tf_ext._keras import keras
from tf_ext.feature_column import (
    TimeColumn,
    category_column,
    columns_to_bags,
    crossed_column,
    sequence_category_column,
    time_column,
)

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ModelTest::test_hashed_before",
        "ModelTest::test_trains_saves_and_serves",
    ),
]

_UNITS = {
    "hour": lambda time: time.hour,
    "weekday": lambda time: time.weekday(),
    "hour_of_week": lambda time: 24 * time.weekday() + time.hour,
}
# Seconds around the begin of days and hours, before 1970 too.
_TIMES = [
    day * 86_400 + second
    for day in (-20_000, -8, -1, 0, 3, 10_957, 19_782, 20_454)
    for second in (-3_601, -3_600, -1, 0, 1, 3_599, 3_600, 45_296)
]


def _local(seconds, offset_minutes):
    epoch = datetime.datetime(1970, 1, 1)
    return epoch + datetime.timedelta(seconds=seconds, minutes=offset_minutes)


def _ids_as(column, ids):
    """The signs of integers in the namespace of a column."""
    plain = category_column("x", namespace=column.namespace)
    return plain.signs(np.array(ids, np.int64))


class SignsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.product(unit=list(_UNITS), offset=[0, 330, -300, 1439, -1])
    def test_are_those_of_the_local_calendar(self, unit, offset):
        column = time_column("time", unit, utc_offset_minutes=offset)
        ids = [_UNITS[unit](_local(time, offset)) for time in _TIMES]
        self.assertAllEqual(column.signs(_TIMES), _ids_as(column, ids))

    @parameterized.parameters(np.int8, np.int32, np.uint16, np.uint32)
    def test_of_each_type(self, dtype):
        times = np.array([0, 100, 127], dtype)
        column = time_column("time")
        self.assertAllEqual(column.signs(times), _ids_as(column, [0, 0, 0]))

    def test_no_time_overflows(self):
        times = np.array([-(2**63), 2**63 - 1], np.int64)
        # Python's dates end before; a day has 86,400 seconds.
        hours = [int(time) % 86_400 // 3_600 for time in times]
        for offset in (0, 1439, -1439):
            column = time_column("time", utc_offset_minutes=offset)
            moved = [
                (int(time) + 60 * offset) % 86_400 // 3_600 for time in times
            ]
            self.assertAllEqual(column.signs(times), _ids_as(column, moved))
        self.assertLen(set(hours), 2)

    def test_missing_times_are_left_out(self):
        column = time_column("time", missing=0, utc_offset_minutes=60)
        times = tf.constant([[0, 3_600], [0, 0], [-3_601, -3_600]])
        bags = columns_to_bags([column], {"time": times})
        self.assertAllEqual(bags.row_splits, [0, 1, 1, 3])
        self.assertAllEqual(bags.signs, _ids_as(column, [2, 23, 0]))

    def test_an_optional_time_that_is_not_there(self):
        column = time_column("time", optional=True)
        user = category_column("user")
        features = {"user": tf.constant(["ann", "bob"])}
        bags = columns_to_bags([user, column], features)
        self.assertAllEqual(bags.row_splits, [0, 1, 2, 2, 2])
        with self.assertRaisesRegex(ValueError, "'time' of column 'time_hour'"):
            columns_to_bags([user, time_column("time")], features)

    def test_beside_other_columns_of_the_feature(self):
        columns = [
            category_column("time"),
            time_column("time"),
            time_column("time", "weekday"),
            time_column("time", utc_offset_minutes=60, name="berlin"),
            time_column("time", missing=0, name="there"),
        ]
        times = {"time": tf.constant([0, 7_200], tf.int64)}
        bags = columns_to_bags(columns, times)
        apart = [columns_to_bags([column], times).signs for column in columns]
        self.assertAllEqual(bags.signs, tf.concat(apart, 0))
        self.assertAllEqual(bags.row_splits, [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9])
        identities = {column.hashing_identity for column in columns}
        self.assertLen(identities, 5)

    def test_ragged_times_in_bags_and_sequences(self):
        column = time_column("times", missing=-1, combiner="mean")
        times = {"times": tf.ragged.constant([[0, -1, 7_200], []], tf.int64)}
        bags = columns_to_bags([column], times)
        self.assertAllEqual(bags.signs, _ids_as(column, [0, 2]))
        self.assertAllEqual(bags.row_splits, [0, 2, 2])
        layer = tf_ext.layers.EmbeddingFeatures(
            [sequence_category_column(column, max_length=3)],
            tf_ext.SparseTable("t", 2, initializer="normal"),
            concatenate=False,
        )
        mask = layer.compute_mask(times)["times_hour"]
        self.assertAllEqual(mask, [[True, False, True], [False] * 3])


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("key", dict(key=""), "key", "a string that is not empty"),
        ("unit", dict(unit="minute"), "unit", "one of hour, weekday, hour_of_"),
        (
            "hours",
            dict(utc_offset_minutes=1440),
            "utc_offset_minutes",
            "an int",
        ),
        ("part", dict(utc_offset_minutes=0.5), "utc_offset_minutes", "an int"),
        ("missing", dict(missing="0"), "missing", "an int or None"),
        ("optional", dict(optional=1), "optional", "True or False"),
        ("combiner", dict(combiner="min"), "combiner", "one of sum, mean"),
        ("name", dict(name=""), "name", "a string that is not empty"),
        ("namespace", dict(namespace=""), "namespace", "a string that is not"),
    )
    def test_are_checked(self, arguments, argument, allowed):
        with self.assertRaisesRegex(
            ValueError,
            f"Argument `{argument}` of time_column must be {allowed}",
        ):
            time_column(**{"key": "time", **arguments})

    @parameterized.parameters("float32", "string", "bool", "uint64")
    def test_values_of_another_type(self, dtype):
        times = tf.cast([0], dtype) if dtype != "string" else tf.constant(["0"])
        with self.assertRaisesRegex(
            ValueError, f"seconds since 1970, but is of {dtype}: cast it"
        ):
            columns_to_bags([time_column("time")], {"time": times})

    def test_survive_a_configuration(self):
        column = time_column(
            "time", "weekday", utc_offset_minutes=-60, missing=0
        )
        serialize = keras.utils.serialize_keras_object
        for one in (
            column,
            crossed_column(["user", column]),
            sequence_category_column(column),
        ):
            again = keras.utils.deserialize_keras_object(serialize(one))
            self.assertEqual(again, one)
            self.assertEqual(hash(again), hash(one))
        self.assertEqual(column.name, "time_weekday")
        self.assertIsInstance(column, TimeColumn)


class ModelTest(ColumnModelCases, tf.test.TestCase):
    """Columns of times, through what a model goes through."""

    def columns(self):
        hour = time_column("time", utc_offset_minutes=60)
        return [
            hour,
            time_column("time", "weekday", missing=0),
            crossed_column(["user", hour]),
        ]

    def data(self):
        rng = np.random.default_rng(3)
        times = rng.integers(0, 2_000_000_000, 50)
        times[::7] = 0
        features = {
            "time": tf.constant(times),
            "user": tf.constant(rng.choice(["ann", "bob"], 50)),
        }
        hours = (times + 3_600) % 86_400 // 3_600
        labels = (hours < 12).astype(np.float32)[:, np.newaxis]
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(20)

    def test_of_a_model_that_keras_builds_with_floats(self):
        @keras.utils.register_keras_serializable("time_column_test")
        class Subclassed(keras.Model):
            def __init__(self, embed, **kwargs):
                super().__init__(**kwargs)
                self.embed = embed

            def call(self, inputs):
                return self.embed(inputs)

            def get_config(self):
                serialize = keras.utils.serialize_keras_object
                return {"embed": serialize(self.embed)}

            @classmethod
            def from_config(cls, config):
                deserialize = keras.utils.deserialize_keras_object
                return cls(deserialize(config["embed"]))

        table = tf_ext.SparseTable("rows", 2, initializer="normal", seed=7)
        model = Subclassed(
            tf_ext.layers.EmbeddingFeatures([time_column("time")], table)
        )
        times = {"time": tf.constant([[0], [3_600]], tf.int64)}
        wanted = model(times)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "model.keras")
            model.save(path)
            again = keras.models.load_model(path)
        self.assertAllEqual(again(times), wanted)
        self.assertTrue(again.built)


if __name__ == "__main__":
    tf.test.main()
