# SPDX-License-Identifier: Apache-2.0
"""A table's life with many rows, in one process: `scale_test` runs it.

    scale_program.py ROWS DIRECTORY

It trains ROWS ids through `fit`, saves all of them, trains a hundredth once
more, saves that as a delta, loads both, exports the model, trains half of the
ids once more and evicts the others. The last line of standard output is a JSON
object: for each stage its seconds, and the peak of this process's resident
memory, in bytes and relative to the raw bytes of the rows.
"""

import json
import pathlib
import sys
import time

import numpy as np
import tensorflow as tf

import tf_ext
from programs.memory_program import peak_of
from tf_ext._keras import keras

DIM = 8
# Sign, weights, Adagrad's accumulators, and `last_seen`.
RAW_ROW_BYTES = 8 + 4 * DIM + 4 * DIM + 4
_BATCH = 131_072
# Odd, so that different ids have different signs, spread over all 64 bits.
_SPREAD = np.int64(0x9E3779B97F4A7C15 - 2**64)
_PROBES = 1000


def _signs(first, count):
    with np.errstate(over="ignore"):
        return np.arange(first, first + count, dtype=np.int64) * _SPREAD


def _batches(ids):
    """Batches of the ids from 0 to `ids`, each once."""

    def batch(number):
        first = number * _BATCH
        every = tf.range(first, tf.minimum(first + _BATCH, ids))
        return {"id": every * _SPREAD}, tf.cast(every % 2, tf.float32)

    return tf.data.Dataset.range(-(-ids // _BATCH)).map(batch)


def _make_model():
    table = tf_ext.SparseTable(
        "many", DIM, "adagrad", eviction=tf_ext.eviction.Unseen(steps=1)
    )
    column = tf_ext.feature_column.category_column("id", hashing="identity")
    inputs = {"id": keras.Input((), dtype="int64", name="id")}
    rows = tf_ext.layers.EmbeddingFeatures([column], table)(inputs)
    outputs = keras.layers.Dense(1, "sigmoid")(rows)
    model = tf_ext.Model(inputs, outputs)
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "binary_crossentropy")
    return model, table


class _Stages:
    """Measures one stage after the other."""

    def __init__(self, raw):
        self._raw = raw
        self.measured = {}

    def run(self, name, function):
        start = time.perf_counter()
        peak = peak_of(function)
        self.measured[name] = {
            "seconds": time.perf_counter() - start,
            "peak": peak,
            "times_raw": peak / self._raw,
        }
        print(name, self.measured[name], flush=True)


def main(rows, directory):
    rows, directory = int(rows), pathlib.Path(directory)
    model, table = _make_model()
    model.fit(_batches(64), verbose=0)
    table.clear()
    stages = _Stages(rows * RAW_ROW_BYTES)

    def fit(ids):
        model.fit(_batches(ids), verbose=0)

    stages.run("train", lambda: fit(rows))
    assert table.size() == rows, table.size()
    full, delta = directory / "full", directory / "delta"
    stages.run("snapshot", lambda: table.save(full, incremental=True))
    fit(rows // 100)
    stages.run("delta", lambda: table.save(delta, base=full))
    probes = _signs(rows // 2 - _PROBES, 2 * _PROBES)
    before = table.pull(probes).numpy()
    table.clear()
    stages.run("restore", lambda: table.load(delta))
    assert table.size() == rows, table.size()
    np.testing.assert_array_equal(table.pull(probes).numpy(), before)
    served = directory / "served"
    stages.run(
        "export",
        lambda: tf_ext.serving.export(model, served, dtype="float16"),
    )

    def evict():
        # Its rows are those that the last step has not trained.
        kept = rows // 2
        policy = tf_ext.eviction.Unseen(steps=-(-kept // _BATCH))
        fit(kept)
        step = int(tf.convert_to_tensor(model.optimizer.iterations))
        evicted = table.evict(now=step, policy=policy).evicted
        assert evicted == rows - kept, evicted

    stages.run("evict half", evict)
    assert table.size() == rows // 2, table.size()
    # What is left was trained, and what was evicted is as if it were new.
    initial = tf_ext.SparseTable("many", DIM).pull(probes).numpy()
    is_trained = np.any(table.pull(probes).numpy() != initial, axis=1)
    np.testing.assert_array_equal(is_trained, np.arange(2 * _PROBES) < _PROBES)
    print(json.dumps({"rows": rows, "stages": stages.measured}))


if __name__ == "__main__":
    main(*sys.argv[1:])
