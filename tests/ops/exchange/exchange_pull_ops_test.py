# SPDX-License-Identifier: Apache-2.0
"""The op that reads rows into the buffer that takes them to peers."""

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from ops_util import MODES, UNIFORM, RefusalTestCase, table_config

from tf_ext import ops
from tf_ext.ops.exchange import exchange_ops


def _handles(**more):
    return [
        ops.sparse_table_handle(
            table_config(UNIFORM, name=f"t{dim}", dim=dim, **more)
        )
        for dim in (4, 1)
    ]


class ExchangePullTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.product(
        mode=[mode for _, mode in MODES], training=[False, True], most=[7, 9999]
    )
    def test_is_a_pull_and_a_pack(self, mode, training, most):
        rng = np.random.default_rng(4)
        handles, peers = _handles(), 3
        sizes = rng.integers(0, most, [3, peers])
        sizes[1, 2] = 0
        signs = [rng.integers(0, 20_000, n) for n in sizes.sum(1)]
        dims = [4, 1, 4]
        width = int((sizes.T @ dims).max()) + 3
        tables = [handles[0], handles[1], handles[0]]
        insert = [training, False, training]

        @mode
        def call():
            return exchange_ops.exchange_pull(
                tables, signs, list(sizes), insert, width, dims
            )

        packed = call()
        self.assertEqual(packed.shape, [peers, width])
        new = len({*signs[0], *signs[2]}) if training else 0
        self.assertEqual(ops.sparse_table_size(handles[0]), new)
        self.assertEqual(ops.sparse_table_size(handles[1]), 0)
        rows = [
            ops.sparse_table_pull(handle, its_signs, dim=dim)
            for handle, its_signs, dim in zip(tables, signs, dims)
        ]
        expected = exchange_ops.exchange_pack(
            rows, list(sizes), tf.zeros([peers, 0]), width
        )
        self.assertAllEqual(packed, expected)

    def test_statistics_follow_weights(self):
        handles = _handles(statistics="show,click")
        for handle, dim in zip(handles, (4, 1)):
            ops.sparse_table_push(
                handle,
                [7, 8],
                tf.ones([2, dim]),
                [[3.0, 1.0], [5.0, 2.0]],
                hyperparameters=[0.5, 0.0],
            )
        tables = [handles[0], handles[1], handles[0]]
        signs, sizes = [[7, 8, 9], [8, 9], [9, 7]], [[1, 2], [2, 0], [0, 2]]
        dims, statistics = [4, 1, 4], [2, 2, 0]
        packed = exchange_ops.exchange_pull(
            tables, signs, sizes, [False] * 3, 22, dims, statistics
        )
        rows = [
            ops.sparse_table_pull(handle, its, dim=dim, statistics=count)
            for handle, its, dim, count in zip(tables, signs, dims, statistics)
        ]
        self.assertAllEqual(rows[0][:, 4:], [[3, 1], [5, 2], [0, 0]])
        self.assertAllEqual(rows[1][:, 1:], [[5, 2], [0, 0]])
        expected = exchange_ops.exchange_pack(rows, sizes, tf.zeros([2, 0]), 22)
        self.assertAllEqual(packed, expected)


def _pull(
    handles=None,
    signs=((1, 2, 3), (4,)),
    split_sizes=((1, 2), (0, 1)),
    training=(False, False),
    width=9,
    dims=(4, 1),
    statistics=(),
):
    return exchange_ops.exchange_pull(
        handles or _handles(),
        signs,
        split_sizes,
        training,
        width,
        dims,
        statistics,
    )


class MalformedTest(RefusalTestCase):
    @parameterized.named_parameters(
        (
            "signs_matrix",
            {"signs": [[[1, 2, 3]], [4]]},
            ("signs[0] must be a vector", "must be rank 1"),
        ),
        (
            "split_sizes_of_three_peers",
            {"split_sizes": [[1, 2], [0, 1, 0]]},
            (
                "split_sizes[1] must be of shape [2], but its shape is [3].",
                "must be equal, but are 2 and 3",
            ),
        ),
        (
            "split_sizes_too_small",
            {"split_sizes": [[1, 1], [0, 1]]},
            "split_sizes[0] must be non-negative with the sum 3 (the number "
            "of signs[0]), but is 1 1",
        ),
        (
            "training_vector",
            {"training": [[True], True]},
            ("training[0] must be a scalar", "must be rank 0"),
        ),
        (
            "width_too_small",
            {"width": 8},
            "width must be at least 9, what goes to peer 1, but is 8.",
        ),
        (
            "width_negative",
            {"width": -1},
            ("width must be at least 4, what goes to peer 0, but is -1.", "-1"),
        ),
        (
            "width_vector",
            {"width": [9]},
            ("width must be a scalar", "must be rank 0"),
        ),
        (
            "dims_of_another_table",
            {"dims": [4, 2]},
            "dims[1] is 2, but the rows of the table 't1' have 1 weights.",
        ),
        (
            "statistics_of_a_table_without",
            {"statistics": [0, 2]},
            "statistics[1] is 2, but the rows of the table 't1' have 0",
        ),
        (
            "negative_statistics",
            {"statistics": [-4, 0]},
            "statistics[0] is -4, but the rows of the table 't4' have 0",
        ),
        (
            "statistics_too_few",
            {"statistics": [0]},
            "statistics must have N = 2 values, but",
        ),
        ("dims_too_few", {"dims": [4]}, "dims must have N = 2 values, but"),
        (
            "handles_of_something_else",
            {"handles": [tf.Variable(1.0).handle] * 2},
            "handle",
        ),
    )
    def test_pull(self, arguments, *texts):
        self.assert_refused(lambda: _pull(**arguments), *texts)

    def test_well_formed(self):
        self.assertEqual(_pull().shape, [2, 9])


if __name__ == "__main__":
    tf.test.main()
