# SPDX-License-Identifier: Apache-2.0
"""Tables with small rows, and files of all kinds that hold them."""

import os

import numpy as np
import tensorflow as tf

import tf_ext
from models.counter_tables import make_model
from models.sharded_tables import shards_on

# All pairs of types but that of large rows.
DTYPES = (
    ("float16", "float32"),
    ("float16", "bfloat16"),
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
    ("float32", "bfloat16"),
)

_STATISTICS = ("show", "click")


def make_table(dtypes=("float16", "bfloat16"), shards=1, **kwargs):
    """An empty table with fields of all types; Adam counts steps in int32."""
    dtype, slot_dtype = dtypes
    arguments = {
        "optimizer": tf_ext.optimizers.SparseAdam(0.1),
        "eviction": tf_ext.eviction.Unseen(steps=100),
        "statistics": list(_STATISTICS),
        **kwargs,
    }
    # Ops that run at the same time on another CPU device than the first would
    # get each other's inputs from TensorFlow.
    with shards_on(["/device:CPU:0"] * shards):
        return tf_ext.SparseTable(
            "user", dim=3, dtype=dtype, slot_dtype=slot_dtype, **arguments
        )


def train(table, signs, seed=0, step=1):
    """Pushes gradients and clicks that depend on the seed."""
    signs = np.asarray(signs)
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=[len(signs), table.dim])
    counted = rng.integers(1, 9, [len(signs), table.statistics_width])
    table.push(
        signs,
        gradients.astype(np.float32),
        step=step,
        statistics=counted.astype(np.float32) if counted.size else None,
    )


def stored_bytes(table):
    """`{sign: {field: bytes}}`, as rows are stored."""
    found = {}
    for signs, fields in table.rows.chunks():
        for index, sign in enumerate(signs.tolist()):
            assert sign not in found, sign
            found[sign] = {n: v[index].tobytes() for n, v in fields.items()}
    return found


class Files:
    """The ways to copy rows between tables: `(write, read)` by kind."""

    @staticmethod
    def snapshot(path):
        return lambda t: t.save(path), lambda t: t.load(path)

    @staticmethod
    def delta(path):
        def write(table):
            table.save(f"{path}/0", incremental=True)
            train(table, range(40, 90), seed=5, step=7)
            table.erase(range(4))
            table.save(f"{path}/1", base=f"{path}/0")

        return write, lambda t: t.load(f"{path}/1")

    @staticmethod
    def checkpoint(path):
        def read(table):
            tf.train.Checkpoint(table=table).read(path).assert_consumed()

        return lambda t: tf.train.Checkpoint(table=t).write(path), read

    @staticmethod
    def weights(path):
        os.makedirs(path)
        file = f"{path}/x.weights.h5"
        return (
            lambda t: make_model(t).save_weights(file),
            lambda t: make_model(t).load_weights(file),
        )

    @staticmethod
    def keras(path):
        os.makedirs(path)
        file = f"{path}/x.keras"
        return (
            lambda t: make_model(t).save(file),
            lambda t: make_model(t).load_weights(file),
        )


KINDS = ("snapshot", "delta", "checkpoint", "weights", "keras")
