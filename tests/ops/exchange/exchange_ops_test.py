# SPDX-License-Identifier: Apache-2.0
"""The ops around an all-to-all collective."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from ops_util import FLOAT64, MODES, RefusalTestCase

from tf_ext.ops.exchange import exchange_ops


def _random_parts(rng, dtype, dims, peers, most):
    """Values of each of `dims`, and how many rows of them go to each peer."""
    sizes = rng.integers(0, most + 1, [len(dims), peers])
    values = [
        rng.integers(-(2**62), 2**62, [total, dim])
        if dtype == tf.int64
        else rng.normal(size=[total, dim]).astype(np.float32)
        for total, dim in zip(sizes.sum(1), dims)
    ]
    return values, sizes


class RoundTripTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.product(
        mode=[mode for _, mode in MODES],
        dtype=[tf.int64, tf.float32],
        peers=[1, 2, 5],
        most=[0, 1, 7],
    )
    def test_unpack_is_the_inverse_of_pack(self, mode, dtype, peers, most):
        rng = np.random.default_rng(peers + most)
        dims, columns = [1, 4, 0, 3], 2
        values, sizes = _random_parts(rng, dtype, dims, peers, most)
        header = np.arange(columns * peers).reshape([peers, columns])
        width = columns + int((sizes.T @ dims).max()) + 3

        @mode
        def round_trip():
            packed = exchange_ops.exchange_pack(
                [tf.constant(v, dtype) for v in values],
                list(sizes),
                tf.constant(header, dtype),
                width,
            )
            return packed, *(
                exchange_ops.exchange_unpack(packed, sizes, dims, columns, flat)
                for flat in (False, True)
            )

        packed, unpacked, flat = round_trip()
        self.assertEqual(packed.shape, [peers, width])
        self.assertAllEqual(packed[:, :columns], header)
        for one, before in zip(unpacked, values, strict=True):
            self.assertEqual(one.dtype, dtype)
            self.assertAllEqual(one, before)
        for one, before in zip(flat, unpacked, strict=True):
            self.assertAllEqual(one, tf.reshape(before, [-1]))

    @parameterized.parameters(tf.int64, tf.float32)
    def test_lays_out_header_parts_and_zeros(self, dtype):
        packed = exchange_ops.exchange_pack(
            [tf.constant([1, 2, 3], dtype), tf.constant([[4, 5]], dtype)],
            [[1, 2], [0, 1]],
            header=tf.constant([[8], [9]], dtype),
            width=6,
        )
        self.assertAllEqual(packed, [[8, 1, 0, 0, 0, 0], [9, 2, 3, 4, 5, 0]])

    def test_fills_with_zeros_what_was_used_before(self):
        # A buffer that the allocator hands out again holds other values.
        for _ in range(20):
            garbage = tf.fill([2, 1024], 7.0)
            del garbage
            packed = exchange_ops.exchange_pack(
                [tf.zeros([0, 4])], [[0, 0]], tf.ones([2, 1]), 1024
            )
            self.assertAllEqual(packed[:, 1:], tf.zeros([2, 1023]))

    def test_packs_into_no_more_than_needed(self):
        packed = exchange_ops.exchange_pack([[1, 2]], [[2]], [[3]], width=3)
        self.assertAllEqual(packed, [[3, 1, 2]])
        [rows] = exchange_ops.exchange_unpack(packed, [[2]], [1], offset=1)
        self.assertAllEqual(rows, [[1], [2]])

    def test_packs_all_or_none(self):
        for width, packed in (
            (4, [[8, 1, 0, 0], [9, 2, 3, 4]]),
            (3, [[8, 0, 0], [9, 0, 0]]),
            (1, [[8], [9]]),
        ):
            self.assertAllEqual(
                exchange_ops.exchange_pack(
                    [[1, 2, 3], [4]],
                    [[1, 2], [0, 1]],
                    header=[[8], [9]],
                    width=width,
                    all_or_none=True,
                ),
                packed,
            )

    def test_knows_shapes_in_a_graph(self):
        @tf.function
        def again(packed, counts, width):
            parts = exchange_ops.exchange_unpack(
                packed, counts, [4, 0], offset=1
            )
            self.assertEqual(
                [part.shape.as_list() for part in parts], [[None, 4], [None, 0]]
            )
            return exchange_ops.exchange_pack(
                parts, tf.unstack(counts), packed[:, :1], width
            )

        concrete = again.get_concrete_function(
            tf.TensorSpec([3, None]),
            tf.TensorSpec([2, 3], tf.int64),
            tf.TensorSpec([], tf.int64),
        )
        self.assertEqual(concrete.output_shapes.as_list(), [3, None])


class LimitTest(parameterized.TestCase, tf.test.TestCase):
    # More than a thread copies at a time, and than is looked at at a time.
    _ROWS = 20_000

    def _flags(self, first, second):
        packed = exchange_ops.exchange_pack(
            [first, second],
            [[5_000, self._ROWS - 5_000], [1, 1]],
            header=[[7.0, 8.0], [7.0, 9.0]],
            width=3 + 4 * self._ROWS,
            limit=2.0,
        )
        self.assertAllEqual(packed[:, 1], [8, 9])
        self.assertAllEqual(
            tf.reshape(packed[0, 2 : 2 + 20_000], [-1, 4]), first[:5_000]
        )
        return packed[:, 0].numpy().tolist()

    def test_every_value_counts_for_all_peers(self):
        good = np.full([self._ROWS, 4], -2.0, np.float32)
        ends = tf.constant([[2.0], [0.0]])
        self.assertEqual(self._flags(good, ends), [0.0, 0.0])
        for bad in (np.nan, np.inf, -np.inf, 2.5, -2.5):
            for row in (0, 4_999, 5_000, 12_345, self._ROWS - 1):
                values = good.copy()
                values[row, row % 4] = bad
                self.assertEqual(self._flags(values, ends), [1.0, 1.0])
            self.assertEqual(self._flags(good, [[1.0], [bad]]), [1.0, 1.0])

    def test_nothing_is_within(self):
        packed = exchange_ops.exchange_pack(
            [tf.zeros([0, 4])], [[0, 0]], tf.ones([2, 1]), 1, limit=1.0
        )
        self.assertAllEqual(packed, [[0.0], [0.0]])


class RaiseErrorTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_raises_the_text(self, mode):
        call = mode(lambda text: exchange_ops.raise_error(text))
        self.assertEqual(call(tf.constant("")), b"")
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "bag 7 is wrong"
        ):
            call(tf.constant("bag 7 is wrong"))

    def test_is_not_left_out_of_a_graph(self):
        @tf.function
        def call(x):
            exchange_ops.raise_error("always")
            return x + 1.0

        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "always"):
            call(tf.constant(1.0))


def _pack(
    values=((1.0, 2.0), (3.0, 4.0), (5.0, 6.0)),
    split_sizes=(1, 2),
    header=((0.0,), (0.0,)),
    width=5,
    **options,
):
    values = tf.convert_to_tensor(values)
    return exchange_ops.exchange_pack(
        [values], [split_sizes], header, width, **options
    )


def _unpack(
    packed=((0.0, 1.0, 2.0), (0.0, 3.0, 4.0)),
    counts=((1, 1), (0, 1)),
    dims=(1, 1),
    offset=1,
):
    return exchange_ops.exchange_unpack(packed, counts, dims, offset=offset)


_PACK_CASES = (
    (
        "values_scalar",
        {"values": 1.0},
        ("values[0] must have at least one dim", "must be at least rank 1"),
    ),
    ("values_float64", {"values": tf.ones([3, 2], tf.float64)}, FLOAT64),
    (
        "split_sizes_of_rank_2",
        {"split_sizes": [[1, 2]]},
        ("split_sizes[0] must be a vector", "must be rank 1"),
    ),
    (
        "split_sizes_of_three_peers",
        {"split_sizes": [1, 1, 1]},
        (
            "split_sizes[0] must be of shape [2] (header has so many rows), "
            "but its shape is [3]",
            "must be equal, but are 2 and 3",
        ),
    ),
    (
        "split_sizes_too_small",
        {"split_sizes": [1, 1]},
        "split_sizes[0] must be non-negative with the sum 3 (the first "
        "dimension of values[0]), but is 1 1",
    ),
    (
        "split_sizes_too_large",
        {"split_sizes": [1, 3]},
        "split_sizes[0] must be non-negative with the sum 3 ",
    ),
    (
        "split_sizes_negative",
        {"split_sizes": [-1, 4]},
        "split_sizes[0] must be non-negative with the sum 3 ",
    ),
    (
        "split_sizes_whose_sum_overflows",
        {"split_sizes": [2**63 - 1, -(2**63) + 4]},
        "split_sizes[0] must be non-negative with the sum 3 ",
    ),
    (
        "header_vector",
        {"header": [0.0, 0.0]},
        ("header must be a matrix", "must be rank 2"),
    ),
    (
        "header_of_three_peers",
        {"header": [[0.0]] * 3},
        (
            "split_sizes[0] must be of shape [3] (header has so many rows)",
            "must be equal, but are 3 and 2",
        ),
    ),
    (
        "width_vector",
        {"width": [5]},
        ("width must be a scalar", "must be rank 0"),
    ),
    (
        "width_too_small",
        {"width": 4},
        "width must be at least 5, what goes to peer 1, but is 4.",
    ),
    ("width_negative", {"width": -1}, ("width must be at least 3", "-1")),
    (
        "width_less_than_the_header",
        {"width": 0, "all_or_none": True},
        "width must be at least 1, what goes to peer 0, but is 0.",
    ),
    ("limit_negative", {"limit": -1.0}, "limit must be 0, or above 0", "-1"),
    ("limit_nan", {"limit": float("nan")}, "limit must be 0, or above 0"),
    (
        "limit_of_integers",
        {
            "values": tf.ones([3, 2], tf.int64),
            "header": tf.ones([2, 1], tf.int64),
            "limit": 1.0,
        },
        "limit must be 0, or above 0 for floats, but is 1.",
    ),
    (
        "limit_without_a_header",
        {"header": [[], []], "limit": 1.0},
        "header must have a column if there is a limit, but its shape is [2,0]",
    ),
)

_UNPACK_CASES = (
    (
        "packed_vector",
        {"packed": [0.0, 1.0]},
        "packed must be a matrix",
    ),
    (
        "packed_float64",
        {"packed": tf.ones([2, 3], tf.float64)},
        FLOAT64,
    ),
    (
        "counts_vector",
        {"counts": [1, 1]},
        "counts must be a matrix",
    ),
    (
        "counts_of_three_peers",
        {"counts": [[0, 0, 0]] * 2},
        "counts must be of shape [2, ",
        "its shape is [2,3]",
    ),
    (
        "counts_of_one_value",
        {"counts": [[1, 1]]},
        "counts must be of shape [2, ",
        "its shape is [1,2]",
    ),
    (
        "counts_negative",
        {"counts": [[1, 1], [0, -1]]},
        "counts[1][1] must be from 0 to 1, what the rest of row 1 of packed "
        "holds after offset 1, but is -1.",
    ),
    (
        "counts_beyond_the_row",
        {"counts": [[1, 1], [2, 1]]},
        "counts[1][0] must be from 0 to 1, what the rest of row 0 of packed "
        "holds after offset 1, but is 2.",
    ),
    (
        "counts_huge",
        {"counts": [[2**62, 1], [0, 1]]},
        "counts[0][0] must be from 0 to 2, ",
    ),
    (
        "counts_huge_of_rows_without_columns",
        {"counts": [[2**62, 1], [0, 1]], "dims": [0, 1]},
        "counts[0][0] must be from 0 to 1099511627776, ",
    ),
    (
        "dims_negative",
        {"dims": [1, -1]},
        ("dims must not be negative", "must be non-negative", ">= -1"),
    ),
    (
        "offset_beyond_the_row",
        {"offset": 4},
        "counts[0][0] must be from 0 to 0, what the rest of row 0 of packed "
        "holds after offset 4, but is 1.",
    ),
    ("offset_negative", {"offset": -1}, "offset", "-1"),
)


class MalformedTest(RefusalTestCase):
    @parameterized.named_parameters(*_PACK_CASES)
    def test_pack(self, arguments, *texts):
        self.assert_refused(lambda: _pack(**arguments), *texts)

    def test_pack_of_nothing(self):
        with self.assertRaises(ValueError) as raised:
            exchange_ops.exchange_pack([], [], header=[[1]], width=1)
        self.assertEqual(
            str(raised.exception),
            "Argument `values` of exchange_pack must be a non-empty list of "
            "tensors. Received: values=[]",
        )

    @parameterized.named_parameters(*_UNPACK_CASES)
    def test_unpack(self, arguments, *texts):
        self.assert_refused(lambda: _unpack(**arguments), *texts)

    @parameterized.parameters([["wrong"]], 1)
    def test_raise_error(self, error):
        self.assert_refused(
            lambda: exchange_ops.raise_error(error),
            ("error must be a scalar", "expected to be a string", "string"),
        )

    def test_well_formed(self):
        self.assertAllEqual(_pack(), [[0, 1, 2, 0, 0], [0, 3, 4, 5, 6]])
        first, second = _unpack()
        self.assertAllEqual(first, [[1], [3]])
        self.assertAllEqual(second, [[4]])


if __name__ == "__main__":
    tf.test.main()
