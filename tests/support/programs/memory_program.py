# SPDX-License-Identifier: Apache-2.0
"""Measures memory in a process of its own; `memory_test` runs it.

    memory_program.py insert ROWS          bytes per row, empty tables
    memory_program.py FORMAT ROWS DIRECTORY  peaks of saving and restoring
    memory_program.py free ROWS            what deleted tables leave behind
    memory_program.py serve ROWS DIRECTORY   what served models leave behind
    memory_program.py stock ROWS DIRECTORY   the same of stock ops, and the peak
                                             of exporting
    memory_program.py numbers COUNT        what tensors of Python numbers keep

The last line of standard output is a JSON object. Sizes are in bytes.
"""

import functools
import gc
import json
import os
import pathlib
import sys
import time

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext._compat import scalars
from tf_ext._keras import keras

DIM = 16
RAW_ROW_BYTES = 8 + 4 * DIM + 4 * DIM  # sign, weights, Adagrad's accumulator
_BATCH = 65_536
_SEED = 11


def _status(key):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def resident():
    """Resident memory of this process."""
    gc.collect()
    return _status("VmRSS")


def peak_of(function):
    """The peak of resident memory while `function` ran."""
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    function()
    return _status("VmHWM")


def make_table(name="deep"):
    return tf_ext.SparseTable(name, DIM, tf_ext.optimizers.SparseAdagrad(0.05))


def make_model():
    """A compiled model that has made a step."""
    inputs = {"user": keras.Input((), dtype="int64", name="user")}
    column = tf_ext.feature_column.category_column("user", hashing="identity")
    embed = tf_ext.layers.EmbeddingFeatures([column], make_table())
    model = tf_ext.Model(inputs, keras.layers.Dense(1)(embed(inputs)))
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    model.fit({"user": np.arange(64)}, np.zeros((64, 1)), verbose=0)
    return model


def fill(table, rows):
    """Inserts random signs; returns the longest batch, in seconds."""
    rng = np.random.default_rng(_SEED)
    longest = 0.0
    for first in range(0, rows, _BATCH):
        count = min(_BATCH, rows - first)
        signs = rng.integers(-(2**63), 2**63, count, dtype=np.int64)
        longest = max(longest, _seconds(table.pull, signs, training=True))
    return longest


def train(table, batches):
    """Pushes to the rows of the first batches; the longest, in seconds."""
    rng = np.random.default_rng(_SEED)
    gradients = tf.ones([_BATCH, DIM])
    longest = 0.0
    for _ in range(batches):
        signs = rng.integers(-(2**63), 2**63, _BATCH, dtype=np.int64)
        longest = max(longest, _seconds(table.push, signs, gradients))
    return longest


def _seconds(function, *args, **kwargs):
    start = time.perf_counter()
    function(*args, **kwargs)
    return time.perf_counter() - start


def _warm_up():
    # TensorFlow's own pools and threads come with the first ops.
    table = make_table()
    fill(table, _BATCH)
    train(table, 1)


