# SPDX-License-Identifier: Apache-2.0
"""Whatever is given to HashCategory, it raises or returns a sentence."""

import functools

import tensorflow as tf
from absl.testing import parameterized
from ops_util import RefusalTestCase

from tf_ext import ops


def _hash(values=None, row_splits=None, weights=None, **attributes):
    """One valid column, but for what the case changes."""
    values = [tf.constant([1, 2, 3])] if values is None else values
    attributes.setdefault("namespaces", ["n"])
    return ops.hash_category(values, row_splits, weights, **attributes)


def _inputs(values=None, row_splits=None, weights=None, **_):
    """The inputs of a case as the op has them, none left out."""
    values = [tf.constant([1, 2, 3])] if values is None else values
    if row_splits is None:
        row_splits = [tf.zeros([0], tf.int64)] * len(values)
    if weights is None:
        weights = [tf.zeros([0])] * len(values)
    row_splits = [tf.constant(splits, tf.int64) for splits in row_splits]
    return values, row_splits, weights


def _hash_or_error(arguments, values, row_splits, weights):
    """The case, with its inputs replaced."""
    inputs = dict(values=values, row_splits=row_splits, weights=weights)
    return _hash(**{**arguments, **inputs}, return_error=True)


def _unknown(call):
    """Inputs of which a graph knows the types alone."""

    def traced(*inputs):
        inputs = tf.nest.map_structure(tf.convert_to_tensor, inputs)
        signature = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(None, tensor.dtype), inputs
        )
        return tf.function(call, signature, autograph=False)(*inputs)

    return traced


