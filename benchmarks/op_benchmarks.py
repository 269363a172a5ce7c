"""Single ops beside TensorFlow's own."""

from functools import partial

import numpy as np
import tables
import tensorflow as tf
from harness import Case, measure, report, zipf

from tf_ext import ops

_SEED = 1
_COLUMNS = 26
_COLUMN_BATCH = 4096


def _settings(args, **more):
    return {"threads": args.threads, **more}


def pull(args):
    """Reads existing rows: uniform distinct keys, then Zipf with duplicates."""
    count = args.batch
    rng = np.random.default_rng(_SEED)
    table = tables.make("adagrad", args.dim)
    tables.fill(table, args.rows)
    dense = tf.Variable(tf.random.normal([args.rows, args.dim]))
    array = dense.numpy()
    draws = {
        "uniform": rng.integers(0, args.rows, count),
        "zipf 1.05": zipf(rng, 1.05, args.rows, count),
    }
    for name, keys in draws.items():
        ready = tf.constant(keys, tf.int64)
        cases = [
            Case("tf_ext pull", partial(tables.pull, table, ready), count),
            Case("tf.gather", partial(tf.gather, dense, ready), count),
            Case("numpy.take", partial(array.take, keys, axis=0), count),
        ]
        if name != "uniform":
            run = partial(_with_unique, table, ready)
            cases.insert(1, Case("tf_ext unique, pull, combine", run, count))
        settings = _settings(
            args, rows=args.rows, dim=args.dim, batch=count, keys=name
        )
        report("pull", measure(cases, args.repeats), settings, args.json)


def _with_unique(table, keys):
    unique = ops.unique_by_shard(keys)
    rows = tables.pull(table, unique.unique)
    splits = tf.range(tf.size(keys, tf.int64) + 1)
    return ops.combine_bags(rows, unique.inverse, splits, combiners=["sum"])


def push(args):
    """Updates existing rows, distinct keys."""
    rng = np.random.default_rng(_SEED)
    keys = rng.permutation(args.rows)[: args.batch]
    ready = tf.constant(keys, tf.int64)
    gradients = tf.constant(
        rng.normal(size=(args.batch, args.dim)).astype(np.float32)
    )
    table = tables.make("adagrad", args.dim)
    tables.fill(table, args.rows)
    weights = tf.Variable(tf.zeros([args.rows, args.dim]))
    slots = tf.Variable(tf.fill([args.rows, args.dim], 0.1))

    def dense_adagrad():
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=weights.handle,
            accum=slots.handle,
            lr=0.01,
            epsilon=1e-7,
            grad=gradients,
            indices=ready,
        )

    cases = [
        Case(
            "tf_ext push (Adagrad)",
            lambda: tables.push(table, ready, gradients),
            args.batch,
        ),
        Case("ResourceSparseApplyAdagradV2", dense_adagrad, args.batch),
    ]
    settings = _settings(args, rows=args.rows, dim=args.dim, batch=args.batch)
    report("push", measure(cases, args.repeats), settings, args.json)


def insert(args):
    """Creates rows in empty tables, normal initialisation."""
    batches = [
        tf.range(start, min(start + tables.BATCH, args.rows), dtype=tf.int64)
        for start in range(0, args.rows, tables.BATCH)
    ]
    table = tables.make("adagrad", args.dim)

    def ours():
        table.clear()
        for signs in batches:
            tables.pull(table, signs, training=True)

    def theirs():
        reference = tf.lookup.experimental.DenseHashTable(
            tf.int64, tf.float32, tf.zeros([args.dim]), -1, -2
        )
        for signs in batches:
            values = tf.random.normal([signs.shape[0], args.dim])
            reference.insert(signs, values)

    cases = [
        Case("tf_ext pull, training", ours, args.rows),
        Case("DenseHashTable.insert", theirs, args.rows),
    ]
    settings = _settings(args, rows=args.rows, dim=args.dim, batch=tables.BATCH)
    report("insert", measure(cases, 3, warmup=0), settings, args.json)


def unique(args):
    """Distinct keys of a batch as a model has them."""
    rng = np.random.default_rng(_SEED)
    count = _COLUMNS * _COLUMN_BATCH
    keys = tf.constant(zipf(rng, 1.05, args.rows, count))
    cases = [
        Case(
            "tf_ext unique_by_shard", lambda: ops.unique_by_shard(keys), count
        ),
        Case("tf.unique", lambda: tf.unique(keys), count),
    ]
    distinct = len(np.unique(keys))
    settings = _settings(args, keys=count, distinct=distinct)
    report("unique", measure(cases, args.repeats), settings, args.json)


def hash_columns(args):
    """Strings of many columns to signs."""
    rng = np.random.default_rng(_SEED)
    columns = [
        tf.constant([f"{x:x}" for x in rng.integers(0, 2**40, _COLUMN_BATCH)])
        for _ in range(_COLUMNS)
    ]
    together = tf.concat(columns, 0)
    names = [f"C{i}" for i in range(_COLUMNS)]

    @tf.function
    def ours(columns):
        return ops.hash_category(columns, namespaces=names).signs

    @tf.function
    def one_by_one(columns):
        return [tf.strings.to_hash_bucket_fast(c, 2**40) for c in columns]

    @tf.function
    def at_once(together):
        return tf.strings.to_hash_bucket_fast(together, 2**40)

    count = _COLUMNS * _COLUMN_BATCH
    cases = [
        Case("tf_ext hash_category", lambda: ours(columns), count),
        Case("26 x to_hash_bucket_fast", lambda: one_by_one(columns), count),
        Case("1 x to_hash_bucket_fast", lambda: at_once(together), count),
    ]
    settings = _settings(args, columns=_COLUMNS, batch=_COLUMN_BATCH)
    report("hash", measure(cases, args.repeats), settings, args.json)
