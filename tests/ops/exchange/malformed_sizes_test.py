# SPDX-License-Identifier: Apache-2.0
"""Sizes whose sums and products are beyond int64, for every op that has any."""

import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from ops_util import INT64_MAX, INT64_MIN, RefusalTestCase, table_config

from tf_ext import ops
from tf_ext.ops.exchange import exchange_ops
from tf_ext.ops.snapshot import snapshot_ops

pytestmark = pytest.mark.slow_tests(
    "MalformedSizesTest::test_op_sum_of_a_sum_that_wraps_to_none",
)

_NO_SHAPE = "sizes must not be negative, and their product must be below 2^63"
_NEGATIVE = ("sizes must not be negative", "must be non-negative but is -1")


def _pack(header=((0,), (0,)), width=2**62, **options):
    header = np.array(header, np.int64).reshape([-1, 1])
    sizes = np.zeros([len(header)], np.int64)
    return exchange_ops.exchange_pack(
        [tf.zeros([0], tf.int64)], [sizes], header, width, **options
    )


def _pull(width, peers=2):
    handle = ops.sparse_table_handle(table_config(dim=4))
    return exchange_ops.exchange_pull(
        [handle], [[1]], [[1] + [0] * (peers - 1)], [False], width, dims=[4]
    )


def _huge_counts(values):
    """Of rows without columns, 2^40 from each of 2^23 peers."""
    return tf.fill([values, 2**23], tf.constant(2**40, tf.int64))


def _restore(handle, path="/nowhere", **changes):
    arguments = {
        "paths": [path],
        "files": [[0, 0, 0, 32, 0]],
        "chunk_bytes": 1 << 20,
        "row_bytes": 24,
        "field_names": ["weights"],
        "field_types": [tf.float32],
        "field_counts": [4],
        "field_offsets": [8],
        **changes,
    }
    arguments = {
        name: np.array(value, np.int64) if name == "files" else value
        for name, value in arguments.items()
    }
    return snapshot_ops.sparse_table_restore(handle, **arguments)


_CASES = (
    ("pack_2_to_62", _pack, f"packed cannot be of shape [2,{2**62}]"),
    (
        "pack_all_or_none",
        lambda: _pack(width=INT64_MAX, all_or_none=True),
        f"packed cannot be of shape [2,{INT64_MAX}]: {_NO_SHAPE}",
    ),
    (
        "pack_for_nobody",
        lambda: _pack((), width=-1),
        ("split_sizes[0] must be non-negative with the sum 0", *_NEGATIVE),
    ),
    (
        "pull_2_to_62",
        lambda: _pull(2**62),
        f"packed cannot be of shape [2,{2**62}]",
    ),
    (
        "pull_int64_max",
        lambda: _pull(INT64_MAX, 3),
        f"packed cannot be of shape [3,{INT64_MAX}]: {_NO_SHAPE}",
    ),
    (
        "unpack_a_sum",
        lambda: exchange_ops.exchange_unpack(
            tf.zeros([2**23, 0]), _huge_counts(1), dims=[0]
        ),
        "counts[0] has a sum beyond int64",
    ),
    (
        "sum_of_a_sum_that_wraps_to_none",
        lambda: exchange_ops.exchange_sum(
            tf.zeros([2**23, 0]),
            _huge_counts(2),
            segments=[tf.zeros([0], tf.int32)],
            signs=[[7]],
            dims=[0, 0],
            sum_of=[0, 0],
        ),
        f"segments[0] must be of shape [{INT64_MAX}] (the sum of its counts), "
        "but its shape is [0]",
    ),
    *(
        (
            f"sum_segments_into_{count}",
            lambda count=count: ops.sum_segments([[1.0, 2.0]], [0], count),
            (f"sums cannot be of shape [{count},2]", *_NEGATIVE[1:]),
        )
        for count in (2**62, INT64_MAX, -1)
    ),
    (
        "header_of_a_negative_size",
        lambda: exchange_ops.exchange_header([[3, 1], [0, -5]], [1, 1], 0),
        "split_sizes[1][1] must be at least 0, but is -5.",
    ),
    (
        "header_of_a_sum_of_sizes",
        lambda: exchange_ops.exchange_header(
            [[INT64_MAX], [INT64_MAX]], [0, 0], 0
        ),
        "numbers fit int64, but those of peer 0 do not.",
    ),
    (
        "header_of_a_size_and_itself",
        lambda: exchange_ops.exchange_header([[0, INT64_MAX - 2]], [0], 0),
        "numbers fit int64, but those of peer 1 do not.",
    ),
    (
        "header_of_a_product",
        lambda: exchange_ops.exchange_header([[2**32]], [2**32], 0),
        "numbers fit int64, but those of peer 0 do not.",
    ),
    (
        "header_of_a_negative_length",
        lambda: exchange_ops.exchange_header([[3]], [-1], 0),
        "lengths[0] must be at least 0, but is -1.",
    ),
    (
        "agree_on_int64_max",
        lambda: exchange_ops.exchange_agree([[1, 2, 3, 4]], count=INT64_MAX),
        f"and {INT64_MAX} columns, but its shape is [1,4]",
    ),
    (
        "width_of_int64_max",
        lambda: exchange_ops.exchange_width(INT64_MAX),
        f"wanted must be at most {2**40}, but is {INT64_MAX}.",
    ),
    (
        "unique_in_2_to_62_shards",
        lambda: ops.unique_by_shard([1], 2**62),
        f"num_shards is {2**62}; it must be from 1 to 1048576",
    ),
)

