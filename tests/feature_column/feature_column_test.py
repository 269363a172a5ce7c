# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from ops_util import run_python

import tf_ext
from tf_ext import feature_column
from tf_ext.feature_column import (
    CategoryColumn,
    CrossedColumn,
    category_column,
    crossed_column,
)

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "LegacyKerasTest::test_columns_are_registered_with_tf_keras",
    ),
]

keras = tf.keras


class ClassesTest(parameterized.TestCase):
    @parameterized.parameters(
        (feature_column.CategoryColumn, category_column, "a"),
        (
            feature_column.CrossedColumn,
            crossed_column,
            (category_column("a"), category_column("b")),
        ),
        (
            feature_column.SequenceColumn,
            feature_column.sequence_category_column,
            category_column("a"),
        ),
        (feature_column.TimeColumn, feature_column.time_column, "a"),
        (feature_column.AgeColumn, feature_column.age_column, "a", "b", (1,)),
    )
    def test_defaults_are_those_of_the_function(self, kind, function, *given):
        """A config that an earlier version wrote lacks later arguments."""
        self.assertEqual(kind(*given), function(*given))


class CategoryColumnTest(parameterized.TestCase):
    def test_defaults(self):
        column = category_column("user")
        self.assertEqual(column.name, "user")
        self.assertEqual(column.namespace, "user")
        self.assertEqual(column.combiner, "sum")
        self.assertFalse(column.optional)

    def test_is_frozen_and_hashable(self):
        column = category_column("age", boundaries=[1, 2])
        self.assertEqual(column, category_column("age", boundaries=(1.0, 2.0)))
        self.assertLen({column, category_column("age", boundaries=[1, 2])}, 1)
        self.assertNotEqual(column, category_column("age", boundaries=[1]))
        with self.assertRaises(AttributeError):
            column.key = "other"

    @parameterized.parameters(1, 2**63 - 1)
    def test_limits_of_the_bucket_size(self, size):
        self.assertEqual(
            category_column("a", bucket_size=size).bucket_size, size
        )

    @parameterized.named_parameters(
        ("key_none", dict(key=None), "key", "a string that is not empty"),
        ("key_empty", dict(key=""), "key", "a string that is not empty"),
        (
            "key_empty_with_a_namespace",
            dict(key="", namespace="n"),
            "key",
            "a string that is not empty",
        ),
        (
            "namespace_with_its_end",
            dict(namespace="a\x1fb"),
            "namespace",
            "a string without '\\\\x1f'",
        ),
        ("namespace_empty", dict(namespace=""), "namespace", "a string that"),
        ("bucket_size_0", dict(bucket_size=0), "bucket_size", "an int from 1"),
        ("bucket_size_true", dict(bucket_size=True), "bucket_size", "an int"),
        ("bucket_size_float", dict(bucket_size=1.0), "bucket_size", "an int"),
        ("bucket_size_2_63", dict(bucket_size=2**63), "bucket_size", "an int"),
        (
            "hashing",
            dict(hashing="md5"),
            "hashing",
            "one of fingerprint, identity",
        ),
        (
            "identity_with_bucket_size",
            dict(hashing="identity", bucket_size=5),
            "bucket_size",
            'None with hashing="identity"',
        ),
        (
            "identity_with_boundaries",
            dict(hashing="identity", boundaries=[1]),
            "boundaries",
            'None with hashing="identity"',
        ),
        ("boundaries_empty", dict(boundaries=[]), "boundaries", "a list of at"),
        ("boundaries_text", dict(boundaries="12"), "boundaries", "a list of"),
        ("boundaries_bytes", dict(boundaries=b"12"), "boundaries", "a list of"),
        ("boundaries_number", dict(boundaries=3), "boundaries", "a list of at"),
        ("boundaries_huge", dict(boundaries=[10**400]), "boundaries", "a list"),
        ("boundaries_nan", dict(boundaries=[np.nan]), "boundaries", "a list"),
        ("boundaries_fall", dict(boundaries=[2, 1]), "boundaries", "a list of"),
        (
            "boundaries_equal_as_float32",
            dict(boundaries=[1.0, 1.0 + 1e-12]),
            "boundaries",
            "a list of at least one finite number, strictly increasing as "
            "float32, or None",
        ),
        (
            "boundary_beyond_float32",
            dict(boundaries=[1e39]),
            "boundaries",
            "a list of at least one finite number",
        ),
        ("missing_bytes", dict(missing=b"?"), "missing", "a string, an int or"),
        ("missing_true", dict(missing=True), "missing", "a string, an int or"),
        ("missing_float", dict(missing=1.0), "missing", "a string, an int or"),
        (
            "missing_text_with_boundaries",
            dict(missing="?", boundaries=[1]),
            "missing",
            "a number or None",
        ),
        (
            "missing_nan",
            dict(missing=float("nan"), boundaries=[1]),
            "missing",
            "finite; NaN is always missing",
        ),
        (
            "missing_text_with_identity",
            dict(missing="?", hashing="identity"),
            "missing",
            "an int or None",
        ),
        ("optional", dict(optional=1), "optional", "True or False"),
        (
            "combiner",
            dict(combiner="average"),
            "combiner",
            "one of sum, mean, sqrtn, max",
        ),
        ("weights_empty", dict(weights=""), "weights", "a string that is not"),
        (
            "weights_with_max",
            dict(weights="w", combiner="max"),
            "weights",
            'None with combiner="max"',
        ),
    )
    def test_refuses_(self, arguments, argument, allowed):
        with self.assertRaisesRegex(
            ValueError,
            f"Argument `{argument}` of category_column must be {allowed}.*"
            f"Received: {argument}=",
        ):
            category_column(**{"key": "user", **arguments})


