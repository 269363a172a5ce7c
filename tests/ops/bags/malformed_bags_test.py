# SPDX-License-Identifier: Apache-2.0
"""The same as malformed_input_test.py, for the ops that have no table."""

import tensorflow as tf
from absl.testing import parameterized
from ops_util import FLOAT32, FLOAT64, MODES, RefusalTestCase

from tf_ext import ops
from tf_ext.ops.bags import bag_ops


def _combine(
    rows=((1.0, 2.0), (3.0, 4.0)),
    inverse=(0, 1, 1),
    row_splits=(0, 2, 3),
    weights=None,
    combiners=("sum",),
):
    return ops.combine_bags(
        rows, inverse, row_splits, weights, combiners=combiners
    )


def _combine_grad(
    rows=((1.0, 2.0), (3.0, 4.0)),
    inverse=(0, 1, 1),
    row_splits=(0, 2, 3),
    weights=None,
    combiners=("sum",),
    gradient=None,
):
    gradient = tf.ones([2, 2]) if gradient is None else gradient
    return bag_ops.combine_bags_grad(
        gradient, rows, inverse, row_splits, weights, combiners=combiners
    )


BAG_CASES = (
    ("rows_of_rank_1", {"rows": [1.0]}, "rows must be a matrix", "is [1]"),
    (
        "rows_float64",
        {"rows": tf.ones([2, 2], tf.float64)},
        FLOAT64,
        FLOAT32,
    ),
    (
        "inverse_of_rank_2",
        {"inverse": [[0, 1, 1]]},
        "inverse must be a vector",
        "shape is [1,3]",
    ),
    (
        "inverse_int64",
        {"inverse": tf.constant([0, 1, 1], tf.int64)},
        "int64",
        "int32",
    ),
    (
        "inverse_negative",
        {"inverse": [0, -1, 1]},
        "inverse[1] is -1; it must be at least 0 and below the number of rows, "
        "2",
    ),
    (
        "inverse_beyond_the_rows",
        {"inverse": [0, 1, 2]},
        "inverse[2] is 2; it must be at least 0 and below the number of rows, "
        "2",
    ),
    (
        "inverse_of_2_to_the_31",
        {"inverse": [2**31 - 1, 0, 0]},
        "inverse[0] is 2147483647",
        "2",
    ),
    (
        "inverse_into_no_rows",
        {"rows": tf.zeros([0, 2])},
        "inverse[0] is 0",
        "number of rows, 0",
    ),
    (
        "splits_of_rank_2",
        {"row_splits": [[0, 2, 3]]},
        "row_splits must be a vector",
        "shape is [1,3]",
    ),
    (
        "splits_int32",
        {"row_splits": tf.constant([0, 2, 3])},
        "int32",
        "int64",
    ),
    (
        "splits_that_start_late",
        {"row_splits": [1, 2, 3]},
        "row_splits[0] is 1; it must be 0",
    ),
    (
        "splits_that_fall",
        {"row_splits": [0, 4, 3]},
        "row_splits[2] is 3, below the 4 before it",
    ),
    (
        "splits_that_are_negative",
        {"row_splits": [0, -1, 3]},
        "row_splits[1] is -1, below the 0 before it",
    ),
    (
        "splits_that_end_early",
        {"row_splits": [0, 1, 2]},
        "row_splits[2] is 2; the last one must be the number of values, 3",
    ),
    (
        "splits_that_claim_2_to_the_31_values",
        {"row_splits": [0, 3, 2**31]},
        "row_splits[2] is 2147483648; the last one must be the number of "
        "values, 3",
    ),
    (
        "splits_that_claim_2_to_the_62_values",
        {"row_splits": [0, 2**62, 2**62]},
        "row_splits[2] is 4611686018427387904; the last one must be",
    ),
    (
        "splits_of_no_value",
        {"row_splits": tf.zeros([0], tf.int64)},
        "row_splits must have 1 * batch_size + 1 values",
        "shape is [0]",
    ),
    (
        "splits_not_of_the_columns",
        {"combiners": ["sum", "mean", "sum"]},
        "row_splits must have 3 * batch_size + 1 values (there are 3 "
        "combiners)",
        "shape is [3]",
    ),
    (
        "weights_of_another_size",
        {"weights": [1.0, 1.0]},
        "weights must be a vector of 3 values (as inverse) or of none",
        "shape is [2]",
    ),
    (
        "weights_of_rank_2",
        {"weights": [[1.0, 1.0, 1.0]]},
        "weights must be a vector",
        "shape is [1,3]",
    ),
    (
        "weights_for_max",
        {"weights": [1.0, 1.0, 1.0], "combiners": ["max"]},
        "column 0 has combiner max and weights; max takes no weights",
    ),
    (
        "an_unknown_combiner",
        {"combiners": ["median"]},
        "median",
        '"sum", "mean", "sqrtn", "max"',
    ),
    ("no_combiner", {"combiners": []}, "combiners", "minimum 1"),
)


