# SPDX-License-Identifier: Apache-2.0
"""What ops know of shapes while they are traced, before anything runs.

The kernels look at the same shapes when they run, and say the same; here only
what a function's author gets to know at once counts.
"""

import tensorflow as tf
from absl.testing import parameterized
from ops_util import table_config

from tf_ext import ops
from tf_ext.ops.exchange import exchange_ops
from tf_ext.ops.snapshot import snapshot_ops
from tf_ext.ops.table import owner_ops


def _handle():
    return ops.sparse_table_handle(table_config(name="traced"))


def _combine(rows=(4, 2), row_splits=7, weights=5, combiners=("sum", "mean")):
    return ops.combine_bags(
        tf.ones(rows),
        tf.zeros([5], tf.int32),
        tf.zeros([row_splits], tf.int64),
        tf.ones([weights]),
        combiners=list(combiners),
    )


def _exchange_pull(
    handles=2,
    signs=((1, 2, 3), (4,)),
    split_sizes=((1, 2), (0, 1)),
    training=(False, False),
    width=16,
):
    return exchange_ops.exchange_pull(
        [_handle() for _ in range(handles)],
        signs,
        split_sizes,
        training,
        width,
        [4, 4],
    )


def _restore(**changed):
    arguments = {
        "paths": ["/nowhere"],
        "files": [[0] * 5],
        "chunk_bytes": 1 << 20,
        "row_bytes": 24,
        "shard": 0,
        "shards": 1,
        "action": "verify",
        "file_shards": [0],
        "stored_shards": 1,
        **changed,
    }
    return snapshot_ops.sparse_table_restore(
        _handle(),
        **arguments,
        field_names=["weights"],
        field_types=[tf.float32],
        field_counts=[4],
        field_offsets=[8],
    )


def _trace(call):
    return tf.function(call, autograph=False).get_concrete_function()


class TracedShapesTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("combine_bags", _combine, [3, 4]),
        ("combine_bags_without_weights", lambda: _combine(weights=0), [3, 4]),
        ("exchange_pull", _exchange_pull, [2, 16]),
        ("restore", lambda: _restore().rows, []),
        ("restore_converting", lambda: _restore().converted, [3]),
        (
            "release",
            lambda: owner_ops.release_sparse_tables("owner", "run"),
            [2],
        ),
        ("stats", lambda: ops.sparse_table_stats(_handle()), [None]),
        ("config", lambda: ops.sparse_table_config(_handle()), []),
        ("erase", lambda: ops.sparse_table_erase(_handle(), [1]), []),
        ("evict", lambda: ops.sparse_table_evict(_handle(), 1).evicted, []),
        ("width", lambda: exchange_ops.exchange_width(3).index, []),
    )
    def test_knows(self, call, shape):
        found = _trace(call).output_shapes
        self.assertEqual(found.as_list(), shape)

    @parameterized.named_parameters(
        (
            "row_splits_between_batch_sizes",
            lambda: _combine(row_splits=8),
            r"row_splits must have 2 \* batch_size \+ 1 values .* \[8\]",
        ),
        (
            "row_splits_of_no_bag",
            lambda: _combine(row_splits=0),
            r"row_splits must have 2 \* batch_size \+ 1 values .* \[0\]",
        ),
        (
            "fewer_weights_than_values",
            lambda: _combine(weights=4),
            r"weights must be a vector of 5 values .*as inverse.* \[4\]",
        ),
        (
            "more_weights_than_values",
            lambda: _combine(weights=6),
            r"weights must be a vector of 5 values .*as inverse.* \[6\]",
        ),
        (
            "split_sizes_of_three_peers",
            lambda: _exchange_pull(split_sizes=[[1, 2], [0, 1, 0]]),
            "must be equal, but are 2 and 3",
        ),
        (
            "training_of_rank_1",
            lambda: _exchange_pull(training=[False, [True]]),
            "must be rank 0 but is rank 1",
        ),
        (
            "release_owner_of_rank_1",
            lambda: owner_ops.release_sparse_tables(["owner"], "run"),
            r"owner must be a scalar, but its shape is \[1\]",
        ),
        (
            "release_run_of_rank_1",
            lambda: owner_ops.release_sparse_tables("owner", ["run"]),
            r"run must be a scalar, but its shape is \[1\]",
        ),
        *(
            (
                f"restore_{name}_of_another_rank",
                lambda name=name, value=value: _restore(**{name: value}),
                f"{name} must be a {kind}, but its shape is ",
            )
            for name, value, kind in (
                ("paths", [["/nowhere"]], "vector"),
                ("files", [0] * 5, "matrix"),
                ("chunk_bytes", [1 << 20], "scalar"),
                ("row_bytes", [24], "scalar"),
                ("shard", [0], "scalar"),
                ("shards", [1], "scalar"),
                ("action", ["verify"], "scalar"),
                ("file_shards", [[0]], "vector"),
                ("stored_shards", [1], "scalar"),
            )
        ),
    )
    def test_refuses(self, call, message):
        with self.assertRaisesRegex(ValueError, message):
            _trace(call)


if __name__ == "__main__":
    tf.test.main()