class CrossedColumnTest(parameterized.TestCase):
    def test_defaults(self):
        item = category_column("item", namespace="product", bucket_size=10)
        column = crossed_column(["user", item])
        self.assertEqual(column.columns, (category_column("user"), item))
        self.assertEqual(column.name, "user_X_item")
        self.assertEqual(column.namespace, "user_X_product")
        self.assertEqual(column.combiner, "sum")
        self.assertEqual(column.weights, ())

    def test_is_frozen_and_hashable(self):
        column = crossed_column(["a", "b"], bucket_size=np.int32(7))
        self.assertLen({column, crossed_column(("a", "b"), bucket_size=7)}, 1)
        self.assertNotEqual(column, crossed_column(["b", "a"], bucket_size=7))
        with self.assertRaises(AttributeError):
            column.name = "other"

    @parameterized.named_parameters(
        ("one_column", dict(columns=["a"]), "columns", "a list of 2 to 64"),
        ("text", dict(columns="ab"), "columns", "a list of 2 to 64 columns"),
        ("65", dict(columns=["a"] * 65), "columns", "a list of 2 to 64 colum"),
        ("numbers", dict(columns=["a", 5]), "columns", "a list of 2 to 64 col"),
        (
            "a_cross",
            dict(columns=["a", crossed_column(["b", "c"])]),
            "columns",
            "a list of 2 to 64 columns of category_column, or keys",
        ),
        ("name_empty", dict(name=""), "name", "a string that is not empty"),
        ("namespace", dict(namespace="\x1f"), "namespace", "a string without"),
        ("bucket_size", dict(bucket_size=-1), "bucket_size", "an int from 1"),
        ("combiner", dict(combiner=None), "combiner", "one of sum, mean, sqr"),
        (
            "max_with_weights",
            dict(
                columns=["a", category_column("b", weights="w")], combiner="max"
            ),
            "combiner",
            "sum, mean or sqrtn, as a part has weights",
        ),
    )
    def test_refuses_(self, arguments, argument, allowed):
        with self.assertRaisesRegex(
            ValueError,
            f"Argument `{argument}` of crossed_column must be {allowed}.*"
            f"Received: {argument}=",
        ):
            crossed_column(**{"columns": ["a", "b"], **arguments})


class SerializationTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("plain", category_column("user")),
        (
            "all_arguments",
            category_column(
                "user",
                bucket_size=5,
                missing="?",
                namespace="n",
                optional=True,
                combiner="mean",
                weights="w",
            ),
        ),
        ("boundaries", category_column("a", boundaries=[0.1, 2], missing=-1.5)),
        ("identity", category_column("a", hashing="identity", missing=-1)),
        (
            "cross",
            crossed_column(
                ["a", category_column("b", boundaries=[1, 2])],
                bucket_size=9,
                name="x",
                namespace="y",
                combiner="mean",
            ),
        ),
    )
    def test_keras_gives_back_(self, column):
        text = json.dumps(keras.utils.serialize_keras_object(column))
        copy = keras.utils.deserialize_keras_object(json.loads(text))
        self.assertEqual(copy, column)
        self.assertEqual(hash(copy), hash(column))
        self.assertIsInstance(copy, CategoryColumn | CrossedColumn)
        self.assertIn("tf_ext", text)

    @parameterized.parameters(
        category_column("a", bucket_size=np.int64(5), missing=np.int32(-1)),
        category_column("a", boundaries=(1, 2)),
        crossed_column(["a", "b"], bucket_size=np.int64(5)),
    )
    def test_a_config_is_plain_json(self, column):
        config = column.get_config()
        self.assertEqual(json.loads(json.dumps(config)), config)


class LegacyKerasTest(absltest.TestCase):
    def test_columns_are_registered_with_tf_keras(self):
        script = """
import os
os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tf_keras
import tf_ext
column = tf_ext.feature_column.crossed_column(["a", "b"], bucket_size=3)
config = tf_keras.utils.serialize_keras_object(column)
print(tf_keras.utils.deserialize_keras_object(config) == column)
"""
        self.assertEqual(run_python(script).strip(), "True")


class PublicNamesTest(absltest.TestCase):
    def test_all(self):
        for name in tf_ext.feature_column.__all__:
            self.assertTrue(hasattr(tf_ext.feature_column, name), name)


if __name__ == "__main__":
    absltest.main()
