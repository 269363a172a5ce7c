# SPDX-License-Identifier: Apache-2.0
"""The ops by which peers agree on the sizes of what they send."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from ops_util import MODES, RefusalTestCase

from tf_ext.ops.exchange import exchange_ops


class SizesTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_peers_agree(self, mode):
        rng = np.random.default_rng(2)
        peers, lengths = 3, [16, 1]
        sizes = rng.integers(0, 100, [peers, 2, peers])  # from, kind, to
        headers = [
            mode(exchange_ops.exchange_header)(list(own), lengths, flag)
            for own, flag in zip(sizes, [0, 7, 1], strict=True)
        ]
        for rank in range(peers):
            received = tf.stack([header[rank] for header in headers])
            padded = tf.pad(received, [[0, 0], [0, 4]], constant_values=999)
            for rows in (received, padded):
                agreed = mode(lambda r: exchange_ops.exchange_agree(r, 2))(rows)
                self.assertAllEqual(agreed.counts, sizes[:, :, rank].T)
                self.assertEqual(agreed.signs_width, 2 + 3 + sizes.sum(1).max())
                self.assertEqual(
                    agreed.values_width,
                    1 + np.einsum("fkt,k->ft", sizes, lengths).max(),
                )
                self.assertEqual(agreed.flag, 7)

    @parameterized.named_parameters(*MODES)
    def test_few_widths(self, mode):
        width = mode(exchange_ops.exchange_width)
        widths = list(range(1, 16))
        for unit in (2, 4, 8, 16):
            widths += [unit * n for n in range(8, 16)]
        for wanted in range(-1, widths[-1] + 1):
            found = width(tf.constant(wanted, tf.int64))
            index = min(i for i, w in enumerate(widths) if w >= wanted)
            self.assertEqual([int(x) for x in found], [widths[index], index])
        found = width(tf.constant(2**40, tf.int64))
        self.assertEqual(found.width, 2**40)
        self.assertLess(found.index, 1 << 16)

    def test_static_shapes(self):
        @tf.function
        def call(sizes, received):
            header = exchange_ops.exchange_header([sizes, sizes], [1, 2], 0)
            agreed = exchange_ops.exchange_agree(received, 2)
            return header, agreed.counts, agreed.flag

        concrete = call.get_concrete_function(
            tf.TensorSpec([3], tf.int64), tf.TensorSpec([3, None], tf.int64)
        )
        self.assertEqual(
            [shape.as_list() for shape in concrete.output_shapes],
            [[3, 5], [2, 3], []],
        )


_SIZE_CASES = (
    (
        "split_sizes_matrix",
        lambda: exchange_ops.exchange_header([[[1]]], [1], 0),
        ("split_sizes[0] must be of shape [1], but", "must be rank 1"),
    ),
    (
        "split_sizes_unequal",
        lambda: exchange_ops.exchange_header([[1, 2], [1]], [1, 1], 0),
        ("split_sizes[1] must be of shape [2], but its shape is [1].", "equal"),
    ),
    (
        "lengths_too_few",
        lambda: exchange_ops.exchange_header([[1], [1]], [1], 0),
        "lengths must have N = 2 values, but has 1.",
    ),
    (
        "flag_vector",
        lambda: exchange_ops.exchange_header([[1]], [1], [0]),
        "flag must be a scalar",
    ),
    (
        "received_vector",
        lambda: exchange_ops.exchange_agree([1, 2], 1),
        "received must be a matrix",
    ),
    (
        "received_too_narrow",
        lambda: exchange_ops.exchange_agree([[1, 2, 3]], 1),
        "received must have a row at least, and 4 columns, but its shape is "
        "[1,3].",
    ),
    (
        "received_of_nobody",
        lambda: exchange_ops.exchange_agree(tf.zeros([0, 4], tf.int64), 1),
        "received must have a row at least",
    ),
    (
        "count_0",
        lambda: exchange_ops.exchange_agree([[1, 2, 3, 4]], 0),
        "count",
    ),
    (
        "wanted_vector",
        lambda: exchange_ops.exchange_width([1]),
        "wanted must be a scalar",
    ),
    (
        "wanted_too_large",
        lambda: exchange_ops.exchange_width(2**40 + 1),
        "wanted must be at most 1099511627776, but is 1099511627777.",
    ),
)


class MalformedTest(RefusalTestCase):
    @parameterized.named_parameters(*_SIZE_CASES)
    def test_sizes(self, call, *texts):
        self.assert_refused(call, *texts)


if __name__ == "__main__":
    tf.test.main()
