"""Snapshots, compared with the disk, insertion and dense checkpoints."""

import contextlib
import glob
import os
import subprocess
import tempfile
import threading
import time
from functools import partial

import batches
import numpy as np
import tables
import tensorflow as tf
import tfra
from harness import Case, forget, measure, report

_SEED = 1
# Names of checkpoints.
_DENSE = "dense"
_TFRA = "tfra"
_MAX_SAVES = 7  # a repetition takes seconds
# How many times as long as an unlimited one a save beside pushes may take.
_PATIENCE = 4


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
    with (
        tempfile.TemporaryDirectory(dir=args.output) as directory,
        tfra.start(args) as worker,
    ):
        path = os.path.join(directory, "snapshot")
        saved = _save(table, path, directory, repeats, worker)
        report("snapshot save", saved, settings, args.json)
        report(
            "snapshot load",
            _load(path, directory, args, repeats, worker),
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


def _save(table, path, directory, repeats, worker):
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
    if worker is not None:
        cases.append(
            worker.case(
                "save",
                rows,
                rows=rows,
                dim=table.dim,
                batch=1 << 18,
                path=os.path.join(directory, _TFRA),
            )
        )
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


def _load(path, directory, args, repeats, worker):
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
    if worker is not None:
        tfra_path = os.path.join(directory, _TFRA)
        cases.append(
            worker.case("load", args.rows, rows=args.rows, path=tfra_path)
        )
    return measure(cases, repeats, warmup=1, settle=False)


def _pushes(args):
    """Batches of distinct keys, and gradients."""
    rng = np.random.default_rng(_SEED)
    count = min(args.batch, args.rows)
    keys = [
        tf.constant(rng.choice(args.rows, count, replace=False))
        for _ in range(batches.BATCHES)
    ]
    gradients = rng.normal(size=(count, args.dim)).astype(np.float32)
    return keys, tf.constant(gradients)


def _push_case(name, table, keys, gradients):
    push = partial(tables.push, table, gradients=gradients)
    run = batches.in_turn(lambda signs: push(signs), keys)
    return Case(name, run, gradients.shape[0])


def _push_while_saving(table, path, args, seconds):
    keys, gradients = _pushes(args)
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
    keys, gradients = _pushes(args)
    shard = table.rows.shards[0]

    def case(name, snapshot_id):
        push = _push_case(name, table, keys, gradients)

        def mark():
            shard.set_chain(snapshot_id)
            push.run()  # The first one finds the marks' memory untouched.

        return Case(name, push.run, push.items, before=mark)

    return measure(
        [case("changes marked", "0" * 32), case("not marked", "")],
        args.repeats,
        settle=False,
    )
