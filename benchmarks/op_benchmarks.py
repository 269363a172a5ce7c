"""Single ops beside TensorFlow's own."""

import contextlib
from functools import partial

import batches
import numpy as np
import tables
import tensorflow as tf
import tfra
from harness import Case, measure, report

from tf_ext import ops

_SEED = 1
_HASHED_BATCHES = 10
_MAX_INSERTS = 3  # a repetition takes seconds


def pull(args):
    """Reads existing rows: uniform keys, then Zipf with many duplicates."""
    table = tables.make("adagrad", args.dim)
    tables.fill(table, args.rows)
    dense = tf.Variable(tf.random.normal([args.rows, args.dim]))
    with tfra.start(args) as worker:
        if worker:
            worker.call(
                "fill", rows=args.rows, dim=args.dim, batch=tables.BATCH
            )
        for distribution in ("uniform", "zipf"):
            keys = batches.pull_keys(distribution, args.rows, args.batch)
            cases = _pull_cases(table, dense, keys, distribution)
            if worker:
                cases.append(
                    worker.case(
                        "pull",
                        args.batch,
                        distribution=distribution,
                        rows=args.rows,
                        batch=args.batch,
                    )
                )
            settings = {
                "threads": args.threads,
                "rows": args.rows,
                "load": tables.load(table),
                "dim": args.dim,
                "batch": args.batch,
                "keys": _name(distribution),
                "unit": "keys",
            }
            report("pull", measure(cases, args.repeats), settings, args.json)


def _name(distribution):
    return {"zipf": f"Zipf({batches.ZIPF_EXPONENT})"}.get(
        distribution, distribution
    )


def _pull_cases(table, dense, keys, distribution):
    ready = [tf.constant(batch) for batch in keys]
    take = partial(dense.numpy().take, axis=0)
    reads = {
        "tf_ext pull": (partial(tables.pull, table), ready),
        "tf.gather": (partial(tf.gather, dense), ready),
        "numpy.take": (take, list(keys)),
    }
    if distribution != "uniform":
        name = "tf_ext unique, pull, combine"
        reads[name] = (partial(_with_unique, table), ready)
    return [
        Case(name, batches.in_turn(read, inputs), keys.shape[1])
        for name, (read, inputs) in reads.items()
    ]


def _with_unique(table, keys):
    unique = ops.unique_by_shard(keys)
    rows = tables.pull(table, unique.unique)
    splits = tf.range(tf.size(keys, tf.int64) + 1)
    return ops.combine_bags(rows, unique.inverse, splits, combiners=["sum"])


def push(args):
    """Updates existing rows, distinct keys."""
    rng = np.random.default_rng(_SEED)
    count = min(args.batch, args.rows)
    keys = [
        tf.constant(rng.choice(args.rows, count, replace=False))
        for _ in range(batches.BATCHES)
    ]
    gradients = tf.constant(
        rng.normal(size=(count, args.dim)).astype(np.float32)
    )
    table = tables.make("adagrad", args.dim)
    tables.fill(table, args.rows)
    weights = tf.Variable(tf.zeros([args.rows, args.dim]))
    slots = tf.Variable(tf.fill([args.rows, args.dim], 0.1))

    def dense_adagrad(keys):
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=weights.handle,
            accum=slots.handle,
            lr=0.01,
            epsilon=1e-7,
            grad=gradients,
            indices=keys,
        )

    def ours(keys):
        tables.push(table, keys, gradients)

    cases = [
        Case("tf_ext push", batches.in_turn(ours, keys), count),
        Case(
            "ResourceSparseApplyAdagradV2",
            batches.in_turn(dense_adagrad, keys),
            count,
        ),
    ]
    settings = {
        "threads": args.threads,
        "rows": args.rows,
        "load": tables.load(table),
        "dim": args.dim,
        "batch": count,
        "keys": "distinct, uniform",
        "rule": "adagrad",
        "unit": "keys",
    }
    report("push", measure(cases, args.repeats), settings, args.json)


