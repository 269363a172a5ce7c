# SPDX-License-Identifier: Apache-2.0
"""Ops in a graph have the names that they are given."""

import functools

import tensorflow as tf
from absl.testing import parameterized
from ops_util import table_config

from tf_ext.ops import process_ops
from tf_ext.ops.bags import bag_ops, gradient_sum_ops, hash_ops, text_ops
from tf_ext.ops.exchange import exchange_ops
from tf_ext.ops.passes import bundle_ops
from tf_ext.ops.snapshot import counter_ops, snapshot_ops, update_ops
from tf_ext.ops.table import (
    clock_ops,
    eviction_ops,
    owner_ops,
    step_ops,
    table_ops,
)

_CONFIG = table_config(name="named")
_SIGNS = [1, 2]
_SPLITS = [0, 1, 2]
_ROWS = [[1.0] * 4] * 2
_FILES = [[0] * 5]
_FIELDS = {
    "field_names": ["weights"],
    "field_types": [tf.float32],
    "field_counts": [4],
    "field_offsets": [8],
}

# An op, and its arguments.
_OPS = (
    (bag_ops.unique_by_shard, _SIGNS),
    (bag_ops.unique_by_shard_each, [_SIGNS]),
    (bag_ops.route_gradient, _ROWS, [[0.0] * 4], tf.int64),
    (bag_ops.cut_bags, tf.int64, _SPLITS, [], 2, [(0, 1)], [False]),
    (text_ops.strings_of_columns, [97, 98], [[0, 1, 2]], [1, 0], 1),
    (gradient_sum_ops.sum_segments, _ROWS, [0, 0], 1),
    (exchange_ops.exchange_header, [_SIGNS], [1], 0),
    (exchange_ops.exchange_agree, [[1, 2, 3, 4]], 1),
    (exchange_ops.exchange_width, 3),
    (exchange_ops.exchange_weigh, [_ROWS], 0.5),
    (exchange_ops.raise_error, ""),
    (process_ops.set_task, "task"),
    (process_ops.task,),
    (process_ops.versions,),
    (bundle_ops.bundle_transfers,),
    (bundle_ops.next_stage, [_SIGNS]),
    (bundle_ops.bundle, [_SIGNS]),
    (bundle_ops.unbundle, tf.uint8, [tf.TensorSpec([2])]),
    (snapshot_ops.sync_files, "/folder", ["file"]),
    (snapshot_ops.write_file_atomically, "/folder/file", b"text"),
    (owner_ops.release_sparse_tables, "owner", "run"),
    (table_ops.sparse_table_handle, _CONFIG),
    (table_ops.sparse_table_serving_handle, _CONFIG, "shared"),
)

# Ops on a table, without their first argument.
_OPS_ON_A_TABLE = (
    (snapshot_ops.sparse_table_save, "/folder", "id"),
    (snapshot_ops.sparse_table_end_save, "id", True),
    (snapshot_ops.sparse_table_set_chain, "id"),
    (
        functools.partial(snapshot_ops.sparse_table_restore, **_FIELDS),
        ["/file"],
        _FILES,
        1024,
        24,
    ),
    (counter_ops.sparse_table_export_counters, 0, -1, 1),
    (counter_ops.sparse_table_import_counters, _SIGNS, [[1], [1]], 1),
    (
        counter_ops.sparse_table_restore_counters,
        ["/file"],
        _FILES,
        [0],
        1,
        0,
        1,
        5,
        1,
        True,
    ),
    (update_ops.sparse_table_held,),
    (update_ops.sparse_table_begin_update,),
    (update_ops.sparse_table_end_update, 1, "id"),
    (eviction_ops.sparse_table_evict, 1),
    (eviction_ops.sparse_table_decay, 0.5),
    (clock_ops.sparse_table_shrinkage_clock,),
    (clock_ops.sparse_table_absent_state,),
    (owner_ops.sparse_table_set_owner, "owner", "run"),
    (functools.partial(table_ops.sparse_table_pull, dim=4), _SIGNS),
    (
        functools.partial(
            table_ops.sparse_table_push, hyperparameters=[0.5, 0.0]
        ),
        _SIGNS,
        _ROWS,
    ),
    (table_ops.sparse_table_size,),
    (table_ops.sparse_table_stats,),
    (table_ops.sparse_table_config,),
    (
        functools.partial(
            table_ops.sparse_table_export,
            field_names=["weights"],
            field_dtypes=[tf.float32],
        ),
    ),
    (
        functools.partial(
            table_ops.sparse_table_import, field_names=["weights"]
        ),
        _SIGNS,
        [_ROWS],
    ),
    (table_ops.sparse_table_erase, _SIGNS),
    (table_ops.sparse_table_clear,),
    (table_ops.sparse_table_compact,),
)


def _hash(name):
    hash_ops.hash_category([_SIGNS], namespaces=["a"], name=name)


def _combine(name):
    arguments = (tf.constant(_ROWS), _SIGNS, _SPLITS)
    bag_ops.combine_bags(*arguments, combiners=["sum"], name=name)


def _pull_all(name):
    handle = table_ops.sparse_table_handle(_CONFIG)
    step_ops.sparse_tables_pull([handle], [_SIGNS], [True], [4], [0], name=name)


def _names(cases):
    for function, *arguments in cases:
        named = getattr(function, "func", function)
        yield named.__name__, function, arguments


class OpNamesTest(tf.test.TestCase, parameterized.TestCase):
    def assert_is_named(self, call, *arguments):
        with tf.Graph().as_default() as graph:
            call(
                *(
                    tf.compat.v1.placeholder(one)
                    if isinstance(one, tf.DType)
                    else one
                    for one in arguments
                ),
                name="mine",
            )
            names = [operation.name for operation in graph.get_operations()]
        self.assertIn("mine", names)

    @parameterized.named_parameters(*_names(_OPS))
    def test_of(self, function, arguments):
        self.assert_is_named(function, *arguments)

    @parameterized.named_parameters(*_names(_OPS_ON_A_TABLE))
    def test_on_a_table(self, function, arguments):
        def call(*args, name):
            handle = table_ops.sparse_table_handle(_CONFIG)
            function(handle, *args, name=name)

        self.assert_is_named(call, *arguments)

    @parameterized.parameters(_hash, _combine, _pull_all)
    def test_with_options(self, call):
        self.assert_is_named(call)


if __name__ == "__main__":
    tf.test.main()