class MalformedHashCategoryTest(RefusalTestCase):
    # The last is the number of row_splits where the error is a value.
    @parameterized.named_parameters(
        (
            "scalar",
            dict(values=[tf.constant(1)]),
            "values[0] must have a rank of at least 1",
            1,
        ),
        (
            "other_batch_size",
            dict(
                values=[tf.constant([1, 2, 3]), tf.constant([1, 2])],
                namespaces=["a", "b"],
            ),
            "must have the same batch size, but",
            7,
        ),
        (
            "splits_matrix",
            dict(row_splits=[[[0, 3]]]),
            "row_splits[0] must be a vector",
            1,
        ),
        (
            "splits_of_a_matrix",
            dict(values=[tf.constant([[1, 2]])], row_splits=[[0, 2]]),
            "values[0], which has row_splits, must be a vector",
            2,
        ),
        (
            "splits_start",
            dict(row_splits=[[1, 3]]),
            'The row_splits of input 0 (of the column of namespace "n") must '
            "start at 0, but start at 1.",
            2,
        ),
        (
            "splits_fall",
            dict(row_splits=[[0, 2, 1, 3]]),
            "must not decrease, but go from 2 to 1 at position 2.",
            4,
        ),
        (
            "splits_fall_last",
            dict(row_splits=[[0, 2, 4, 3]]),
            "must not decrease, but go from 4 to 3 at position 3.",
            4,
        ),
        (
            "splits_negative",
            dict(row_splits=[[0, -5, 3]]),
            "must not decrease, but go from 0 to -5 at position 1.",
            3,
        ),
        (
            "splits_end_early",
            dict(row_splits=[[0, 2]]),
            "must end at its number of values, which is 3, but end at 2.",
            2,
        ),
        (
            "splits_end_at_2_62",
            dict(row_splits=[[0, 2**62]]),
            f"which is 3, but end at {2**62}.",
            2,
        ),
        (
            "too_few_weights",
            dict(weights=[[1.0, 2.0]]),
            "weights[0] must have 3 values, one for each of values[0], or none,"
            " but has 2.",
            4,
        ),
        (
            "explodes",
            dict(
                values=[tf.zeros([1, 1 << 13], tf.int64)],
                part_counts=[3],
                part_inputs=[0, 0, 0],
            ),
            "The batch makes more than 2147483647 signs",
            2,
        ),
        (
            "claims_2_31_bags",
            dict(values=[tf.zeros([1 << 31, 0], tf.int64)]),
            "makes more than 2147483647 bags",
            1,
        ),
    )
    def test_input_(self, arguments, message, splits):
        self.assert_refused(lambda: _hash(**arguments), message)
        with self.assertRaises(tf.errors.InvalidArgumentError) as raised:
            _hash(**arguments)
        for mode in (lambda f: f, _unknown):
            found = mode(functools.partial(_hash_or_error, arguments))(
                *_inputs(**arguments)
            )
            error = found.error.numpy().decode()
            self.assertIn(message, error)
            self.assertIn(error, str(raised.exception))
            self.assertAllEqual(found.signs, tf.zeros([0], tf.int64))
            self.assertAllEqual(found.sign_splits, tf.zeros([splits], tf.int64))
            self.assertAllEqual(found.sign_weights, tf.zeros([0]))

    def test_no_error(self):
        for return_error in (False, True):
            found = _hash(weights=[[1.0, 2.0, 3.0]], return_error=return_error)
            self.assertEqual(found.error, b"")
            self.assertAllEqual(found.sign_splits, [0, 1, 2, 3])
            self.assertAllEqual(found.sign_weights, [1.0, 2.0, 3.0])

    def test_batch_sizes_that_a_graph_knows_to_differ_are_a_value(self):
        @tf.function(autograph=False)
        def traced():
            values = [tf.zeros([3, 2], tf.int64), tf.zeros([2], tf.int64)]
            found = _hash(values, namespaces=["a", "b"], return_error=True)
            self.assertEqual(found.sign_splits.shape, [7])
            self.assertEqual(found.error.shape, [])
            return found

        found = traced()
        self.assertIn(
            b"must have the same batch size, but", found.error.numpy()
        )
        self.assertAllEqual(found.sign_splits, [0] * 7)

    def test_attributes_are_no_value(self):
        self.assert_refused(
            lambda: _hash(bucket_sizes=[-1], return_error=True),
            "has bucket_size -1, which must be",
        )

    @parameterized.named_parameters(
        ("bucket_sizes", dict(bucket_sizes=[1, 2]), "must have 1 values", "2."),
        ("identity", dict(identity=[]), "identity must have 1 values", "0."),
        (
            "part_counts",
            dict(part_counts=[1, 1]),
            "part_counts must have 1 values (one a column, as namespaces), but "
            "has 2.",
        ),
        (
            "part_inputs",
            dict(part_inputs=[0, 0]),
            "part_bucket_sizes must have 2 values (one a part, as part_inputs)",
        ),
        (
            "part_counts_sum",
            dict(
                part_inputs=[0, 0],
                part_bucket_sizes=[0, 0],
                part_has_missing=[False] * 2,
                part_missing=[""] * 2,
                part_boundary_counts=[0, 0],
            ),
            "part_inputs must have 1 values (the sum of part_counts)",
        ),
        (
            "part_count_0",
            dict(part_counts=[0]),
            "part_counts[0] must be in [1, 0], what part_inputs has left, but ",
        ),
        (
            "part_count_huge",
            dict(
                part_counts=[2**62],
                part_inputs=[0],
                **{
                    "part_bucket_sizes": [0],
                    "part_has_missing": [False],
                    "part_missing": [""],
                    "part_boundary_counts": [0],
                },
            ),
            f"part_counts[0] must be in [1, 1], what part_inputs has left, but "
            f"it is {2**62}.",
        ),
        (
            "boundary_count_negative",
            dict(part_boundary_counts=[-1]),
            "part_boundary_counts[0] must be in [0, 0]",
            "but it is -1.",
        ),
        (
            "boundaries_left",
            dict(part_boundaries=[1.0]),
            "part_boundaries must have 0 values (the sum of "
            "part_boundary_counts), but has 1.",
        ),
        (
            "input_out_of_range",
            dict(part_inputs=[1]),
            'Column 0 (namespace "n") uses input 1, but there are 1 inputs.',
        ),
        ("input_negative", dict(part_inputs=[-1]), "uses input -1, but there"),
        (
            "bucket_size_negative",
            dict(bucket_sizes=[-1]),
            "has bucket_size -1, which must be at least 1, or 0 for unbounded.",
        ),
        (
            "bucket_size_of_the_only_part",
            dict(part_bucket_sizes=[3]),
            "has one part, whose bucket_size must be 0, but is 3",
        ),
        (
            "missing_is_no_number",
            dict(part_has_missing=[True], part_missing=["?"]),
            'names "?" as missing, which is not a value of its input\'s type, '
            "int32; set missing to an integer of that type, or to None",
        ),
        (
            "floats_without_boundaries",
            dict(values=[tf.constant([1.0])]),
            "has an input of type float, which needs boundaries",
        ),
        (
            "boundaries_of_strings",
            dict(
                values=[tf.constant(["a"])],
                part_boundary_counts=[1],
                part_boundaries=[1.0],
            ),
            "has boundaries, which need numbers",
        ),
        (
            "boundaries_nan",
            dict(part_boundary_counts=[1], part_boundaries=[float("nan")]),
            "has the boundary nan at position 0; boundaries must be finite.",
        ),
        (
            "identity_of_strings",
            dict(values=[tf.constant(["a"])], identity=[True]),
            "takes values as signs (identity), which needs one part of type "
            "int64 or int32",
        ),
        (
            "bool_values",
            dict(values=[tf.constant([True])]),
            ("bool", "Tin"),
        ),
    )
    def test_attribute_(self, attributes, *messages):
        self.assert_refused(lambda: _hash(**attributes), *messages)

    def test_no_inputs(self):
        self.assert_refused(
            lambda: ops.hash_category([], namespaces=["n"]),
            ("Tin", "row_splits"),
        )

    def test_no_columns(self):
        self.assert_refused(lambda: _hash(namespaces=[]), "namespaces")

    def test_sizes_that_only_the_kernel_sees(self):
        @tf.function(
            input_signature=[
                tf.TensorSpec(None, tf.int32),
                tf.TensorSpec(None, tf.int64),
                tf.TensorSpec(None, tf.float32),
            ]
        )
        def traced(values, row_splits, weights):
            return _hash([values], [row_splits], [weights]).signs

        none, empty = tf.zeros([0], tf.int64), tf.zeros([0])
        for arguments, message in (
            ((tf.constant(1), none, empty), "values[0] must have a rank of at"),
            (
                (tf.constant([1]), tf.constant([[0, 1]], tf.int64), empty),
                "row_splits[0] must be a vector",
            ),
            ((tf.constant([1]), none, tf.ones([2])), "weights[0] must have 1"),
        ):
            with self.assertRaises(tf.errors.InvalidArgumentError) as raised:
                traced(*arguments)
            self.assertIn(message, str(raised.exception))


if __name__ == "__main__":
    tf.test.main()
