# SPDX-License-Identifier: Apache-2.0
"""What is taken as signs, wherever they are given."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext import ops
from tf_ext.ops.exchange import exchange_ops

pytestmark = pytest.mark.slow_tests(
    "SignsTest::*_a_function",
)

_TAKERS = {
    "SparseTable.pull": lambda table, signs: table.pull(signs, training=True),
    "SparseTable.push": lambda table, signs: table.push(
        signs, np.zeros([np.size(signs), 2])
    ),
    "SparseTable.import_rows": lambda table, signs: table.import_rows(
        signs, {"weights": np.zeros([np.size(signs), 2])}
    ),
    "SparseTable.erase": lambda table, signs: table.erase(signs),
    "sparse_table_pull": lambda table, signs: ops.sparse_table_pull(
        table.rows.resource_handle, signs, training=True, dim=2
    ),
    "sparse_table_push": lambda table, signs: ops.sparse_table_push(
        table.rows.resource_handle,
        signs,
        np.zeros([np.size(signs), 2]),
        hyperparameters=[0.1, 0.0],
    ),
    "sparse_table_import": lambda table, signs: ops.sparse_table_import(
        table.rows.resource_handle,
        signs,
        [np.zeros([np.size(signs), 2], np.float32)],
        field_names=["weights"],
    ),
    "sparse_table_erase": lambda table, signs: ops.sparse_table_erase(
        table.rows.resource_handle, signs
    ),
    "unique_by_shard": lambda table, signs: ops.unique_by_shard(signs),
    "exchange_pull": lambda table, signs: exchange_ops.exchange_pull(
        [table.rows.resource_handle],
        [signs],
        [[np.size(signs)]],
        [True],
        2 * np.size(signs),
        dims=[2],
    ),
    "route_gradient": lambda table, signs: ops.route_gradient(
        np.zeros([np.size(signs), 2], np.float32),
        np.zeros([1, 2], np.float32),
        signs,
    ),
}
_FLOATS = "Floats cannot represent all ids above 2^53. Read ids as integers"
_BOOLEANS = "Cast them to int64 if they are meant as ids."
_STRINGS = "Hash them first, with tf_ext.hashing.hash_category(values, namespac"


def _table():
    return tf_ext.SparseTable("items", 2, tf_ext.optimizers.SparseSGD(0.1))


class SignsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_TAKERS)
    def test_refused_everywhere(self, name):
        table = _table()
        for signs, what, advice in (
            (np.array([1.9, 2.5]), "float64", _FLOATS),
            (np.array([1.0], np.float16), "float16", _FLOATS),
            (np.array([2.0**53 + 2]), "float64", _FLOATS),
            (np.array([True, False]), "booleans", _BOOLEANS),
            (np.array(["a"]), "strings", _STRINGS),
        ):
            with self.assertRaises(ValueError) as raised:
                _TAKERS[name](table, signs)
            self.assertStartsWith(
                str(raised.exception),
                f"Argument `signs` of {name} must be integers of up to 64 "
                f"bits. Received: signs={signs!r} ({what}). {advice}",
            )
        self.assertEqual(table.size(), 0)

    @parameterized.named_parameters(
        ("floats", [1.9, 2.5], " Received: signs=[1.9, 2.5] (float32). Floats"),
        (
            "a_float_among_ints",
            [1, 2.5],
            " signs=[1, 2.5] (float32). ",
        ),
        ("numpy_float", np.float64(7.0), " (float64). "),
        ("booleans", [[True]], " signs=[[True]] (booleans). Cast"),
        ("a_boolean", True, " Received: signs=True (booleans). Cast"),
        ("a_boolean_among_ints", [True, 2], " Received: signs=[True, 2] ("),
        (
            "a_boolean_behind_ints",
            [[1], [True]],
            " signs=[[1], [True]] (booleans are among them)",
        ),
        ("strings", ["a"], "['a'] (strings). Hash them first, "),
        ("string_objects", np.array(["a"], object), "signs=array(['a'], "),
        ("ragged", [[1], [2, 3]], " Received: signs=[[1], [2, 3]] ("),
        ("ragged_empty", [[], [1, 2]], " signs=[[], [1, 2]] (lists of diff"),
        (
            "ragged_large",
            [[2**63, 1], [2], []],
            " signs=[[9223372036854775808, 1], [2], []] (",
        ),
        ("none", None, " Received: signs=None ("),
        ("too_large", [2**64], " signs=[18446744073709551616] ("),
        ("too_small", [-(2**63) - 1, 5], " signs=[-9223372036854775809,"),
        ("tensor", tf.constant([1.5]), " Received: signs=<tf.Tensor: "),
        (
            "ragged_tensor",
            tf.ragged.constant([[1]], tf.int64),
            " Received: signs=<tf.Ragge",
        ),
    )
    def test_refused_of_all_kinds(self, signs, received):
        table = _table()
        with self.assertRaises(ValueError) as raised:
            table.pull(signs, training=True)
        self.assertStartsWith(
            str(raised.exception),
            "Argument `signs` of SparseTable.pull must be integers of up to 64 "
            "bits. ",
        )
        self.assertIn(received.strip(), str(raised.exception))
        self.assertEqual(table.size(), 0)

    def test_long_ones_are_shortened(self):
        with self.assertRaises(ValueError) as raised:
            _table().pull([0.5] * 1000)
        self.assertLess(len(str(raised.exception)), 400)
        self.assertIn("0.5, 0... (float32). Floats", str(raised.exception))

    @parameterized.named_parameters(
        ("list", [2**53 + 1, -1], [2**53 + 1, -1]),
        ("scalar", 7, [7]),
        ("nested", [[1, 2], [3, 4]], [1, 2, 3, 4]),
        ("empty_list", [], []),
        ("empty_array", np.array([]), []),
        ("of_32_bits", np.array([-7], np.int32), [-7]),
        ("tensor_of_32_bits", tf.constant([-7, 8]), [-7, 8]),
        ("of_8_bits", np.array([255], np.uint8), [255]),
        ("numpy_scalars", [np.int64(2**53 + 1)], [2**53 + 1]),
        ("unsigned_scalars", [np.uint64(2**64 - 1), np.uint64(5)], [-1, 5]),
        ("ints_of_all_kinds", [np.int8(-7), 2**63, 5], [-7, -(2**63), 5]),
        ("objects", np.array([2**53 + 1, 2], object), [2**53 + 1, 2]),
        ("unsigned", np.array([2**64 - 1, 5], np.uint64), [-1, 5]),
        ("unsigned_tensor", tf.constant([2**63], tf.uint64), [-(2**63)]),
        ("unsigned_list", [2**64 - 1, 5], [-1, 5]),
        ("of_both_ranges", [[2**64 - 2], [-(2**63)]], [-2, -(2**63)]),
        ("variable", tf.Variable([5, 6]), [5, 6]),
    )
    def test_taken(self, signs, expected):
        table = _table()
        self.assertEqual(
            table.pull(signs, training=True).shape, [*np.shape(signs), 2]
        )
        self.assertCountEqual(table.export_rows()[0].tolist(), expected)
        self.assertEqual(table.erase(np.ravel(expected)), len(expected))

    def test_signs_of_the_hashing_module_are_those_of_its_unsigned_ones(self):
        unsigned = tf_ext.hashing.fingerprint64(["user\x1fann", "user\x1fbob"])
        signed = tf_ext.hashing.hash_category(["ann", "bob"], "user")
        table = _table()
        table.pull(unsigned, training=True)
        self.assertCountEqual(table.export_rows()[0].tolist(), signed.tolist())

    def test_of_outside_of_a_function(self):
        table = tf_ext.SparseTable("t", dim=2, optimizer="sgd")
        signs = tf.constant([3, 4], tf.int64)

        @tf.function
        def push():
            return table.push(signs, tf.ones([2, 2]))

        self.assertEqual(push(), 2)
        self.assertCountEqual(table.export_rows()[0].tolist(), [3, 4])

    def test_in_a_function(self):
        table = _table()

        @tf.function
        def pull(signs):
            return table.pull(signs, training=True)

        pull(tf.constant([1, 2]))
        pull(tf.constant([2**64 - 1], tf.uint64))
        self.assertCountEqual(table.export_rows()[0].tolist(), [1, 2, -1])
        with self.assertRaisesRegex(ValueError, "signs=<tf.Tensor.*float32"):
            pull(tf.constant([1.5]))


if __name__ == "__main__":
    tf.test.main()
