"""Benchmarks of memory per row and of large tables."""

from functools import partial

import batches
import tables
import tensorflow as tf
import tfra
from harness import (
    Case,
    growth,
    heading,
    measure,
    report,
    resident_bytes,
    write_json,
)


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
    with tfra.start(args) as worker:
        if worker:
            # It has Adagrad's slots.
            results["TFRA"] = {
                "raw_bytes_a_row": 8 + 2 * 4 * args.dim,
                **worker.call(
                    "memory", rows=args.rows, dim=args.dim, batch=tables.BATCH
                ),
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


def scale(args):
    """Pull throughput over table size, dim 8, and that of tf.gather.

    All tables exist at the same time and take turns, so that sizes are compared
    under the same load of the machine.
    """
    dim = 8
    settings = {
        "threads": args.threads,
        "dim": dim,
        "batch": args.batch,
        "keys": "uniform",
        "rule": "adagrad",
        "unit": "keys",
    }
    keys = {
        rows: batches.pull_keys("uniform", rows, args.batch)
        for rows in args.sizes
    }
    results = _scale_of_tables(keys, dim, args.repeats)
    settings["peak_gb"] = round(resident_bytes("VmHWM") / 1e9, 2)
    report("scale", results, settings, args.json)
    base = 1_000_000 if 1_000_000 in keys else args.sizes[0]
    rates = {r["rows"]: r["million_items_per_cpu_s"] for r in results}
    for rows, rate in rates.items():
        print(f"  {rows:,} rows: {rate / rates[base]:.2f} of {base:,} rows")
    del settings["peak_gb"]
    results = _scale_of_gather(keys, dim, args.repeats)
    report("scale", results, settings, args.json)


def _scale_of_tables(keys, dim, repeats):
    cases = []
    for rows in keys:
        table = tables.make("adagrad", dim)
        tables.fill(table, rows)
        cases.append(
            _scale_case(
                "tf_ext pull", rows, keys[rows], partial(tables.pull, table)
            )
        )
    return _by_size(measure(cases, repeats), keys)


def _scale_of_gather(keys, dim, repeats):
    # Rows of a matrix lie side by side: its beginning is a smaller matrix.
    dense = tf.Variable(tf.zeros([max(keys), dim]))
    cases = [
        _scale_case("tf.gather", rows, keys[rows], partial(tf.gather, dense))
        for rows in keys
    ]
    return _by_size(measure(cases, repeats), keys)


def _scale_case(name, rows, keys, read):
    run = batches.in_turn(read, [tf.constant(k) for k in keys])
    return Case(f"{name}, {rows:,} rows", run, keys.shape[1])


def _by_size(results, sizes):
    return [{"rows": n, **r} for n, r in zip(sizes, results, strict=True)]
