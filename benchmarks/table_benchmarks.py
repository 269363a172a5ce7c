# SPDX-License-Identifier: Apache-2.0
"""Memory of tables, and saving and loading them."""

import contextlib
import glob
import os
import subprocess
import tempfile
import threading
import time
from functools import partial

import batches
import tables
import tensorflow as tf
from harness import (
    Case,
    forget,
    growth,
    heading,
    measure,
    report,
    write_json,
)

from tf_ext.ops.snapshot.snapshot_ops import sparse_table_set_chain

_DENSE = "dense"  # The name of a checkpoint.
_MAX_SAVES = 7  # a repetition takes seconds
# How many times as long as an unlimited one a save beside pushes may take.
_PATIENCE = 4


def memory(args):
    """Resident bytes per row, peak while growing, and the slowest batch."""
    for rule in args.rules:
        _measure_memory(rule, args)


def _measure_memory(rule, args):
    # Kept, lest the next ones get the memory that they would give back.
    ours = _empty_tables(rule, args)
    floats = _floats_of_a_row(rule, args.dim)
    results = {
        f"tf_ext{suffix}": {
            "raw_bytes_a_row": tables.raw_bytes(table),
            **_our_growth(table, args.rows),
        }
        for suffix, table in ours.items()
    }
    results["DenseHashTable"] = {
        "raw_bytes_a_row": 8 + 4 * floats,
        **_reference_growth(args, floats),
    }
    raw = tables.raw_bytes(ours[""])
    results["first touch of the raw bytes"] = {
        "raw_bytes_a_row": raw,
        **_touched_growth(args.rows, raw),
    }
    _add_ratios(results)
    settings = {
        "threads": args.threads,
        "rows": args.rows,
        "load": tables.load(ours[""]),
        "dim": args.dim,
        **tables.types(args),
        "batch": tables.BATCH,
        "keys": "consecutive",
        "rule": rule,
    }
    _report_growth(results, settings, args.json)


def compared_memory(args):
    """The cases of `memory` that are compared with those of another build."""
    return [
        _GrowthCase(f"tf_ext{suffix}, {rule}", table, args.rows)
        for rule in args.rules
        for suffix, table in _empty_tables(rule, args).items()
    ]


class _GrowthCase(Case):
    """A table that grows, once."""

    def __init__(self, name, table, rows):
        self._table = table
        super().__init__(name, self._grow, rows)

    def _grow(self):
        return _our_growth(self._table, self.items)

    def values(self, repeats, settle):
        found = self.run()
        return {
            "bytes a row": [found["bytes_a_row"]],
            "bytes at the peak": [found["peak_bytes_a_row"]],
            "worst batch, ms": [found["worst_batch_ms"]],
        }


def _empty_tables(rule, args):
    for table in tables.to_measure(rule, args).values():
        tables.fill(table, 1000)  # Loads everything.
    return tables.to_measure(rule, args)


def _floats_of_a_row(rule, dim):
    """The numbers of a row, weights and slots."""
    slots = tables.make(rule, dim).optimizer.slots(dim)
    return dim + sum(count for _, _, count in slots)


def _our_growth(table, rows):
    def insert(first, end):
        tables.pull(table, tf.range(first, end, dtype=tf.int64), training=True)

    result = growth(insert, rows, tables.BATCH)
    probes = table.stats()["max_probe_length"]
    return {**result, "max_probe_length": probes}


def _touched_growth(rows, row_bytes):
    """Allocates only memory: how long a batch waits for the system."""
    kept = []

    def insert(first, end):
        kept.append(tables.touched_memory((end - first) * row_bytes))

    return growth(insert, rows, tables.BATCH)


def _reference_growth(args, width):
    """A table that holds weights and slots in one value, which saves keys."""
    table = tf.lookup.experimental.DenseHashTable(
        tf.int64, tf.float32, tf.zeros([width]), -1, -2
    )

    def insert(first, end):
        keys = tf.range(first, end, dtype=tf.int64)
        table.insert(keys, tf.zeros([end - first, width]))

    return growth(insert, args.rows, tables.BATCH)


def _add_ratios(results):
    """Adds what bytes are of the raw ones, and of those of float32 rows."""
    float32 = results.get(f"tf_ext, {tables.FLOAT32}")
    for r in results.values():
        for key in ("", "peak_"):
            r[f"{key}raw_ratio"] = r[f"{key}bytes_a_row"] / r["raw_bytes_a_row"]
    if float32 is not None:
        ours = results["tf_ext"]
        ours["float32_ratio"] = ours["bytes_a_row"] / float32["bytes_a_row"]


def _report_growth(results, settings, json_path):
    print(heading("memory", settings))
    print(
        f"  {'case':32} {'bytes a row':>12} {'of raw':>8} {'at the peak':>12} "
        f"{'of raw':>8} {'worst batch, ms':>16} {'most buckets read':>18}"
    )
    lines = []
    for case, r in results.items():
        print(
            f"  {case:32} {r['bytes_a_row']:12.1f} {r['raw_ratio']:8.2f} "
            f"{r['peak_bytes_a_row']:12.1f} {r['peak_raw_ratio']:8.2f} "
            f"{r['worst_batch_ms']:16.1f} {r.get('max_probe_length', ''):>18}"
        )
        if "float32_ratio" in r:
            print(f"  {'':32} {r['float32_ratio']:.3f} of float32's bytes")
        lines.append({"benchmark": "memory", **settings, "case": case, **r})
    write_json(lines, json_path)


