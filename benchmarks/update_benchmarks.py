"""Requests to a table while deltas are applied to it."""

import os
import tempfile
import threading
import time

import numpy as np
import tables
import tensorflow as tf
from harness import heading, write_json

import tf_ext

_SEED = 1
# Rows of a delta, of all; a chain has so many deltas.
_PART = 10
_MAX_DELTAS = 10
# Keys of a request: of so many columns, for one sample and for 200.
_COLUMNS = 26
_SAMPLES = (1, 200)


def updates(args):
    """Latencies of pulls: idle, during deltas, during a whole snapshot."""
    trained = _trained(args)
    with tf_ext.serving.weights_only():
        served = tables.make("adagrad", args.dim, "uniform")
    deltas = min(args.repeats, _MAX_DELTAS)
    with tempfile.TemporaryDirectory(dir=args.output) as directory:
        paths = _save(trained, args.rows, deltas, directory)
        served.load(paths[0])
        results = []
        for samples in _SAMPLES:
            keys = min(samples * _COLUMNS, args.rows)
            results += _latencies(served, keys, paths, args.rows)
    settings = {"threads": args.threads, "rows": args.rows, "dim": args.dim}
    settings |= {"changed": max(1, args.rows // _PART), "deltas": deltas}
    _report("updates", results, settings, args.json)


def _trained(args):
    """A table whose weights are all 1."""
    table = tables.make("adagrad", args.dim, "uniform")
    for begin in range(0, args.rows, tables.BATCH):
        _set(table, np.arange(begin, min(begin + tables.BATCH, args.rows)), 1)
    return table


def _set(table, signs, number):
    values = np.full([len(signs), table.dim], number, np.float32)
    table.import_rows(signs, {"weights": values})


def _save(trained, rows, deltas, directory):
    """A chain of snapshots; each delta sets rows, some of which it erased."""
    rng = np.random.default_rng(_SEED)
    paths = [os.path.join(directory, "0")]
    trained.save(paths[0], incremental=True)
    for number in range(1, deltas + 1):
        signs = rng.choice(rows, max(1, rows // _PART), replace=False)
        trained.erase(signs[: len(signs) // 10])
        _set(trained, signs, number + 1)
        paths.append(os.path.join(directory, str(number)))
        trained.save(paths[-1], base=paths[-2])
    return paths


def _latencies(served, keys, paths, rows):
    served.load(paths[0], in_place=True)
    requests = _Requests(served, keys, rows)
    deltas = paths[1:]
    results = [
        requests.during("idle", [lambda: time.sleep(1)]),
        requests.during(
            "deltas",
            [lambda path=path: served.apply_delta(path) for path in deltas],
        ),
        requests.during(
            "whole", [lambda: served.load(paths[-1], in_place=True)]
        ),
    ]
    for result in results:
        for percentile in ("p50", "p99"):
            result[f"{percentile}_ratio"] = (
                result[f"{percentile}_us"] / results[0][f"{percentile}_us"]
            )
    return results


class _Requests:
    """Consecutive pulls of random keys, whose rows are checked."""

    def __init__(self, table, keys, rows):
        rng = np.random.default_rng(_SEED)
        self._keys = keys
        self._batches = [
            tf.constant(rng.integers(0, rows, keys)) for _ in range(64)
        ]
        self._pull = tf.function(lambda signs: tables.pull(table, signs))
        for signs in self._batches:
            self._pull(signs)

    def during(self, case, work):
        """Pulls while `work` runs; returns a line of a report."""
        done, seconds = threading.Event(), []

        def run():
            try:
                for each in work:
                    begin = time.perf_counter()
                    each()
                    seconds.append(time.perf_counter() - begin)
            finally:
                done.set()

        thread = threading.Thread(target=run)
        microseconds, absent, torn = [], 0, 0
        thread.start()
        while not microseconds or not done.is_set():
            signs = self._batches[len(microseconds) % len(self._batches)]
            begin = time.perf_counter()
            rows = self._pull(signs)
            microseconds.append(1e6 * (time.perf_counter() - begin))
            rows = rows.numpy()
            # Weights that a row would begin with are below 1.
            absent += int(np.count_nonzero(rows[:, 0] < 1))
            torn += int(np.count_nonzero(np.any(rows != rows[:, :1], 1)))
        thread.join()
        p50, p99 = np.percentile(microseconds, [50, 99])
        return {
            "case": case,
            "keys": self._keys,
            "p50_us": float(p50),
            "p99_us": float(p99),
            "requests": len(microseconds),
            "seconds": float(np.median(seconds)) if seconds else 0.0,
            "absent": absent,
            "torn": torn,
        }


def _report(benchmark, results, settings, json_path):
    print(heading(benchmark, settings))
    print(
        f"  {'case':8} {'keys':>6} {'p50 us':>9} {'p99 us':>9} "
        f"{'p50 ratio':>10} {'p99 ratio':>10} {'requests':>9} "
        f"{'s an update':>12} {'absent':>7} {'torn':>5}"
    )
    for r in results:
        print(
            f"  {r['case']:8} {r['keys']:6} {r['p50_us']:9.0f} "
            f"{r['p99_us']:9.0f} {r['p50_ratio']:10.2f} "
            f"{r['p99_ratio']:10.2f} {r['requests']:9} "
            f"{r['seconds']:12.3f} {r['absent']:7} {r['torn']:5}"
        )
    write_json(
        [{"benchmark": benchmark, **settings, **r} for r in results], json_path
    )
