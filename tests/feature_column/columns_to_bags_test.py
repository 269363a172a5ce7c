# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from ops_util import INT64_MIN, MODES, named_cases

from tf_ext import hashing
from tf_ext.feature_column import (
    category_column,
    columns_to_bags,
    crossed_column,
)

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ColumnsToBagsTest::test_one_feature_of_many_columns_is_one_input",
    ),
]

keras = tf.keras

BAGS = [["a", "b"], [], ["c", "a", "c"]]
WEIGHTS = [[0.5, 2.0], [], [3.0, 4.0, 5.0]]
FLAT_BAGS = ["a", "b", "c", "a", "c"]
FLAT_WEIGHTS = [0.5, 2.0, 3.0, 4.0, 5.0]
SPLITS = [0, 2, 2, 5]


def _sparse(bags):
    return tf.ragged.constant(bags).to_sparse()


def _padded(bags, padding):
    return tf.ragged.constant(bags).to_tensor(padding)


class ColumnsToBagsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        *named_cases(
            kind=[
                ("ragged", tf.ragged.constant(BAGS)),
                (
                    "ragged_int32_splits",
                    tf.ragged.constant(BAGS, row_splits_dtype=tf.int32),
                ),
                ("sparse", _sparse(BAGS)),
                ("padded", _padded(BAGS, "?")),
                ("padded_rank_3", _padded(BAGS, "?")[:, :, tf.newaxis]),
                ("array", _padded(BAGS, "?").numpy()),
            ],
            mode=MODES,
        )
    )
    def test_bags_are_the_same_as_(self, kind, mode):
        column = category_column("tags", missing="?")
        bags = mode(lambda: columns_to_bags([column], {"tags": kind}))()
        self.assertAllEqual(
            bags.signs, hashing.hash_category(FLAT_BAGS, "tags")
        )
        self.assertAllEqual(bags.row_splits, SPLITS)
        self.assertAllEqual(bags.weights, np.zeros([0], np.float32))

    @parameterized.named_parameters(
        *named_cases(
            kind=[
                ("ragged", tf.ragged.constant),
                ("sparse", _sparse),
            ],
            mode=MODES,
        )
    )
    def test_weights_of_(self, kind, mode):
        column = category_column("tags", weights="w")
        cross = crossed_column([column, category_column("user")])
        bags = mode(
            lambda: columns_to_bags(
                [column, category_column("user"), cross],
                {
                    "tags": kind(BAGS),
                    "w": kind(WEIGHTS),
                    "user": tf.constant([1, 2, 3]),
                },
            )
        )()
        flat = FLAT_WEIGHTS
        self.assertAllEqual(bags.weights, flat + [1.0] * 3 + flat)
        self.assertAllEqual(bags.row_splits, [*SPLITS, 6, 7, 8, 10, 10, 13])

    def test_weights_of_padded_values(self):
        column = category_column("tags", weights="w", missing="?")
        bags = columns_to_bags(
            [column],
            {"tags": _padded(BAGS, "?"), "w": _padded(WEIGHTS, -7.0)},
        )
        self.assertAllEqual(bags.weights, FLAT_WEIGHTS)

    def test_one_feature_of_many_columns_is_one_input(self):
        columns = [
            category_column("user"),
            category_column("user", namespace="n", bucket_size=3),
            crossed_column(["user", "item"]),
        ]

        @tf.function
        def hash_all(users, items):
            return columns_to_bags(columns, {"user": users, "item": items})

        spec = tf.TensorSpec([None], tf.int64)
        graph = hash_all.get_concrete_function(spec, spec).graph
        ops = [o for o in graph.get_operations() if "HashCategory" in o.type]
        self.assertLen(ops, 1)
        self.assertEqual(ops[0].get_attr("N"), 2)

    @parameterized.named_parameters(
        (dtype, dtype)
        for dtype in "int8 int16 int32 int64 uint8 uint16 uint32".split()
    )
    def test_integers_of_(self, dtype):
        info = np.iinfo(dtype)
        values = np.array([5, 0, info.min, info.max], dtype)
        bags = columns_to_bags([category_column("n")], {"n": values})
        self.assertAllEqual(
            bags.signs, hashing.hash_category(values.astype(str), "n")
        )

    @parameterized.named_parameters(
        (dtype, dtype)
        for dtype in "float16 bfloat16 float32 float64 int32 int64".split()
    )
    def test_boundaries_of_(self, dtype):
        boundaries = [-1.0, 0.0, 0.5, 2.0]
        values = tf.cast([-3.0, -1.0, 0.0, 1.0, 2.0, 99.0], dtype)
        layer = keras.layers.Discretization(bin_boundaries=boundaries)
        buckets = layer(tf.cast(values, tf.float32))
        bags = columns_to_bags(
            [category_column("n", boundaries=boundaries)], {"n": values}
        )
        self.assertAllEqual(
            bags.signs, hashing.hash_category(np.array(buckets), "n")
        )

    @parameterized.named_parameters(
        ("text", ["", "?", "a"], dict(missing="?"), ["", "a"]),
        ("integer_of_texts", ["-1", "1"], dict(missing=-1), ["1"]),
        ("integer", [-1, 0, 5], dict(missing=-1), [0, 5]),
        ("int64_min", [INT64_MIN, 0], dict(missing=INT64_MIN), [0]),
        ("text_of_integers", [-1, 0], dict(missing="-1"), [0]),
        ("none_named", ["", "-1"], {}, ["", "-1"]),
        (
            "float",
            [0.1, -2.0, np.nan, 5.0],
            dict(missing=0.1, boundaries=[0]),
            [0, 1],
        ),
        (
            "float_of_many_digits",
            [0.12345, 0.12, -2.0],
            dict(missing=0.12345, boundaries=[0, 0.121]),
            [1, 0],
        ),
        (
            "float_that_is_whole",
            [-999.0, 5.0],
            dict(missing=-999.0, boundaries=[0]),
            [1],
        ),
        (
            "whole_float_of_integers",
            [-999, 5],
            dict(missing=-999.0, boundaries=[0]),
            [1],
        ),
    )
    def test_missing_(self, values, arguments, kept):
        bags = columns_to_bags(
            [category_column("n", **arguments)], {"n": tf.constant(values)}
        )
        self.assertAllEqual(bags.signs, hashing.hash_category(kept, "n"))

    def test_identity(self):
        bags = columns_to_bags(
            [category_column("n", hashing="identity", missing=0)],
            {"n": tf.constant([[-1, 0], [INT64_MIN, 5]])},
        )
        self.assertAllEqual(bags.signs, [-1, INT64_MIN, 5])
        self.assertAllEqual(bags.row_splits, [0, 1, 3])

    def test_cross_with_buckets_and_boundaries(self):
        cross = crossed_column(
            [
                category_column("user", bucket_size=10),
                category_column("age", boundaries=[18]),
            ],
            bucket_size=1000,
        )
        bags = columns_to_bags(
            [cross],
            {"user": tf.constant(["a", "b"]), "age": tf.constant([17.0, 20.0])},
        )
        self.assertAllEqual(
            bags.signs,
            hashing.hash_cross(
                [["a", "b"], [17.0, 20.0]],
                "user_X_age",
                bucket_size=1000,
                part_bucket_sizes=[10, None],
                part_boundaries=[None, [18]],
            ),
        )

    @parameterized.named_parameters(*MODES)
    def test_optional_features_that_are_not_there_are_empty(self, mode):
        columns = [
            category_column("a", optional=True, missing="?"),
            category_column("user"),
            category_column("b", optional=True, hashing="identity", missing=0),
            category_column("c", optional=True, boundaries=[1], missing=0),
            category_column("d", optional=True, weights="w"),
            crossed_column(["user", category_column("a", optional=True)]),
        ]
        bags = mode(
            lambda: columns_to_bags(columns, {"user": tf.constant([1, 2])})
        )()
        self.assertAllEqual(bags.signs, hashing.hash_category([1, 2], "user"))
        self.assertAllEqual(bags.row_splits, [0, 0, 0] + [1] + [2] * 9)

    def test_dataset_map_and_empty_batch(self):
        columns = [category_column("user"), category_column("tags")]
        dataset = tf.data.Dataset.from_tensor_slices(
            {"user": [1, 2, 3], "tags": tf.ragged.constant(BAGS)}
        ).batch(2)
        found = [
            bags.row_splits.numpy().tolist()
            for bags in dataset.map(lambda x: columns_to_bags(columns, x))
        ]
        self.assertEqual(found, [[0, 1, 2, 4, 4], [0, 1, 4]])
        empty = columns_to_bags(
            columns,
            {
                "user": tf.zeros([0], tf.int64),
                "tags": tf.RaggedTensor.from_row_splits(
                    tf.constant([], tf.string), [0]
                ),
            },
        )
        self.assertAllEqual(empty.row_splits, [0])


