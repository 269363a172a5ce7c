# SPDX-License-Identifier: Apache-2.0
"""The op that makes strings of columns of text."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from ops_util import MODES

from tf_ext.ops.bags import text_ops


class StringsOfColumnsTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_some_rows_of_columns(self, mode):
        rng = np.random.default_rng(0)
        values = [
            [rng.bytes(rng.integers(0, 60)) for _ in range(50)]
            for _ in range(3)
        ]
        lengths = np.array([[len(v) for v in column] for column in values])
        ends = np.cumsum(lengths).reshape(3, 50)
        offsets = np.concatenate([ends[:, :1] - lengths[:, :1], ends], 1)
        text = np.frombuffer(b"".join(map(b"".join, values)), np.uint8)
        rows = [49, 0, 7, 7]
        found = mode(lambda *a: text_ops.strings_of_columns(*a, columns=3))(
            text, offsets, rows
        )
        for column, strings in zip(values, found, strict=True):
            self.assertEqual(
                strings.numpy().tolist(), [column[row] for row in rows]
            )

    def test_nothing(self):
        [none] = text_ops.strings_of_columns([], [[0]], [], columns=1)
        self.assertEqual(none.shape, [0])

    @parameterized.named_parameters(*MODES)
    def test_refuses(self, mode):
        call = mode(lambda *a: text_ops.strings_of_columns(*a, columns=1))
        for arguments, message in (
            (([[1]], [[0, 1]], [0]), "text must be a vector"),
            (([1], [0, 1], [0]), "offsets must be a matrix"),
            (([1], [[0, 1]], 0), "rows must be a vector"),
            (([1], [[0, 1], [0, 1]], [0]), r"offsets must be of shape \[1, n"),
            (
                ([1], np.zeros([1, 0], np.int64), []),
                r"offsets must be of shape \[1, n",
            ),
            (([1], [[0, 1]], [1]), r"rows\[0\] is 1; allowed are 0 to 0"),
            (([1], [[0, 1]], [-1]), r"rows\[0\] is -1; allowed are 0 to 0"),
            (
                ([1], [[0, 2]], [0]),
                "must increase .* at most 1, .* up to 2",
            ),
            (([1], [[-1, 1]], [0]), "offsets must increase .*is from -1"),
            (([1], [[1, 0]], [0]), "offsets must increase .*is from 1 up to 0"),
        ):
            with self.assertRaisesRegex(
                (tf.errors.InvalidArgumentError, ValueError), message
            ):
                call(*arguments)


if __name__ == "__main__":
    tf.test.main()