def insert(rows):
    _warm_up()
    before = resident()
    empty = [make_table() for _ in range(100)]
    per_empty_table = (resident() - before) / len(empty)
    table = make_table()
    before = resident()
    longest_pull = fill(table, rows)
    longest_push = train(table, max(1, rows // _BATCH // 8))
    bytes_per_row = (resident() - before) / table.size()
    return {
        "rows": table.size(),
        "bytes_per_row": bytes_per_row,
        "times_raw": bytes_per_row / RAW_ROW_BYTES,
        "bytes_per_empty_table": per_empty_table,
        "longest_pull_milliseconds": 1e3 * longest_pull,
        "longest_push_milliseconds": 1e3 * longest_push,
        "stats": table.stats(),
    }


def _paths(kind, directory):
    if kind == "keras":
        path = os.path.join(directory, "x.keras")
        return lambda m: m.save(path), lambda m: m.load_weights(path)
    if kind == "weights":
        path = os.path.join(directory, "x.weights.h5")
        return lambda m: m.save_weights(path), lambda m: m.load_weights(path)
    path = os.path.join(directory, "checkpoint")
    return (
        lambda m: tf.train.Checkpoint(model=m).write(path),
        lambda m: tf.train.Checkpoint(model=m).read(path).expect_partial(),
    )


def save_and_restore(kind, rows, directory):
    write, read = _paths(kind, directory)
    # Libraries that saving loads are no part of it.
    model = make_model()
    write(model)
    read(model)
    before = resident()
    table = model.tables[0]
    fill(table, rows)
    rows = table.size()
    size = resident() - before
    save = peak_of(lambda: write(model)) - before
    restore_over = peak_of(lambda: read(model)) - before
    assert table.size() == rows
    table.clear()
    restore = peak_of(lambda: read(model)) - before
    assert table.size() == rows
    measured = {"save": save, "restore_over": restore_over, "restore": restore}
    del table
    if kind == "keras":
        del model
        gc.collect()
        loaded = []
        path = os.path.join(directory, "x.keras")
        measured["load"] = (
            peak_of(lambda: loaded.append(keras.models.load_model(path)))
            - before
        )
        assert loaded[0].tables[0].size() == rows
    return {
        "rows": rows,
        "table": size,
        **measured,
        "times_table": {k: v / size for k, v in measured.items()},
    }


def free(rows):
    _warm_up()
    left = {}
    for name, make in {
        "table": make_table,
        "model_that_was_fit": make_model,
    }.items():
        owner = make()
        before = resident()
        table = owner if name == "table" else owner.tables[0]
        fill(table, rows)
        size = resident() - before
        del owner, table
        left[name] = {"table": size, "left": resident() - before}
    return left


def serve(rows, directory):
    model = make_model()
    fill(model.tables[0], rows)
    path = os.path.join(directory, "exported")
    model.export(path)
    del model
    return _served_again_and_again([path])


def stock(rows, directory):
    model = make_model()
    # Libraries that exporting loads are no part of it.
    path = os.path.join(directory, "exported")
    tf_ext.serving.export(model, path)
    fill(model.tables[0], rows)
    before = resident()
    export = functools.partial(tf_ext.serving.export, model, path)
    peak = peak_of(export) - before
    # Small types, too: their variables are others.
    export(dtype="int8")
    del model, export
    paths = [f"{path}/{version}" for version in (2, 3)]
    return {"export": peak, **_served_again_and_again(paths)}


def _served_again_and_again(paths):
    """20 models, each loaded after the previous one has been freed.

    Of two in turn, the signature outlives the loaded object.
    """
    batch = {"user": tf.range(64, dtype=tf.int64)}
    left = []
    for index in range(20):
        served = tf.saved_model.load(paths[index % len(paths)])
        signature = None
        if index // 2 % 2:
            signature = served.signatures["serving_default"]
            del served
            signature(**batch)
            served = None
        else:
            served.serve(batch)
        size = resident()
        del served, signature
        left.append(resident())
    return {"table": size - left[-1], "left": left}


def numbers(count):
    def growth(make):
        for number in range(1000):
            make(number, tf.int64)
        before = resident()
        for number in range(1000, 1000 + count):
            make(number, tf.int64)
        return (resident() - before) / count

    return {
        "scalar": growth(scalars.scalar),
        "convert_to_tensor": growth(tf.convert_to_tensor),
    }


def main(what, rows, *rest):
    rows = int(rows)
    if what == "numbers":
        result = numbers(rows)
    elif what == "insert":
        result = insert(rows)
    elif what == "free":
        result = free(rows)
    elif what == "serve":
        result = serve(rows, *rest)
    elif what == "stock":
        result = stock(rows, *rest)
    else:
        result = save_and_restore(what, rows, *rest)
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