def insert(args):
    """Creates rows in empty tables, normal initialisation."""
    signs = [
        tf.range(start, min(start + tables.BATCH, args.rows), dtype=tf.int64)
        for start in range(0, args.rows, tables.BATCH)
    ]

    table = tables.make("adagrad", args.dim)
    reference = _NewDenseHashTable(args.dim)

    def ours():
        for batch in signs:
            tables.pull(table, batch, training=True)

    def dense_hash_table():
        for batch in signs:
            values = tf.random.normal([batch.shape[0], args.dim])
            reference.table.insert(batch, values)

    def touch():
        tables.touched_memory(args.rows * tables.raw_bytes(args.dim))

    cases = [
        Case("tf_ext pull, training", ours, args.rows, before=table.clear),
        Case("first touch of the raw bytes", touch, args.rows),
        Case(
            "DenseHashTable.insert",
            dense_hash_table,
            args.rows,
            before=reference.make,
        ),
    ]
    settings = {
        "threads": args.threads,
        "rows": args.rows,
        "dim": args.dim,
        "batch": tables.BATCH,
        "keys": "consecutive",
        "rule": "adagrad",
        "unit": "rows",
    }
    with tfra.start(args) as worker:
        if worker:
            cases.append(
                worker.case(
                    "insert",
                    args.rows,
                    rows=args.rows,
                    dim=args.dim,
                    batch=tables.BATCH,
                )
            )
        results = measure(
            cases, min(args.repeats, _MAX_INSERTS), warmup=0, settle=False
        )
    report("insert", results, settings, args.json)


class _NewDenseHashTable:
    """A table that can be made anew: there is no way to clear one."""

    def __init__(self, dim):
        self._dim = dim
        self.table = None

    def make(self):
        self.table = None  # Its memory is free before the next one's is taken.
        self.table = tf.lookup.experimental.DenseHashTable(
            tf.int64, tf.float32, tf.zeros([self._dim]), -1, -2
        )


def unique(args):
    """Distinct keys of a batch as a model has them."""
    ids, _ = batches.training_batch(args.rows)
    keys = tf.constant(ids.ravel())
    count = ids.size
    cases = [
        Case(
            "tf_ext unique_by_shard", partial(ops.unique_by_shard, keys), count
        ),
        Case("tf.unique", partial(tf.unique, keys), count),
    ]
    settings = {
        "threads": args.threads,
        "batch": count,
        "keys": _name("zipf"),
        "distinct": len(np.unique(ids)),
        "unit": "keys",
    }
    report("unique", measure(cases, args.repeats), settings, args.json)


def hash_columns(args):
    """Strings of many columns to signs."""
    rng = np.random.default_rng(_SEED)

    def make_columns():
        return [
            tf.constant(
                [f"{x:x}" for x in rng.integers(0, 2**40, batches.SAMPLES)]
            )
            for _ in range(batches.IDS)
        ]

    all_columns = [make_columns() for _ in range(_HASHED_BATCHES)]
    together = [tf.concat(columns, 0) for columns in all_columns]
    names = [f"C{i}" for i in range(batches.IDS)]

    def in_one_function(hash_batch, inputs):
        # Several batches, and nothing returned: a call from Python with 26
        # results takes as long as hashing them. The tensors are captured, for
        # 26 arguments would cost 0.3 ms more.
        @tf.function(autograph=False)
        def run():
            signs = [hash_batch(batch) for batch in inputs]
            with tf.control_dependencies(tf.nest.flatten(signs)):
                return tf.constant(0)

        return run

    def ours(columns):
        return ops.hash_category(columns, namespaces=names).signs

    def at_once(texts):
        return tf.strings.to_hash_bucket_fast(texts, 2**40)

    def one_by_one(columns):
        return [at_once(column) for column in columns]

    count = _HASHED_BATCHES * batches.IDS * batches.SAMPLES
    cases = [
        Case("tf_ext hash_category", in_one_function(ours, all_columns), count),
        Case(
            "26 x to_hash_bucket_fast",
            in_one_function(one_by_one, all_columns),
            count,
        ),
        Case(
            "1 x to_hash_bucket_fast", in_one_function(at_once, together), count
        ),
    ]
    settings = {
        "threads": args.threads,
        "batch": batches.SAMPLES,
        "columns": batches.IDS,
        "batches": _HASHED_BATCHES,
        "keys": "hexadecimal text",
        "unit": "strings",
    }
    with _unoptimized_graphs():
        results = measure(cases, args.repeats)
    report("hash", results, settings, args.json)


@contextlib.contextmanager
def _unoptimized_graphs():
    """Graphs keep what nothing is returned of.

    Only inside: optimized graphs round differently.
    """
    name = "disable_meta_optimizer"
    options = tf.config.optimizer
    before = options.get_experimental_options().get(name, False)
    options.set_experimental_options({name: True})
    try:
        yield
    finally:
        options.set_experimental_options({name: before})