def _traced(arguments):
    """Tensors of the function that is being traced, if one is.

    TensorFlow fails with an assertion of its own for an eager tensor of the
    wrong type.
    """
    return {
        name: tf.identity(value) if tf.is_tensor(value) else value
        for name, value in arguments.items()
    }


class MalformedBagsTest(RefusalTestCase):
    @parameterized.named_parameters(*BAG_CASES)
    def test_combine_bags(self, arguments, *texts):
        self.assert_refused(lambda: _combine(**_traced(arguments)), *texts)

    @parameterized.named_parameters(*BAG_CASES)
    def test_combine_bags_grad(self, arguments, *texts):
        self.assert_refused(lambda: _combine_grad(**_traced(arguments)), *texts)

    @parameterized.named_parameters(
        ("of_another_batch", [3, 2]), ("of_another_dim", [2, 3]), ("flat", [4])
    )
    def test_combine_bags_grad_with_a_gradient(self, shape):
        self.assert_refused(
            lambda: _combine_grad(gradient=tf.ones(shape)),
            "gradient must be",
            "shape is [" + ",".join(map(str, shape)) + "]",
        )

    @parameterized.named_parameters(
        ("product", 2**62, 4, 1), ("size", 2**61, 1, 16)
    )
    def test_combine_bags_of_rows_that_claim_a_huge(
        self, dim, columns, batch_size
    ):
        with self.assertRaises(tf.errors.InvalidArgumentError) as raised:
            _combine(
                tf.zeros([0, dim]),
                tf.zeros([0], tf.int32),
                tf.zeros([columns * batch_size + 1], tf.int64),
                combiners=["sum"] * columns,
            )
        self.assertIn(str(dim), str(raised.exception))

    @parameterized.named_parameters(
        ("rank_0", tf.constant(1, tf.int64), 1, "signs must be a vector", "[]"),
        ("rank_2", [[1]], 1, "signs must be a vector", "[1,1]"),
        ("float32", tf.constant([1.0]), 1, "must be integers", "float32"),
        ("no_shards", [1], 0, "num_shards", "0", "minimum 1"),
        ("negative_shards", [1], -5, "num_shards", "-5", "minimum 1"),
        (
            "huge_shards",
            [1],
            2**62,
            "num_shards is 4611686018427387904; it must be from 1 to 1048576",
        ),
    )
    def test_unique_by_shard(self, signs, num_shards, *texts):
        self.assert_refused(
            lambda: ops.unique_by_shard(
                **_traced({"signs": signs, "num_shards": num_shards})
            ),
            *texts,
        )

    @parameterized.named_parameters(
        ("rows_of_rank_1", [4], [1, 2], [4], "rows must be a matrix", "[4]"),
        ("other_rows", [3, 2], [1, 2], [4], "rows must be of shape", "[3,2]"),
        ("other_dim", [4, 3], [1, 2], [4], "rows must be of shape", "[4,3]"),
        ("flat_shadow", [4, 2], [2], [4], "shadow must be a matrix", "[2]"),
        ("flat_signs", [4, 2], [1, 2], [4, 1], "signs must be a vector"),
        ("huge", [0, 2], [0, 2**62], [4], "rows must be of shape", "[0,2]"),
    )
    def test_route_gradient(self, rows, shadow, signs, *texts):
        self.assert_refused(
            lambda: ops.route_gradient(
                tf.zeros(rows), tf.zeros(shadow), tf.zeros(signs, tf.int64)
            ),
            *texts,
        )

    @parameterized.named_parameters(*MODES)
    def test_empty_tensors_are_right(self, mode):
        found = mode(lambda: ops.unique_by_shard(tf.zeros([0], tf.int64)))()
        self.assertEqual(found.unique.shape, [0])
        combined = mode(
            lambda: _combine(tf.zeros([0, 2]), tf.zeros([0], tf.int32), [0])
        )()
        self.assertEqual(combined.shape, [0, 2])


if __name__ == "__main__":
    tf.test.main()