FEATURES = {
    "user": tf.constant([1, 2, 3]),
    "tags": tf.ragged.constant(BAGS),
    "text": tf.constant(["a", "b", "c"]),
    "floats": tf.constant([1.0, 2.0, 3.0]),
}


class RefusedFeaturesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        (
            "missing_feature",
            category_column("other"),
            {},
            "The feature 'other' of column 'other' is missing from the inputs. "
            "Present are: 'floats', 'tags', 'text', 'user'.",
        ),
        (
            "missing_part_of_a_cross",
            crossed_column(["user", "other"]),
            {},
            "The feature 'other' of column 'other' is missing",
        ),
        (
            "missing_weights",
            category_column("tags", weights="w"),
            {},
            "The weights 'w' of column 'tags' are missing from the inputs.",
        ),
        (
            "nothing_there",
            category_column("other", optional=True),
            {},
            "The batch size is unknown, because the features of all "
            "columns are missing: other. Present are: 'floats', 'tags',",
        ),
        (
            "complex",
            category_column("user"),
            {"user": tf.constant([1], tf.complex64)},
            "The feature 'user' must be of strings, integers, booleans or "
            "floats, but is of complex64: cast it",
        ),
        (
            "floats_without_boundaries",
            category_column("floats"),
            {},
            "The feature 'floats' has floats, which cannot be ids, and column "
            "'floats' has no boundaries",
        ),
        (
            "texts_with_boundaries",
            category_column("text", boundaries=[1]),
            {},
            "column 'text' has boundaries, which need numbers",
        ),
        (
            "texts_with_identity",
            category_column("text", hashing="identity"),
            {},
            "column 'text' has hashing=\"identity\", which needs integers.",
        ),
        (
            "scalar",
            category_column("user"),
            {"user": tf.constant(5)},
            "The feature 'user' must have a batch dimension, but is a scalar.",
        ),
        (
            "ragged_rank_2",
            category_column("tags"),
            {"tags": tf.ragged.constant([[["a"], []]])},
            "is a RaggedTensor of shape (1, None, None), but its shape must be",
        ),
        (
            "sparse_rank_3",
            category_column("tags"),
            {"tags": tf.sparse.from_dense(tf.ones([1, 2, 3], tf.int64))},
            "is a SparseTensor of shape (1, 2, 3), but its shape must be",
        ),
        (
            "not_a_tensor",
            category_column("user"),
            {"user": object()},
            "The feature 'user' must be a tensor, a tf.SparseTensor, a "
            "tf.RaggedTensor or an array. Received: object",
        ),
        (
            "weights_of_another_kind",
            category_column("tags", weights="floats"),
            {},
            "must have the structure of the feature 'tags', which is a "
            "RaggedTensor, but are a",
        ),
        (
            "weights_of_another_shape",
            category_column("user", weights="w"),
            {"w": tf.ones([3, 1])},
            "whose shape is (3,), but their shape is (3, 1).",
        ),
        (
            "weights_of_integers",
            category_column("user", weights="user"),
            {},
            "The weights 'user' of column 'user' must be floats, but are of",
        ),
    )
    def test_(self, column, more, message):
        with self.assertRaises(ValueError) as raised:
            columns_to_bags([column], {**FEATURES, **more})
        self.assertIn(message, str(raised.exception))

    def test_inputs_that_are_no_dict(self):
        with self.assertRaisesRegex(ValueError, "must be a dict of features"):
            columns_to_bags([category_column("a")], [tf.constant([1])])

    def test_no_columns(self):
        with self.assertRaisesRegex(ValueError, "must be a non-empty seq"):
            columns_to_bags([], FEATURES)


if __name__ == "__main__":
    tf.test.main()
