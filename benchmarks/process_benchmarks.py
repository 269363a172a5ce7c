"""Benchmarks of a whole process: memory, large tables, and the plot."""

import collections
import json
import pathlib
import time

import numpy as np
import tables
import tensorflow as tf
from harness import Case, measure, report, resident_bytes, write_json

_SEED = 1


def memory(args):
    """Resident bytes a row, peak while growing, and the worst batch."""
    tables.fill(tables.make("adagrad", args.dim), 1000)  # Loads everything.
    table = tables.make("adagrad", args.dim)
    raw = 8 + 8 * args.dim
    before = resident_bytes()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # Resets VmHWM.
    worst = 0.0
    start = time.process_time()
    for first in range(0, args.rows, tables.BATCH):
        end = min(first + tables.BATCH, args.rows)
        signs = tf.range(first, end, dtype=tf.int64)
        batch_start = time.perf_counter()
        tables.pull(table, signs, training=True)
        worst = max(worst, time.perf_counter() - batch_start)
    cpu = time.process_time() - start
    resident = resident_bytes() - before
    peak = resident_bytes("VmHWM") - before
    line = {
        "benchmark": "memory",
        "threads": args.threads,
        "rows": args.rows,
        "dim": args.dim,
        "raw_bytes_a_row": raw,
        "bytes_a_row": resident / args.rows,
        "resident_ratio": resident / args.rows / raw,
        "peak_ratio": peak / args.rows / raw,
        "worst_batch_ms": 1e3 * worst,
        "insert_m_per_cpu_s": args.rows / cpu / 1e6,
        **{k: table.stats()[k] for k in ("max_probe_length", "bytes")},
    }
    print("\nmemory:", json.dumps(line, indent=2))
    write_json([line], args.json)


def scale(args):
    """Pull throughput over table size, dim 8."""
    rng = np.random.default_rng(_SEED)
    dim = 8
    sizes = [1_000_000, 10_000_000, 100_000_000]
    for rows in sizes:
        table = tables.make("adagrad", dim)
        tables.fill(table, rows)
        keys = tf.constant(rng.integers(0, rows, args.batch), tf.int64)
        case = Case(
            f"pull of {rows:,}",
            lambda t=table, k=keys: tables.pull(t, k),
            args.batch,
        )
        results = measure([case], args.repeats)
        settings = {
            "threads": args.threads,
            "rows": rows,
            "dim": dim,
            "batch": args.batch,
            "resident_gb": round(resident_bytes() / 1e9, 2),
        }
        report("scale", results, settings, args.json)
        del table, case


def plot(args):
    """Throughput over table size and threads, from the JSON lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = [
        json.loads(line)
        for line in pathlib.Path(args.json).read_text().splitlines()
    ]
    points = collections.defaultdict(dict)
    for line in lines:
        if line["benchmark"] == "scale":
            rate = line["items"] / line["wall_ms"] / 1e3
            points[line["threads"]][line["rows"]] = rate
    if not points:
        raise SystemExit(f"{args.json} has no results of `scale`.")
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for threads, rates in sorted(points.items()):
        sizes = sorted(rates)
        axes.plot(
            sizes,
            [rates[size] for size in sizes],
            marker="o",
            label=f"{threads} thread{'s' if threads > 1 else ''}",
        )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows in the table")
    axes.set_ylabel("million rows pulled a second (wall)")
    axes.set_title("Pull of uniform existing keys, dim 8, Adagrad")
    axes.grid(alpha=0.3)
    axes.legend()
    path = pathlib.Path(__file__).with_name("scale.png")
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"wrote {path}")
