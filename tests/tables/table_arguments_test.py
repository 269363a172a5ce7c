# SPDX-License-Identifier: Apache-2.0
"""Arguments of `push`, `import_rows` and `erase` that are of wrong shapes."""

from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import parameterized

import tf_ext


def _table():
    return tf_ext.SparseTable("user", dim=2)


class TableArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    def test_fields_of_numpy_and_of_lists(self):
        for weights in (np.ones([2, 2]), [[1.0, 1.0]] * 2, tf.ones([2, 2])):
            table = _table()
            self.assertEqual(table.import_rows([1, 2], {"weights": weights}), 2)
            self.assertAllEqual(table.pull([1, 2]), np.ones([2, 2]))

    def test_fields_without_names(self):
        with self.assertRaisesRegex(
            ValueError, r"^Argument `fields` .* dict .*Received: .*\(2, 2\)"
        ):
            _table().import_rows([1, 2], np.ones([2, 2]))

    @parameterized.parameters(
        (
            [1, 2],
            {"weights": np.ones([2, 3])},
            r"fields\[0\] \('weights'\) must",
        ),
        (
            [1, 2],
            {"weights": np.ones([3, 2])},
            r"fields\[0\] \('weights'\) must",
        ),
        ([[1]], {"weights": np.ones([1, 2])}, "signs must be a vector"),
        ([1], {"weight": np.ones([1, 2])}, "There is no field 'weight'"),
    )
    def test_wrong_fields_are_told_in_a_sentence(self, signs, fields, message):
        table = _table()
        with self.assertRaises(tf.errors.InvalidArgumentError) as caught:
            table.import_rows(signs, fields)
        self.assertRegex(caught.exception.message, rf"^{message}.*\.$")

    def test_wrong_shapes_are_told_in_a_sentence(self):
        table = _table()
        for call in (
            lambda: table.push([1], np.ones([1, 3]), learning_rate=0.1),
            lambda: table.push([[1]], np.ones([1, 2]), learning_rate=0.1),
            lambda: table.erase([[1]]),
        ):
            with self.assertRaises(tf.errors.InvalidArgumentError) as caught:
                call()
            self.assertRegex(
                caught.exception.message, r"^[a-z0-9\[\]]+ must .*\.$"
            )

    def test_functions_call_them(self):
        table = _table()

        @tf.function
        def push(gradients):
            return table.push([1], gradients, learning_rate=0.1)

        self.assertEqual(push(np.ones([1, 2], np.float32)), 1)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "must be of shape"
        ):
            push(np.ones([1, 3], np.float32))

    def test_functions_wait_for_what_other_workers_have_found(self):
        table = _table()
        exchange = table.rows.regime.exchange
        merge = exchange.merge

        def merge_with_others(gradients):
            finite = tf.constant(False)
            return [one._replace(finite=finite) for one in merge(gradients)]

        @tf.function
        def push():
            return table.push([1], [[1.0, 1.0]], learning_rate=0.1)

        with mock.patch.object(exchange, "merge", merge_with_others):
            for _ in range(10):
                with self.assertRaisesRegex(
                    tf.errors.InvalidArgumentError, "no table was changed"
                ):
                    push()
        self.assertEqual(table.size(), 0)


if __name__ == "__main__":
    tf.test.main()