_RESTORE_CASES = (
    *(
        (f"row_bytes_{size}", {"row_bytes": size}, f"but it is {size}.")
        for size in (INT64_MAX, INT64_MAX - 31, 2**62, -1, INT64_MIN, 0)
    ),
    *(
        (f"chunk_bytes_{size}", {"chunk_bytes": size}, f"but it is {size}.")
        for size in (INT64_MAX, 2**62, 2**20 + 1, 55, 0, -1, INT64_MIN)
    ),
    *(
        (
            f"field_offset_{offset}",
            {"field_offsets": [offset]},
            f'"weights" should be at byte {offset} of the snapshot\'s rows, '
            "which have 24 bytes.",
        )
        for offset in (INT64_MAX, INT64_MAX - 8, 9, 7, -1, INT64_MIN)
    ),
    (
        "field_count",
        {"field_counts": [INT64_MAX]},
        f"of the snapshot is float32[{INT64_MAX}].",
    ),
    *(
        (f"file_{name}", {"files": [file]}, "files[0] must have rows and")
        for name, file in (
            ("rows", [0, -1, 0, 32, 0]),
            ("erased", [0, 0, INT64_MIN, 32, 0]),
            ("bytes", [0, 0, 0, 31, 0]),
            ("negative_bytes", [0, 0, 0, INT64_MIN, 0]),
            ("crc", [0, 0, 0, 32, 2**32]),
        )
    ),
    (
        "shards",
        {"shard": 5, "shards": INT64_MAX},
        "shard must be at least 0 and below shards, which must be at most "
        f"1048576, but they are 5 and {INT64_MAX}.",
    ),
    ("shard", {"shard": -1}, "but they are -1 and 1."),
    (
        "stored_shards",
        {"stored_shards": 0},
        "file_shards[0] must be at least 0 and below stored_shards",
    ),
    (
        "file_shard",
        {"stored_shards": 2, "file_shards": [2]},
        "file_shards[0] must be at least 0 and below stored_shards",
        "they are 2 and 2.",
    ),
    (
        "file_shards",
        {"file_shards": [0, 0]},
        "file_shards must be of shape [1] (one for each of the paths), but "
        "its shape is [2].",
    ),
)


class MalformedSizesTest(RefusalTestCase):
    @parameterized.named_parameters(*_CASES)
    def test_op(self, call, *texts):
        self.assert_refused(call, *texts)

    @parameterized.named_parameters(*_RESTORE_CASES)
    def test_restore(self, changes, *texts):
        handle = ops.sparse_table_handle(table_config(dim=4))
        self.assert_refused(lambda: _restore(handle, **changes), *texts)

    def test_a_header_may_reach_the_last_number(self):
        header = exchange_ops.exchange_header([[INT64_MAX - 5]], [1], 0)
        self.assertAllEqual(
            header, [[INT64_MAX - 5, INT64_MAX - 1, INT64_MAX - 4, 0]]
        )

    def test_save_names_any_shard(self):
        handle = ops.sparse_table_handle(table_config(dim=4))
        with tempfile.TemporaryDirectory(prefix="tf_ext_ops_") as directory:
            snapshot_ops.sparse_table_save(
                handle, directory, "a" * 32, shard=INT64_MAX
            )
            self.assertEqual(
                os.listdir(directory),
                [f"rows-{'a' * 16}-{INT64_MAX}-000.chunks"],
            )


if __name__ == "__main__":
    tf.test.main()
