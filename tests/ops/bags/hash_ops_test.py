# SPDX-License-Identifier: Apache-2.0
import os

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from ops_util import (
    INT64_MAX,
    INT64_MIN,
    MODES,
    named_cases,
    run_python,
)

from tf_ext import hashing, ops

pytestmark = pytest.mark.slow_tests(
    "HashCategoryTest::test_saved_model_in_a_new_process",
)

TEXTS = ["a", "", "5", "-1", "g\u00fcnstig", "x" * 1000, "a\0b", "\0"]
NUMBERS = [5, 0, -1, INT64_MIN, INT64_MAX, 7, 7, 10]
NARROW = [5, 0, -1, -(2**31), 2**31 - 1, 7, 7, 10]
AGES = [17.5, 18.0, -np.inf, np.inf, 64.9, 65.0, 1e9, 0.0]
BOUNDARIES = [0.0, 18.0, 65.0]
BATCH_SIZE = len(TEXTS)


def _many_columns(values, **more):
    """Six columns and crosses on texts, numbers, narrow numbers and ages."""
    return ops.hash_category(
        values,
        namespaces=["user", "user", "item", "age", "user_X_age", "id"],
        bucket_sizes=[0, 0, 1000, 0, 50, 0],
        identity=[False] * 5 + [True],
        part_counts=[1, 1, 1, 1, 2, 1],
        part_inputs=[0, 1, 2, 3, 0, 3, 1],
        part_bucket_sizes=[0, 0, 0, 0, 10, 0, 0],
        part_boundary_counts=[0, 0, 0, 3, 0, 3, 0],
        part_boundaries=BOUNDARIES * 2,
        **more,
    )


def _inputs():
    return [
        tf.constant(TEXTS),
        tf.constant(NUMBERS, tf.int64),
        tf.constant(NARROW, tf.int32),
        tf.constant(AGES),
    ]


def _expected_signs():
    return np.concatenate(
        [
            hashing.hash_category(np.array(TEXTS, object), "user"),
            hashing.hash_category(NUMBERS, "user"),
            hashing.hash_category(NARROW, "item", bucket_size=1000),
            hashing.hash_category(AGES, "age", boundaries=BOUNDARIES),
            hashing.hash_cross(
                [np.array(TEXTS, object), AGES],
                "user_X_age",
                bucket_size=50,
                part_bucket_sizes=[10, None],
                part_boundaries=[None, BOUNDARIES],
            ),
            NUMBERS,
        ]
    )


class HashCategoryTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_signs_are_numpys(self, mode):
        found = mode(lambda: _many_columns(_inputs()))()
        self.assertAllEqual(found.signs, _expected_signs())
        self.assertAllEqual(found.sign_splits, np.arange(6 * BATCH_SIZE + 1))
        self.assertAllEqual(found.sign_weights, np.zeros([0], np.float32))
        self.assertEqual(found.sign_weights.dtype, tf.float32)

    def test_fixed_vectors(self):
        # These numbers are in people's tables: they never change.
        found = _many_columns(
            [
                tf.constant(["foo"]),
                tf.constant([5], tf.int64),
                tf.constant([-1]),
                tf.constant([18.0]),
            ]
        )
        self.assertAllEqual(
            found.signs,
            [
                9103845330217157765,
                2904937300852589665,
                5849320508195616238,
                -6105391199902481706,
                7948152483695083888,
                5,
            ],
        )

    @parameterized.named_parameters(
        *named_cases(dtype=["string", "int32", "int64"], mode=MODES)
    )
    def test_five_is_five(self, dtype, mode):
        values = [5, -7, 0]
        if dtype == "string":
            values = tf.strings.as_string(values)
        found = mode(
            lambda: (
                ops.hash_category([tf.cast(values, dtype)], namespaces=["n"])
                if dtype != "string"
                else ops.hash_category([values], namespaces=["n"])
            )
        )()
        self.assertAllEqual(found.signs, hashing.hash_category([5, -7, 0], "n"))

    @parameterized.named_parameters(*MODES)
    def test_inner_dimensions_are_the_bag(self, mode):
        values = np.arange(12).reshape(2, 3, 2)
        dense = mode(
            lambda: ops.hash_category([tf.constant(values)], namespaces=["n"])
        )()
        ragged = mode(
            lambda: ops.hash_category(
                [tf.constant(values.ravel())], [[0, 6, 12]], namespaces=["n"]
            )
        )()
        self.assertAllEqual(dense.sign_splits, [0, 6, 12])
        self.assertAllEqual(dense.signs, ragged.signs)
        self.assertAllEqual(dense.sign_splits, ragged.sign_splits)

    @parameterized.named_parameters(*MODES)
    def test_missing_values_leave_their_bag(self, mode):
        found = mode(
            lambda: ops.hash_category(
                [
                    tf.constant([["a", "?"], ["?", "?"], ["", "b"]]),
                    tf.constant([[1.0, np.nan], [-999.0, 3.0], [0.0, 0.0]]),
                ],
                namespaces=["s", "f"],
                part_has_missing=[True, True],
                part_missing=["?", "-999"],
                part_boundary_counts=[0, 1],
                part_boundaries=[2.0],
            )
        )()
        self.assertAllEqual(found.sign_splits, [0, 1, 1, 3, 4, 5, 7])
        self.assertAllEqual(
            found.signs,
            np.concatenate(
                [
                    hashing.hash_category(["a", "", "b"], "s"),
                    hashing.hash_category([0, 1, 0, 0], "f"),
                ]
            ),
        )

    @parameterized.named_parameters(
        *named_cases(
            has_missing=[("first", (True, False)), ("second", (False, True))],
            mode=MODES,
        )
    )
    def test_each_part_of_a_cross_has_missing_values_of_its_own(
        self, has_missing, mode
    ):
        found = mode(
            lambda: ops.hash_category(
                [tf.constant(["a", "?", "b"]), tf.constant(["?", "c", "d"])],
                namespaces=["x", "y"],
                part_counts=[2, 1],
                part_inputs=[0, 1, 1],
                part_has_missing=[*has_missing, False],
                part_missing=["?", "?", ""],
            )
        )()
        kept = [0, 2] if has_missing[0] else [1, 2]
        first, second = np.array([["a", "?", "b"], ["?", "c", "d"]])[:, kept]
        self.assertAllEqual(
            found.signs,
            np.concatenate(
                [
                    hashing.hash_cross([first, second], "x"),
                    hashing.hash_category(["?", "c", "d"], "y"),
                ]
            ),
        )

    @parameterized.named_parameters(*MODES)
    def test_cross_of_bags_multiplies_weights(self, mode):
        found = mode(
            lambda: ops.hash_category(
                [tf.constant(["a", "b", "c"]), tf.constant([1, 2, 3])],
                [[0, 2, 2, 3], [0, 2, 3, 3]],
                [[10.0, 100.0, 1000.0], [2.0, 3.0, 4.0]],
                namespaces=["x", "n"],
                part_counts=[2, 1],
                part_inputs=[0, 1, 1],
            )
        )()
        self.assertAllEqual(found.sign_splits, [0, 4, 4, 4, 6, 7, 7])
        self.assertAllEqual(
            found.signs[:4],
            hashing.hash_cross([["a", "a", "b", "b"], [1, 2, 1, 2]], "x"),
        )
        self.assertAllEqual(
            found.sign_weights, [20.0, 30.0, 200.0, 300.0, 2.0, 3.0, 4.0]
        )

    @parameterized.named_parameters(
        *named_cases(
            sizes=[("2_and_3", (2, 3)), ("3_and_1", (3, 1))], mode=MODES
        )
    )
    def test_cross_of_inner_dimensions(self, sizes, mode):
        """Of bags that all have one size, each value with each other."""
        first, second = (np.arange(5 * n).reshape(5, n) for n in sizes)
        found = mode(
            lambda: ops.hash_category(
                [tf.constant(first), tf.constant(second)],
                namespaces=["x"],
                part_counts=[2],
                part_inputs=[0, 1],
            )
        )()
        pairs = np.broadcast_arrays(first[:, :, None], second[:, None])
        self.assertAllEqual(
            found.signs, hashing.hash_cross([p.ravel() for p in pairs], "x")
        )
        self.assertAllEqual(found.sign_splits, np.arange(6) * np.prod(sizes))

    @parameterized.named_parameters(*MODES)
    def test_columns_without_weights_get_ones(self, mode):
        found = mode(
            lambda: ops.hash_category(
                [tf.constant([1, 2]), tf.constant([3, 4])],
                weights=[None, [0.5, 0.25]],
                namespaces=["a", "b"],
            )
        )()
        self.assertAllEqual(found.sign_weights, [1.0, 1.0, 0.5, 0.25])

    @parameterized.named_parameters(*MODES)
    def test_empty_batch(self, mode):
        found = mode(
            lambda: _many_columns([value[:0] for value in _inputs()])
        )()
        self.assertAllEqual(found.signs, np.zeros([0], np.int64))
        self.assertAllEqual(found.sign_splits, [0])

    def test_large_batch_is_as_the_same_in_pieces(self):
        # More than one block for the threads.
        generator = np.random.default_rng(4)
        lengths = generator.integers(0, 4, size=20_000)
        splits = np.concatenate([[0], np.cumsum(lengths)])
        values = generator.integers(-5, 1000, size=splits[-1])
        found = ops.hash_category(
            [tf.constant(values)],
            [splits],
            namespaces=["n"],
            part_has_missing=[True],
            part_missing=["-1"],
        )
        kept = values != -1
        self.assertAllEqual(
            found.signs, hashing.hash_category(values[kept], "n")
        )
        self.assertAllEqual(
            found.sign_splits, np.concatenate([[0], np.cumsum(kept)])[splits]
        )

    def test_shapes_are_inferred(self):
        @tf.function
        def shapes(known, unknown, splits):
            by_known = ops.hash_category(
                [known, unknown], namespaces=["a", "b"]
            )
            by_splits = ops.hash_category([unknown], [splits], namespaces=["a"])
            by_nothing = ops.hash_category([unknown], namespaces=["a"])
            weighted = ops.hash_category(
                [known], weights=[tf.ones([6])], namespaces=["a"]
            )
            self.assertEqual(by_known.signs.shape.as_list(), [None])
            self.assertEqual(by_known.sign_splits.shape.as_list(), [7])
            self.assertEqual(by_known.sign_weights.shape.as_list(), [0])
            self.assertEqual(by_splits.sign_splits.shape.as_list(), [5])
            self.assertEqual(by_nothing.sign_splits.shape.as_list(), [None])
            self.assertEqual(weighted.sign_weights.shape.as_list(), [None])
            return by_known.signs

        shapes.get_concrete_function(
            tf.TensorSpec([3, 2], tf.int64),
            tf.TensorSpec(None, tf.int64),
            tf.TensorSpec([5], tf.int64),
        )

    def test_dataset_map(self):
        dataset = tf.data.Dataset.from_tensor_slices(tuple(_inputs()))
        dataset = dataset.batch(3).map(
            lambda *values: _many_columns(list(values)).signs,
            num_parallel_calls=2,
        )
        found = np.concatenate(
            [np.reshape(signs, [6, -1]) for signs in dataset], axis=1
        )
        self.assertAllEqual(found.ravel(), _expected_signs())

    def test_has_no_gradient(self):
        weights = tf.ones([1])
        with tf.GradientTape() as tape:
            tape.watch(weights)
            found = ops.hash_category(
                [tf.constant([1])], weights=[weights], namespaces=["n"]
            )
        self.assertIsNone(tape.gradient(found.sign_weights, weights))

    def test_saved_model_in_a_new_process(self):
        module = tf.Module()
        module.hash = tf.function(
            lambda *values: _many_columns(list(values)).signs,
            input_signature=[
                tf.TensorSpec([None], value.dtype) for value in _inputs()
            ],
        )
        path = os.path.join(self.get_temp_dir(), "saved")
        tf.saved_model.save(module, path)
        output = run_python(
            """
import sys
import tensorflow as tf
import tf_ext
loaded = tf.saved_model.load(sys.argv[1])
signs = loaded.hash(
    tf.constant(["foo"]), tf.constant([5], tf.int64), tf.constant([-1]),
    tf.constant([18.0]))
print(*signs.numpy()[:2])
""",
            path,
        )
        self.assertEqual(
            output.split(), ["9103845330217157765", "2904937300852589665"]
        )


if __name__ == "__main__":
    tf.test.main()
