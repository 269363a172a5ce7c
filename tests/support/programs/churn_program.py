# SPDX-License-Identifier: Apache-2.0
"""Measures a table whose ids come and go for many steps.

    churn_program.py STEPS

Half of the ids of a batch occur once. The others occur several times in a range
that moves on. The last line of standard output is a JSON object: for each
twentieth of the steps, the most `bytes` of the table, `resident` bytes of the
process, CPU `seconds` of looking up the same number of present rows, and
`probes`, the buckets that these read at most. And `rows`, how many the table
admitted and evicted.
"""

import json
import sys
import time

import numpy as np
import tensorflow as tf

import tf_ext
from programs import memory_program

_PARTS = 20
_DIM, _RATE = 8, 0.05
_BATCH = 64
# An id of a range that moves on occurs in this number of steps, 1.6 times.
_RANGE_STEPS = 500
_IDS_PER_STEP = 20
_FORGET = 200
_CAPACITY = 3_000
_EVICT_STEPS = 250
_LOOKUPS = 2_000


def _make_table():
    return tf_ext.SparseTable(
        "churn",
        _DIM,
        tf_ext.optimizers.SparseAdagrad(_RATE),
        admission=tf_ext.admission.Count(2, forget=_FORGET),
        eviction=tf_ext.eviction.Capacity(_CAPACITY),
        statistics=["show"],
    )


def _make_train(table):
    """A function that trains steps from `first` on.

    By ops, because Python's checks of a push would take most of the time.
    """
    handle = table.rows.resource_handle
    hyperparameters = table.optimizer.hyperparameters(
        tf.constant(_RATE, tf.float64)
    )

    @tf.function
    def train(first):
        for step in tf.range(first, first + _EVICT_STEPS):
            seed = tf.stack([step, 0])
            once = tf.random.stateless_uniform(
                [_BATCH // 2], seed, -(2**62), 2**62, tf.int64
            )
            begin = step * _IDS_PER_STEP
            again = tf.random.stateless_uniform(
                [_BATCH // 2],
                seed,
                begin,
                begin + _RANGE_STEPS * _IDS_PER_STEP,
                tf.int64,
            )
            signs = tf.concat([once, again], 0)
            rows = tf_ext.ops.sparse_table_pull(handle, signs, True, dim=_DIM)
            tf_ext.ops.sparse_table_push(
                handle,
                signs,
                rows,
                hyperparameters=hyperparameters,
                step=step,
            )

    return train


def _lookup_seconds(table, look_up):
    """The CPU time of the fastest of several times."""
    signs, _ = table.export_rows()
    signs = tf.constant(np.resize(signs, _LOOKUPS))
    seconds = []
    for _ in range(20):
        begin = time.process_time()
        look_up(signs)
        seconds.append(time.process_time() - begin)
    return min(seconds)


def main(steps):
    """See the module's docstring."""
    table = _make_table()
    train = _make_train(table)
    look_up = tf.function(lambda signs: table.pull(signs))
    measured = {"bytes": [], "resident": [], "seconds": [], "probes": []}
    step = 1
    for part in range(_PARTS):
        most = probes = 0
        while step <= int(steps) * (part + 1) // _PARTS:
            train(tf.constant(np.int64(step)))
            step += _EVICT_STEPS
            stats = table.stats()
            most = max(most, stats["bytes"])
            probes = max(probes, stats["max_probe_length"])
            table.decay_statistics(0.9)
            table.evict(now=step)
        table.compact()  # So that each part begins alike.
        measured["bytes"].append(most)
        measured["probes"].append(probes)
        measured["resident"].append(memory_program.resident())
        measured["seconds"].append(_lookup_seconds(table, look_up))
    stats = table.stats()
    measured["rows"] = [stats["rows"], stats["admitted"], stats["evicted"]]
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
