# SPDX-License-Identifier: Apache-2.0
"""Columns of sequences: which ids they keep, and at which positions."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

from tf_ext._keras import keras
from tf_ext.feature_column import (
    SequenceColumn,
    category_column,
    columns_to_bags,
    crossed_column,
    sequence_category_column,
)
from tf_ext.feature_column.bags import hash_batch

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "BatchErrorsTest::test_are_raised_and_returned_gap",
        "BatchErrorsTest::test_are_raised_and_returned_lengths_in_a_cross",
        "BatchErrorsTest::test_are_raised_and_returned_row_splits",
        "BatchErrorsTest::test_are_raised_and_returned_sizes_*",
        "PositionsTest::test_a_static_shape",
        "PositionsTest::test_in_a_function_of_unknown_sizes0",
        "PositionsTest::test_padded_equals_ragged_and_sparse_as_it_is",
        "PositionsTest::test_padded_equals_ragged_and_sparse_last_with_gap",
        "PositionsTest::test_padded_equals_ragged_and_sparse_longer",
    ),
]

_ONE_BATCH_SIZE = (
    "must have the same batch size, but that of a sequence differs"
)


def _bags_or_error(columns, inputs):
    hashed = hash_batch(columns, inputs, return_error=True)
    return hashed.bags, hashed.error


def _ids(key="h", **kwargs):
    """A column whose values are the signs."""
    return category_column(key, hashing="identity", missing=0, **kwargs)


def _sequence(column=None, **kwargs):
    return sequence_category_column(column or _ids(), **kwargs)


def _ragged(values, dtype=tf.int64):
    return tf.ragged.constant(values, dtype, ragged_rank=1)


def _positions(column, inputs):
    """The sign at each position, 0 where the mask is False, of examples."""
    found = hash_batch([column], inputs, return_error=False)
    mask = found.masks[column].numpy()
    signs = np.zeros(mask.shape, np.int64)
    signs[mask] = found.bags.signs.numpy()
    lengths = np.diff(found.bags.row_splits.numpy())
    np.testing.assert_array_equal(lengths, mask.sum(1))
    return signs.tolist()


class PositionsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("as_it_is", {}, [[5, 6, 0, 0], [7, 0, 9, 8], [0, 0, 0, 0]]),
        (
            "longer",
            {"max_length": 5},
            [[5, 6, 0, 0, 0], [7, 0, 9, 8, 0], 5 * [0]],
        ),
        ("last", {"max_length": 2}, [[5, 6], [9, 8], [0, 0]]),
        ("last_with_gap", {"max_length": 3}, [[5, 6, 0], [0, 9, 8], 3 * [0]]),
        (
            "first",
            {"max_length": 3, "truncating": "post"},
            [[5, 6, 0], [7, 0, 9], [0, 0, 0]],
        ),
        ("one", {"max_length": 1, "truncating": "post"}, [[5], [7], [0]]),
    )
    def test_padded_equals_ragged_and_sparse(self, kwargs, expected):
        column = _sequence(**kwargs)
        padded = tf.constant([[5, 6, 0, 0], [7, 0, 9, 8], [0, 0, 0, 0]])
        ragged = _ragged([[5, 6], [7, 0, 9, 8], []])
        sparse = ragged.to_sparse()
        for feature in (padded, ragged, sparse):
            self.assertEqual(_positions(column, {"h": feature}), expected)

    def test_padding_at_the_start_keeps_its_place(self):
        features = {"h": tf.constant([[0, 0, 5, 6], [0, 7, 8, 9]])}
        self.assertEqual(
            _positions(_sequence(), features), [[0, 0, 5, 6], [0, 7, 8, 9]]
        )
        last = _sequence(max_length=3)
        self.assertEqual(_positions(last, features), [[0, 5, 6], [7, 8, 9]])

    def test_lengths_of_ragged_features_count_missing_values(self):
        column = _sequence(max_length=2)
        features = {"h": _ragged([[5, 6, 0], [7]])}
        self.assertEqual(_positions(column, features), [[6, 0], [7, 0]])

    @parameterized.named_parameters(
        ("dense", lambda: tf.zeros([0, 3], tf.int64), 3),
        ("no_width", lambda: tf.zeros([2, 0], tf.int64), 1),
        ("ragged", lambda: _ragged([[], []]), 1),
        (
            "no_ragged",
            lambda: tf.RaggedTensor.from_row_lengths([1], [1])[:0],
            1,
        ),
        ("sparse", lambda: tf.sparse.from_dense(tf.zeros([2, 4])), 1),
    )
    def test_nothing_has_a_length(self, make, length):
        feature = tf.cast(make(), tf.int64)
        found = _positions(_sequence(), {"h": feature})
        self.assertEqual(np.sum(found), 0)
        mask = hash_batch([_sequence()], {"h": feature}, False).masks
        self.assertEqual(mask[_sequence()].shape[1], length)

    def test_one_value_each(self):
        features = {"h": tf.constant([5, 0, 7])}
        self.assertEqual(_positions(_sequence(), features), [[5], [0], [7]])

    def test_values_that_are_numbers(self):
        column = category_column("h", boundaries=[1.0, 2.0])
        features = {"h": tf.constant([[0.5, np.nan, 1.5], [2.5, 2.5, np.nan]])}
        found = hash_batch([_sequence(column)], features, False)
        bags = columns_to_bags([column], features)
        self.assertAllEqual(found.bags.signs, bags.signs)
        self.assertAllEqual(
            found.masks[_sequence(column)],
            [[True, False, True], [True, True, False]],
        )

    @parameterized.parameters(tf.int32, tf.string)
    def test_in_a_function_of_unknown_sizes(self, dtype):
        column = _sequence(category_column("h", missing="0"))
        call = tf.function(
            lambda h: hash_batch([column], {"h": h}, False).masks[column],
            input_signature=[tf.TensorSpec(None, dtype)],
        )
        for values in ([[1, 0, 2], [3, 0, 0]], [[0], [4]], [0, 5]):
            feature = np.array(values)
            given = tf.constant(feature, tf.int32)
            if dtype == tf.string:
                given = tf.strings.as_string(given)
            mask = call(given)
            self.assertAllEqual(mask, np.reshape(feature, [2, -1]) > 0)

    def test_a_static_shape(self):
        def shape(feature, **kwargs):
            column = _sequence(**kwargs)

            def mask(h):
                return hash_batch([column], {"h": h}, False).masks[column]

            function = tf.function(mask, autograph=False)
            concrete = function.get_concrete_function(feature)
            return concrete.structured_outputs.shape.as_list()

        dense = tf.TensorSpec([4, 3], tf.int64)
        ragged = tf.RaggedTensorSpec([4, None], tf.int64)
        self.assertEqual(shape(dense), [4, 3])
        self.assertEqual(shape(dense, max_length=2), [4, 2])
        self.assertEqual(shape(ragged, max_length=2)[1], 2)
        self.assertIsNone(shape(ragged)[1])

    def test_symbolic_shapes(self):
        inputs = {"x": keras.Input((7,), name="x", dtype="string")}
        mask = keras.Input((5,), name="mask", dtype="bool")
        for options, raw, hashed in (
            ({}, (7, 4), (5, 4)),
            ({"max_length": 3}, (3, 4), (5, 4)),
            ({"ragged": True}, (None, 4), (None, 4)),
            ({"ragged": True, "max_length": 3}, (None, 4), (None, 4)),
        ):
            column = sequence_category_column("x", **options)
            shape = column.output_shape(4)
            # Examples of ragged output have lengths of their own.
            length = None if column.ragged else column.max_length
            self.assertEqual(shape, (length, 4))
            self.assertEqual(column.symbolic_shape(shape, inputs, None), raw)
            self.assertEqual(column.symbolic_shape(shape, {}, mask), hashed)


class WeightsTest(tf.test.TestCase):
    def test_follow_their_ids(self):
        column = _sequence(_ids(weights="w"), max_length=2)
        features = {
            "h": tf.constant([[5, 6, 0, 7], [8, 0, 0, 0]]),
            "w": tf.constant([[1.0, 2, 3, 4], [5, 6, 7, 8]]),
        }
        bags = columns_to_bags([column, _ids()], features)
        # Position 2, without an id, is one of the last two.
        self.assertAllEqual(bags.signs[:2], [7, 8])
        self.assertAllEqual(bags.weights, [4.0, 5.0, 1, 1, 1, 1])

    def test_of_an_absent_feature(self):
        absent = _sequence(_ids("other", weights="w", optional=True))
        features = {"h": tf.constant([[5, 6], [7, 0]])}
        bags = columns_to_bags([absent, _ids()], features)
        self.assertAllEqual(bags.signs, [5, 6, 7])
        self.assertAllEqual(bags.weights, [1.0, 1.0, 1.0])
        self.assertAllEqual(bags.row_splits, [0, 0, 0, 2, 3])


class CrossesTest(tf.test.TestCase):
    def test_combine_positions(self):
        cross = crossed_column(
            [category_column("a", missing=""), category_column("b", missing=0)]
        )
        features = {
            "a": tf.ragged.constant([["x", "y", ""], ["z"]]),
            "b": _ragged([[1, 0, 2], [3]]),
        }
        found = hash_batch([_sequence(cross)], features, False)
        one = columns_to_bags(
            [cross], {"a": tf.constant(["x", "z"]), "b": tf.constant([1, 3])}
        )
        self.assertAllEqual(found.bags.signs, one.signs)
        self.assertAllEqual(
            found.masks[_sequence(cross)],
            [[True, False, False], [True, False, False]],
        )

    def test_of_which_a_graph_knows_one_size(self):
        @tf.function(
            input_signature=[
                tf.RaggedTensorSpec([size, None], tf.int64)
                for size in (2, None)
            ]
        )
        def hashed(h, g):
            return columns_to_bags([_sequence(_CROSS)], {"h": h, "g": g})

        bags = hashed(_ragged([[5], [6, 7]]), _ragged([[1], [2, 3]]))
        self.assertAllEqual(bags.row_splits, [0, 1, 3])

    def test_without_an_optional_part(self):
        cross = crossed_column(["a", category_column("b", optional=True)])
        features = {"a": tf.ragged.constant([["x", "y"], []])}
        found = hash_batch([_sequence(cross)], features, False)
        self.assertAllEqual(found.bags.row_splits, [0, 0, 0])
        self.assertAllEqual(
            found.masks[_sequence(cross)], [[False, False], [False, False]]
        )


class BesideOthersTest(tf.test.TestCase):
    def test_bags_are_in_the_order_of_columns(self):
        features = {
            "h": _ragged([[5, 6, 7], []]),
            "g": tf.constant([[1, 0], [2, 3]]),
            "u": tf.constant([8, 9]),
        }
        first, last = _sequence(max_length=2), _sequence(_ids("g"))
        columns = [first, _ids("u"), last, _ids("h"), first, _ids("u")]
        bags = columns_to_bags(columns, features)
        self.assertAllEqual(
            bags.signs, [6, 7, 8, 9, 1, 2, 3, 5, 6, 7, 6, 7, 8, 9]
        )
        self.assertAllEqual(
            np.diff(bags.row_splits), [2, 0, 1, 1, 1, 2, 3, 0, 2, 0, 1, 1]
        )
        self.assertEqual(bags.weights.shape, [0])

    def test_absent_features(self):
        absent = _sequence(_ids("other", optional=True), max_length=3)
        features = {"h": _ragged([[5], []])}
        for columns in ([absent, _sequence()], [absent, _ids()]):
            found = hash_batch(columns, features, False)
            self.assertAllEqual(found.bags.signs, [5])
            self.assertAllEqual(found.bags.row_splits, [0, 0, 0, 1, 1])
            self.assertAllEqual(found.masks[absent], np.zeros([2, 3]))
        of_any_length = _sequence(_ids("other", optional=True))
        found = hash_batch([of_any_length, _ids()], features, False)
        self.assertAllEqual(found.masks[of_any_length], [[False], [False]])
        pooled = _ids("u", optional=True)
        bags = columns_to_bags([pooled, _sequence()], features)
        self.assertAllEqual(bags.row_splits, [0, 0, 0, 1, 1])
        for columns in ([absent], [absent, pooled]):
            with self.assertRaisesRegex(ValueError, "batch size is unknown"):
                columns_to_bags(columns, features)


def _gap():
    return tf.SparseTensor([[0, 0], [0, 2]], tf.constant([5, 6]), [1, 3])


def _falling():
    return tf.RaggedTensor.from_row_splits(
        tf.constant([5, 6]), tf.constant([0, 2, 1]), validate=False
    )


def _broken():
    return tf.RaggedTensor.from_row_splits(
        tf.constant([5, 6]), tf.constant([0, 9, 2]), validate=False
    )


_CROSS = crossed_column([_ids(), _ids("g")])


class BatchErrorsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        (
            "sizes_of_sequences",
            [_sequence(), _sequence(_ids("g"))],
            lambda: {"h": _ragged([[5]]), "g": tf.constant([[5], [6]])},
            _ONE_BATCH_SIZE,
        ),
        (
            "sizes_beside_others",
            [_ids("g"), _sequence()],
            lambda: {"h": _ragged([[5]]), "g": tf.constant([[5], [6]])},
            _ONE_BATCH_SIZE,
        ),
        (
            "lengths_of_weights",
            [_sequence(_ids(weights="w"))],
            lambda: {
                "h": _ragged([[5], [6, 7]]),
                "w": _ragged([[1.0, 2.0], [3.0]], tf.float32),
            },
            "'h' and 'w' of the sequence 'h' must have the same lengths",
        ),
        (
            "lengths_in_a_cross",
            [_sequence(_CROSS)],
            lambda: {"h": _ragged([[5], [6, 7]]), "g": _ragged([[5, 6], [7]])},
            "'h' and 'g' of the sequence 'h_X_g' must have the same lengths",
        ),
        (
            "gap",
            [_sequence()],
            lambda: {"h": _gap()},
            "feature 'h', a sequence, must have no gaps",
        ),
        (
            "row_splits_beside_a_sequence",
            [_sequence(), _ids("g")],
            lambda: {"h": _ragged([[5], [6]]), "g": _falling()},
            "must not decrease, but go from 2 to 1",
        ),
        (
            "row_splits",
            [_sequence()],
            lambda: {"h": _broken()},
            "row_splits of the feature 'h' must start at 0, not decrease",
        ),
    )
    def test_are_raised_and_returned(self, columns, make, message):
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, message
        ) as raised:
            columns_to_bags(columns, make())
        call = tf.function(lambda inputs: columns_to_bags(columns, inputs))
        # Graphs quote their messages.
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, message.replace("'", r"\\?'")
        ):
            call(make())
        call = tf.function(lambda inputs: _bags_or_error(columns, inputs))
        for function in (call, call.python_function):
            bags, error = function(make())
            self.assertEqual(error.numpy().decode(), raised.exception.message)
            self.assertEqual(bags.signs.shape, [0])
            self.assertAllEqual(bags.row_splits, 0 * bags.row_splits)
            self.assertEqual((len(bags.row_splits) - 1) % len(columns), 0)

    def test_no_error(self):
        bags, error = _bags_or_error(
            [_sequence()], {"h": tf.constant([[5, 0, 6]])}
        )
        self.assertEqual(error, b"")
        self.assertAllEqual(bags.signs, [5, 6])

    def test_more_dimensions(self):
        for feature in (
            tf.zeros([2, 3, 1], tf.int64),
            np.zeros([2, 3, 1], int),
        ):
            with self.assertRaisesRegex(
                ValueError,
                r"'h' of the sequence 'h' must be of shape \[batch_size, "
                r"length\] or \[batch_size\], but is of \(2, 3, 1\)",
            ):
                columns_to_bags([_sequence()], {"h": feature})


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("column", {"column": 3}, "`column` .* or a key. Received: column=3"),
        ("itself", {"column": _sequence()}, "`column` .* or a key"),
        ("zero", {"max_length": 0}, "`max_length` .* from 1 to .*=0"),
        ("large", {"max_length": 2**31}, "`max_length` .* to 2147483647"),
        ("bool", {"max_length": True}, "`max_length` .*=True"),
        ("float", {"max_length": 2.0}, "`max_length` .*=2.0"),
        ("end", {"truncating": "left"}, '`truncating` .* "pre" or "post"'),
        ("ragged", {"ragged": 1}, "`ragged` .* True or False"),
        ("weight", {"append_weight": True}, "`append_weight` .* without weig"),
        ("name", {"name": ""}, "`name` .* a string that is not empty"),
    )
    def test_refused(self, kwargs, message):
        arguments = {"column": "h", **kwargs}
        with self.assertRaisesRegex(
            ValueError, f"of sequence_category_column.*|{message}"
        ) as raised:
            sequence_category_column(**arguments)
        self.assertRegex(str(raised.exception), message)

    def test_a_key_is_a_column(self):
        column = sequence_category_column("h", max_length=np.int64(3))
        self.assertEqual(column, _sequence(category_column("h"), max_length=3))
        self.assertIs(type(column.max_length), int)
        self.assertEqual(column.name, "h")
        self.assertEqual(
            column.hashing_identity, column.column.hashing_identity
        )

    def test_signs_are_those_of_its_column(self):
        ids = category_column("h", bucket_size=5, namespace="n")
        column = sequence_category_column(ids)
        self.assertEqual((column.bucket_size, column.namespace), (5, "n"))
        self.assertAllEqual(column.signs(["a", "b"]), ids.signs(["a", "b"]))

    @parameterized.named_parameters(
        ("plain", lambda: _sequence(max_length=3, name="x")),
        ("cross", lambda: _sequence(_CROSS, truncating="post", ragged=True)),
        ("weights", lambda: _sequence(_ids(weights="w"), append_weight=True)),
    )
    def test_survives_its_configuration(self, make):
        column = make()
        serialize = keras.utils.serialize_keras_object
        again = keras.utils.deserialize_keras_object(serialize(column))
        self.assertIsInstance(again, SequenceColumn)
        self.assertEqual(again, column)
        self.assertEqual(hash(again), hash(column))


if __name__ == "__main__":
    tf.test.main()
