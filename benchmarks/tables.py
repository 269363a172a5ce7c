# SPDX-License-Identifier: Apache-2.0
"""Tables of benchmarks, and how to fill them."""

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext import ops

BATCH = 65536
FLOAT32 = "float32"


def make(rule, dim, initializer="normal", dtype=FLOAT32, slot_dtype=FLOAT32):
    """An empty table."""
    given = {"dtype": dtype, "slot_dtype": slot_dtype}
    # Builds to compare with may know no types.
    types = {key: value for key, value in given.items() if value != FLOAT32}
    return tf_ext.SparseTable("bench", dim, rule, initializer, **types)


def types(args):
    """The types of the rows to measure, of the command line."""
    return {"dtype": args.dtype, "slot_dtype": args.slot_dtype}


def to_measure(rule, args):
    """Empty tables to measure, `{suffix of their cases' names: table}`.

    The first is of the types that the command line asks for. If they are small,
    a table of float32 rows follows, which it is compared with in the same run.
    """
    wanted = types(args)
    tables = {"": make(rule, args.dim, **wanted)}
    if set(wanted.values()) != {FLOAT32}:
        tables[f", {FLOAT32}"] = make(rule, args.dim)
    return tables


def handle(table):
    """The table's resource."""
    return table.rows.shards[0].resource_handle


def raw_bytes(table):
    """The bytes of a row: the sign, weights and slots."""
    return table.rows.bytes_per_row


def touched_memory(size):
    """New bytes, in huge pages if NumPy and the system provide them."""
    memory = np.empty(size, np.uint8)
    memory[::4096] = 1
    return memory


def load(table):
    """How full the index is, 0 to 1."""
    # Buckets of 64 bytes hold 12 entries: cc/core/table/bucket_index.h.
    buckets = table.stats()["index_bytes"] / 64
    return round(table.size() / (12 * buckets), 2)


def fill(table, rows, spread=1):
    """Inserts signs 0, spread, 2 * spread, ... in random order of batches."""
    for start in range(0, rows, BATCH):
        signs = np.arange(start, min(start + BATCH, rows), dtype=np.int64)
        pull(table, tf.constant(signs * spread), training=True)


def pull(table, signs, training=False):
    """Rows of signs, by the op."""
    return ops.sparse_table_pull(
        handle(table), signs, training=training, dim=table.dim
    )


def push(table, signs, gradients, rate=0.01, step=1, **options):
    """One update of distinct signs, by the op."""
    rule = table.optimizer
    return ops.sparse_table_push(
        handle(table),
        signs,
        gradients,
        hyperparameters=rule.hyperparameters(tf.constant(rate, tf.float64)),
        step=step,
        **options,
    )
