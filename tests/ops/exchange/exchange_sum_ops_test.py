# SPDX-License-Identifier: Apache-2.0
"""The op that sums what came from peers."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from ops_util import MODES, RefusalTestCase

from tf_ext import ops
from tf_ext.ops.exchange import exchange_ops


class ExchangeSumTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_is_the_sum_of_what_unpack_gives_to_the_bit(self, mode):
        rng = np.random.default_rng(5)
        peers, dims, sum_of = 3, [16, 1, 16], [1, 0, 1]
        counts = rng.integers(0, 4000, [3, peers])
        counts[0, 1] = counts[1, 2] = 0
        width = 2 + int((counts.T @ dims).max()) + 5
        packed = rng.normal(size=[peers, width]).astype(np.float32)
        rows = [counts[1].sum(), counts[0].sum() + counts[2].sum()]
        totals = [int(n) // 2 + 3 for n in rows]
        signs = [np.arange(total) for total in totals]
        segments = [
            rng.integers(0, total, n).astype(np.int32)
            for n, total in zip(rows, totals, strict=True)
        ]

        @mode
        def call():
            sums = exchange_ops.exchange_sum(
                packed, counts, segments, signs, dims, sum_of, offset=2
            )
            values = exchange_ops.exchange_unpack(
                packed, counts, dims, offset=2
            )
            expected = [
                ops.sum_segments(part, *arguments)
                for part, *arguments in zip(
                    [values[1], tf.concat([values[0], values[2]], 0)],
                    segments,
                    totals,
                    strict=True,
                )
            ]
            return sums, expected

        sums, expected = call()
        for one, other in zip(sums, expected, strict=True):
            self.assertEqual(one.numpy().tobytes(), other.numpy().tobytes())

    def test_knows_shapes_in_a_graph(self):
        @tf.function
        def call(packed, counts, segments, signs):
            a, b = exchange_ops.exchange_sum(
                packed,
                counts,
                [segments] * 2,
                [signs, tf.zeros([5], tf.int64)],
                [4, 8, 4],
                [0, 1, 0],
            )
            self.assertEqual(a.shape.as_list(), [None, 4])
            self.assertEqual(b.shape.as_list(), [5, 8])
            return a

        call.get_concrete_function(
            tf.TensorSpec([3, None]),
            tf.TensorSpec([3, 3], tf.int64),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None], tf.int64),
        )


def _sum(
    packed=((0.0, 1.0, 2.0), (0.0, 3.0, 4.0)),
    counts=((1, 1), (0, 1)),
    segments=((0, 1), (0,)),
    signs=((7, 8), (9,)),
    dims=(1, 1),
    sum_of=(0, 1),
    offset=1,
):
    return exchange_ops.exchange_sum(
        packed, counts, segments, signs, dims, sum_of, offset
    )


_SUM_CASES = (
    ("packed_vector", {"packed": [0.0, 1.0]}, "packed must be a matrix"),
    ("packed_int64", {"packed": tf.ones([2, 3], tf.int64)}, "int64"),
    (
        "counts_beyond_the_row",
        {"counts": [[1, 1], [2, 1]]},
        "counts[1][0] must be from 0 to 1, what the rest of row 0 of packed "
        "holds after offset 1, but is 2.",
    ),
    (
        "segments_matrix",
        {"segments": [[[0, 1]], [0]]},
        ("segments[0] must be a vector", "must be rank 1"),
    ),
    (
        "segments_too_few",
        {"segments": [[0], [0]]},
        "segments[0] must be of shape [2] (the sum of its counts), but its "
        "shape is [1].",
    ),
    (
        "segments_beyond_the_signs",
        {"segments": [[0, 2], [0]]},
        "segments[1] is 2; it must be at least 0 and below count, 2.",
    ),
    (
        "signs_matrix",
        {"signs": [[[7, 8]], [9]]},
        ("signs[0] must be a vector", "must be rank 1"),
    ),
    (
        "dims_negative",
        {"dims": [1, -1]},
        ("dims must not be negative", "must be non-negative", ">= -1"),
    ),
    (
        "dims_of_one_sum_unequal",
        {"dims": [1, 2], "sum_of": [0, 0]},
        (
            "dims[1] must be that of the other values of sum 0, 1, but is 2.",
            "must be equal, but are 1 and 2",
        ),
    ),
    (
        "sum_of_too_short",
        {"sum_of": [0]},
        "sum_of must have a number for each of the 2 dims, but has 1.",
    ),
    (
        "sum_of_beyond",
        {"sum_of": [0, 2]},
        "sum_of[1] must be from 0 to 1, but is 2.",
    ),
    (
        "sum_of_without_one",
        {"sum_of": [0, 0]},
        "sum_of must have each of 0 to 1, but not 1.",
    ),
)


class MalformedTest(RefusalTestCase):
    @parameterized.named_parameters(*_SUM_CASES)
    def test_sum(self, arguments, *texts):
        self.assert_refused(lambda: _sum(**arguments), *texts)

    def test_well_formed(self):
        first, second = _sum(segments=[[1, 1], [0]])
        self.assertAllEqual(first, [[0], [4]])
        self.assertAllEqual(second, [[4]])


if __name__ == "__main__":
    tf.test.main()
