# SPDX-License-Identifier: Apache-2.0
"""Batches that are refused: by an exception, or by an error as a value."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tf_ext.feature_column import (
    category_column,
    columns_to_bags,
    crossed_column,
)
from tf_ext.feature_column.bags import hash_batch

pytestmark = pytest.mark.slow_tests(
    "RefusedBatchTest::*_order",
    "RefusedBatchTest::test__batch_sizes_that_differ",
    "RefusedBatchTest::test__weights_of_more_indices",
    "RefusedBatchTest::test__weights_of_no_indices",
    "RefusedBatchTest::test_a_graph_knows_as_many_shapes",
    "RefusedBatchTest::test_as_a_value__sparse_beyond_its_shape",
    "RefusedBatchTest::test_as_a_value__weights_of_another_*",
    "RefusedBatchTest::test_as_a_value__weights_of_more_*",
    "RefusedBatchTest::test_as_a_value__weights_of_no_*",
    "RefusedBatchTest::test_as_a_value__weights_of_other_splits",
)

STRUCTURE = (
    "The weights 'w' must have the structure of the feature 'tags', but their "
    "indices or row_splits differ."
)


def _bags_or_error(columns, inputs):
    hashed = hash_batch(columns, inputs, return_error=True)
    return hashed.bags, hashed.error


def _sparse(indices, values, rows):
    return tf.SparseTensor(
        tf.reshape(tf.constant(indices, tf.int64), [-1, 2]), values, [rows, 2]
    )


def _ragged(values, row_splits):
    return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)


def _weighted(tags, weights):
    column = category_column("tags", weights="w")
    return [column], {"tags": tags, "w": weights}


def _tags(tags, **more):
    columns = [category_column("tags")]
    columns += [category_column(key, optional=True) for key in ("more", *more)]
    return columns, {"tags": tags, **more}


# (name, (columns, features), message or either, size of row_splits).
CASES = (
    (
        "sparse_out_of_order",
        _tags(_sparse([[1, 0], [0, 0]], ["a", "b"], 2)),
        "The indices of the SparseTensor of feature 'tags' must be in "
        "row-major order: use tf.sparse.reorder.",
        5,
    ),
    (
        "sparse_beyond_its_shape",
        _tags(_sparse([[0, 0], [5, 0]], ["a", "b"], 2)),
        "must end at its number of values, which is 2, but end at 1",
        5,
    ),
    (
        "ragged_that_falls",
        _tags(_ragged(["a", "b"], [0, 2, 1, 2])),
        "must not decrease, but go from 2 to 1 at position 2.",
        7,
    ),
    (
        "weights_of_other_splits",
        _weighted(_ragged(["a"], [0, 1, 1]), _ragged([1.0], [0, 0, 1])),
        STRUCTURE,
        3,
    ),
    (
        "weights_of_more_splits",
        _weighted(_ragged(["a"], [0, 1, 1, 1]), _ragged([1.0], [0, 1, 1])),
        (
            "must have the structure of the feature 'tags', whose shape is "
            "(3, None), but their shape is (2, None).",
            STRUCTURE,
        ),
        4,
    ),
    (
        "weights_of_other_indices",
        _weighted(_sparse([[0, 0]], ["a"], 1), _sparse([[0, 1]], [1.0], 1)),
        STRUCTURE,
        2,
    ),
    (
        "weights_of_more_indices",
        _weighted(
            _sparse([[0, 0], [1, 0]], ["a", "b"], 3),
            _sparse([[0, 0], [1, 0], [2, 0]], [1.0, 2.0, 3.0], 3),
        ),
        STRUCTURE,
        4,
    ),
    (
        "weights_of_no_indices",
        _weighted(
            _sparse([[0, 0]], ["a"], 1),
            _sparse([], np.zeros([0], np.float32), 1),
        ),
        STRUCTURE,
        2,
    ),
    (
        "weights_of_another_size",
        _weighted(tf.constant([["a"], ["b"]]), tf.ones([2, 2])),
        (
            "must have the structure of the feature 'tags', whose shape is "
            "(2, 1), but their shape is (2, 2).",
            "weights[0] must have 2 values, one for each of values[0]",
        ),
        3,
    ),
    (
        "weights_of_another_order",
        _weighted(
            _sparse([[1, 0], [0, 0]], ["a", "b"], 2),
            _sparse([[0, 0], [1, 0]], [1.0, 2.0], 2),
        ),
        "The indices of the SparseTensor of feature 'tags' must be in",
        3,
    ),
    (
        "batch_sizes_that_differ",
        _tags(tf.constant(["a", "b"]), user=tf.constant([1, 2, 3])),
        "must have the same batch size, but",
        7,
    ),
    (
        "batch_sizes_that_differ_beside_an_order",
        _tags(
            _sparse([[1, 0], [0, 0]], ["a", "b"], 2),
            user=tf.constant([1, 2, 3]),
        ),
        ("in row-major order", "must have the same batch size, but"),
        7,
    ),
    (
        "cross_that_explodes",
        (
            [crossed_column(["tags", "user", "item"])],
            {key: tf.zeros([1, 1 << 11], tf.int64) for key in ("tags", "user")}
            | {"item": tf.zeros([1, 1 << 10], tf.int64)},
        ),
        "The batch makes more than 2147483647 signs",
        2,
    ),
)


def _of_unknown_shapes(function):
    """Calls it in a graph that knows the kinds and types of features alone."""

    def spec(feature):
        if isinstance(feature, tf.SparseTensor):
            return tf.SparseTensorSpec([None, None], feature.dtype)
        if isinstance(feature, tf.RaggedTensor):
            return tf.RaggedTensorSpec([None, None], feature.dtype)
        return tf.TensorSpec(None, feature.dtype)

    def traced(columns, features):
        signature = {key: spec(feature) for key, feature in features.items()}
        return tf.function(
            lambda inputs: function(columns, inputs), [signature]
        )(features)

    return traced


def _captured(function):
    """Calls it in a graph that knows all that can be known."""
    return lambda *case: tf.function(lambda: function(*case))()


MODES = (
    ("eagerly", lambda function: function),
    ("in_a_function", _captured),
    ("of_unknown_shapes", _of_unknown_shapes),
)


class RefusedBatchTest(tf.test.TestCase, parameterized.TestCase):
    def assert_says(self, text, message):
        messages = (message,) if isinstance(message, str) else message
        self.assertTrue(any(m in text for m in messages), text)

    @parameterized.named_parameters(*CASES)
    def test_(self, case, message, _):
        for name, mode in MODES:
            with self.subTest(name):
                with self.assertRaises(
                    (tf.errors.InvalidArgumentError, ValueError)
                ) as raised:
                    mode(columns_to_bags)(*case)
                # In a graph TensorFlow escapes quotes of an assertion.
                self.assert_says(
                    str(raised.exception).replace("\\'", "'"), message
                )

    @parameterized.named_parameters(*CASES)
    def test_as_a_value_(self, case, message, splits):
        with self.assertRaises(
            (tf.errors.InvalidArgumentError, ValueError)
        ) as raised:
            columns_to_bags(*case)
        for name, mode in MODES:
            with self.subTest(name):
                bags, error = mode(_bags_or_error)(*case)
                text = error.numpy().decode()
                self.assert_says(text, message)
                if name == "eagerly":
                    self.assertIn(text, str(raised.exception))
                self.assertAllEqual(bags.signs, np.zeros([0], np.int64))
                self.assertAllEqual(bags.row_splits, np.zeros(splits, np.int64))
                self.assertAllEqual(bags.weights, np.zeros([0], np.float32))

    @parameterized.named_parameters(
        (
            "checked_by_the_op_alone",
            _tags(tf.constant([["a", "b"], ["c", "d"]])),
        ),
        ("sparse", _tags(_sparse([[0, 0], [1, 0]], ["a", "b"], 3))),
        (
            "weighted",
            _weighted(
                _ragged(["a", "b"], [0, 1, 1, 2]),
                _ragged([1.0, 2.0], [0, 1, 1, 2]),
            ),
        ),
        ("empty", _tags(_sparse([], np.zeros([0], str), 0))),
    )
    def test_no_error_(self, case):
        for name, mode in MODES:
            with self.subTest(name):
                bags, error = mode(_bags_or_error)(*case)
                self.assertEqual(error, b"")
                for found, expected in zip(bags, columns_to_bags(*case)):
                    self.assertAllEqual(found, expected)

    def test_what_every_worker_finds_is_an_exception(self):
        columns, features = _tags(tf.constant(["a"]))
        for inputs, message in (
            ({}, "The batch size is unknown|is missing from the inputs"),
            ({"tags": tf.constant([1j])}, "but is of complex128: cast it"),
            ({"tags": tf.constant("a")}, "but is a scalar"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                _bags_or_error(columns, inputs)
        columns = [category_column("tags", weights="w")]
        for weights in (tf.ones([1, 1]), tf.constant([1])):
            with self.assertRaisesRegex(ValueError, "The weights 'w'"):
                _bags_or_error(columns, {**features, "w": weights})

    def test_sizes_that_are_known_are_compared_while_tracing(self):
        columns = [category_column("tags", weights="w")]
        traced = tf.function(lambda batch: columns_to_bags(columns, batch))
        batch = {"tags": tf.constant([["a"], ["b"]]), "w": tf.ones([2, 2])}
        message = r"is \(2, 1\), but their shape is \(2, 2\)"
        with self.assertRaisesRegex(ValueError, message):
            traced.get_concrete_function(batch)

    def test_a_graph_knows_as_many_shapes(self):
        for tags in (
            _sparse([[0, 0]], ["a"], 1),
            tf.constant([["a", "b"], ["c", "d"]]),
        ):
            columns, features = _tags(tags)

            @tf.function
            def compare():
                bags, error = _bags_or_error(columns, features)  # noqa: B023
                expected = columns_to_bags(columns, features)  # noqa: B023
                self.assertEqual(error.shape, [])
                for one, other in zip(bags, expected):
                    self.assertEqual(one.shape.as_list(), other.shape.as_list())
                return error

            self.assertEqual(compare(), b"")


if __name__ == "__main__":
    tf.test.main()