def snapshot(args):
    """Saving and loading, and how they slow down concurrent pushes."""
    table = tables.make("adagrad", args.dim, **tables.types(args))
    tables.fill(table, args.rows)
    settings = {
        "threads": args.threads,
        "rows": args.rows,
        "dim": args.dim,
        **tables.types(args),
        "rule": "adagrad",
        "unit": "rows",
    }
    repeats = min(args.repeats, _MAX_SAVES)
    with tempfile.TemporaryDirectory(dir=args.output) as directory:
        path = os.path.join(directory, "snapshot")
        saved = _save(table, path, directory, repeats)
        report("snapshot save", saved, settings, args.json)
        report(
            "snapshot load",
            _load(path, directory, args, repeats),
            settings,
            args.json,
        )
        settings |= {"batch": min(args.batch, args.rows), "unit": "keys"}
        seconds = saved[0]["wall_ms"] / 1e3
        report(
            "push while saving",
            _push_while_saving(table, path, args, seconds),
            settings,
            args.json,
        )
        report(
            "push while changes are marked",
            _push_marked(table, args),
            settings,
            args.json,
        )


def _save(table, path, directory, repeats):
    rows = table.size()
    table.save(path)
    copy = os.path.join(directory, "copy")
    checkpoint = _dense_checkpoint(table, rows)
    cases = [
        Case("save, with fsync", lambda: table.save(path), rows),
        Case("dd conv=fsync", lambda: _copy(path, copy), rows),
        Case(
            "Checkpoint.write of a variable",
            lambda: checkpoint.write(os.path.join(directory, _DENSE)),
            rows,
        ),
    ]
    results = measure(cases, repeats, warmup=1, settle=False)
    for name in os.listdir(directory):
        if name.startswith("copy"):
            os.remove(os.path.join(directory, name))
    return results


def _dense_checkpoint(table, rows):
    # As many bytes as the sign, weights and slots, rounded up to floats.
    width = -(-tables.raw_bytes(table) // 4)
    return tf.train.Checkpoint(dense=tf.Variable(tf.zeros([rows, width])))


def _files(path):
    names = [name for name in os.listdir(path) if name.endswith(".chunks")]
    return [os.path.join(path, name) for name in sorted(names)]


def _copy(path, copy):
    for index, file in enumerate(_files(path)):
        subprocess.run(
            ["dd", f"if={file}", f"of={copy}{index}", "bs=1M", "conv=fsync"],
            check=True,
            capture_output=True,
        )


def _read(path):
    for name in _files(path):
        with open(name, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def _load(path, directory, args, repeats):
    other = tables.make("adagrad", args.dim, **tables.types(args))
    checkpoint = _dense_checkpoint(other, args.rows)
    dense = os.path.join(directory, _DENSE)

    def before():
        other.clear()
        forget([*_files(path), *glob.glob(f"{dense}.*")])

    cases = [
        Case("load", lambda: other.load(path), args.rows, before=before),
        Case("cold read", lambda: _read(path), args.rows, before=before),
        Case(
            "insertion",
            lambda: tables.fill(other, args.rows),
            args.rows,
            before=before,
        ),
        Case(
            "Checkpoint.read of a variable",
            lambda: checkpoint.read(dense).assert_consumed(),
            args.rows,
            before=before,
        ),
    ]
    return measure(cases, repeats, warmup=1, settle=False)


def _push_case(name, table, keys, gradients):
    push = partial(tables.push, table, gradients=gradients)
    run = batches.in_turn(lambda signs: push(signs), keys)
    return Case(name, run, gradients.shape[0])


def _push_while_saving(table, path, args, seconds):
    keys, gradients = batches.pushes(args)
    idle = measure([_push_case("push", table, keys, gradients)], args.repeats)
    manifest = table.save(path)
    rate = int(manifest.bytes / (_PATIENCE * seconds)) + 1
    case = _push_case("push while saving", table, keys, gradients)
    with _saving(table, path, rate):
        busy = measure([case], args.repeats)
    for clock in ("cpu", "wall"):
        busy[0][f"{clock}_ratio"] = (
            busy[0][f"{clock}_ms"] / idle[0][f"{clock}_ms"]
        )
    return idle + busy


@contextlib.contextmanager
def _saving(table, path, rate):
    """Saves repeatedly in another thread."""
    stop = threading.Event()

    def save():
        while not stop.is_set():
            table.save(path, max_bytes_per_second=rate)

    thread = threading.Thread(target=save)
    thread.start()
    time.sleep(0.1)
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _push_marked(table, args):
    keys, gradients = batches.pushes(args)
    shard = table.rows.shards[0]

    def case(name, snapshot_id):
        push = _push_case(name, table, keys, gradients)

        def mark():
            shard.run(sparse_table_set_chain, snapshot_id)
            push.run()  # The first one finds the marks' memory untouched.

        return Case(name, push.run, push.items, before=mark)

    return measure(
        [case("changes marked", "0" * 32), case("not marked", "")],
        args.repeats,
        settle=False,
    )
