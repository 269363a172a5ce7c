# SPDX-License-Identifier: Apache-2.0
"""Single ops, compared with TensorFlow's own."""

import contextlib
from functools import partial

import batches
import numpy as np
import tables
import tensorflow as tf
from harness import Case, measure, report

from tf_ext import ops

_SEED = 1
_DISTRIBUTIONS = ("uniform", "zipf")
_HASHED_BATCHES = 10
_MAX_INSERTS = 3  # a repetition takes seconds


def pull(args):
    """Reads existing rows: uniform keys, then Zipf with many duplicates."""
    filled = _filled_tables(args)
    dense = tf.Variable(tf.random.normal([args.rows, args.dim]))
    for distribution in _DISTRIBUTIONS:
        keys = batches.pull_keys(distribution, args.rows, args.batch)
        cases = _pull_cases(filled, keys, distribution)
        cases += _dense_pull_cases(dense, keys)
        settings = {
            "threads": args.threads,
            "rows": args.rows,
            "load": tables.load(filled[""]),
            "dim": args.dim,
            **tables.types(args),
            "batch": args.batch,
            "keys": _name(distribution),
            "unit": "keys",
        }
        report("pull", measure(cases, args.repeats), settings, args.json)


def compared_pull(args):
    """The cases of `pull` that are compared with those of another build."""
    filled = _filled_tables(args)
    cases = []
    for distribution in _DISTRIBUTIONS:
        keys = batches.pull_keys(distribution, args.rows, args.batch)
        for case in _pull_cases(filled, keys, distribution):
            case.name += f", {_name(distribution)}"
            cases.append(case)
    return cases


def _filled_tables(args):
    """As `tables.to_measure`, with all rows."""
    filled = tables.to_measure("adagrad", args)
    for table in filled.values():
        tables.fill(table, args.rows)
    return filled


def _name(distribution):
    return {"zipf": f"Zipf({batches.ZIPF_EXPONENT})"}.get(
        distribution, distribution
    )


def _pull_cases(filled, keys, distribution):
    reads = {"tf_ext pull": tables.pull}
    if distribution != "uniform":
        reads["tf_ext unique, pull, combine"] = _with_unique
    return [
        _reading_case(
            name + suffix, partial(read, table), map(tf.constant, keys)
        )
        for name, read in reads.items()
        for suffix, table in filled.items()
    ]


def _dense_pull_cases(dense, keys):
    take = partial(dense.numpy().take, axis=0)
    return [
        _reading_case(
            "tf.gather", partial(tf.gather, dense), map(tf.constant, keys)
        ),
        _reading_case("numpy.take", take, keys),
    ]


def _reading_case(name, read, keys):
    keys = list(keys)
    return Case(name, batches.in_turn(read, keys), len(keys[0]))


def _with_unique(table, keys):
    unique = ops.unique_by_shard(keys)
    rows = tables.pull(table, unique.unique)
    splits = tf.range(tf.size(keys, tf.int64) + 1)
    return ops.combine_bags(rows, unique.inverse, splits, combiners=["sum"])


def push(args):
    """Updates existing rows, distinct keys."""
    keys, gradients = batches.pushes(args)
    filled = _filled_tables(args)
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

    count = len(gradients)
    cases = [
        *_push_cases(filled, keys, gradients),
        Case(
            "ResourceSparseApplyAdagradV2",
            batches.in_turn(dense_adagrad, keys),
            count,
        ),
    ]
    settings = {
        "threads": args.threads,
        "rows": args.rows,
        "load": tables.load(filled[""]),
        "dim": args.dim,
        **tables.types(args),
        "batch": count,
        "keys": "distinct, uniform",
        "rule": "adagrad",
        "unit": "keys",
    }
    report("push", measure(cases, args.repeats), settings, args.json)


def compared_push(args):
    """The cases of `push` that are compared with those of another build."""
    return _push_cases(_filled_tables(args), *batches.pushes(args))


def _push_cases(filled, keys, gradients):
    def push_to(table):
        return lambda signs: tables.push(table, signs, gradients)

    return [
        Case(
            f"tf_ext push{suffix}",
            batches.in_turn(push_to(table), keys),
            len(gradients),
        )
        for suffix, table in filled.items()
    ]


def insert(args):
    """Creates rows in empty tables, normal initialisation."""
    reference = _NewDenseHashTable(args.dim)
    signs = _inserted(args)

    def dense_hash_table():
        for batch in signs:
            values = tf.random.normal([batch.shape[0], args.dim])
            reference.table.insert(batch, values)

    raw_bytes = tables.raw_bytes(tables.to_measure("adagrad", args)[""])

    def touch():
        tables.touched_memory(args.rows * raw_bytes)

    cases = [
        *compared_insert(args),
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
        **tables.types(args),
        "batch": tables.BATCH,
        "keys": "consecutive",
        "rule": "adagrad",
        "unit": "rows",
    }
    results = measure(
        cases, min(args.repeats, _MAX_INSERTS), warmup=0, settle=False
    )
    report("insert", results, settings, args.json)


def compared_insert(args):
    """The cases of `insert` that are compared with those of another build."""
    signs = _inserted(args)

    def insert_into(table):
        for batch in signs:
            tables.pull(table, batch, training=True)

    return [
        Case(
            f"tf_ext pull, training{suffix}",
            partial(insert_into, table),
            args.rows,
            before=table.clear,
        )
        for suffix, table in tables.to_measure("adagrad", args).items()
    ]


def _inserted(args):
    """All keys, in batches."""
    return [
        tf.range(start, min(start + tables.BATCH, args.rows), dtype=tf.int64)
        for start in range(0, args.rows, tables.BATCH)
    ]


class _NewDenseHashTable:
    """A table that can be recreated, as the reference cannot be cleared."""

    def __init__(self, dim):
        self._dim = dim
        self.table = None

    def make(self):
        self.table = None  # Its memory is free before the next one's is taken.
        self.table = tf.lookup.experimental.DenseHashTable(
            tf.int64, tf.float32, tf.zeros([self._dim]), -1, -2
        )


def unique(args):
    """Distinct keys of a batch, as in a model."""
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
    """Hashes the strings of many columns to signs."""
    all_columns = _hashed_columns()
    together = [tf.concat(columns, 0) for columns in all_columns]

    def at_once(texts):
        return tf.strings.to_hash_bucket_fast(texts, 2**40)

    def one_by_one(columns):
        return [at_once(column) for column in columns]

    count = _HASHED_BATCHES * batches.IDS * batches.SAMPLES
    cases = [
        _hash_case(all_columns),
        Case(
            "26 x to_hash_bucket_fast",
            _in_one_function(one_by_one, all_columns),
            count,
        ),
        Case(
            "1 x to_hash_bucket_fast",
            _in_one_function(at_once, together),
            count,
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


def compared_hash(args):
    """The cases of `hash` that are compared with those of another build."""
    _set_unoptimized_graphs(True)  # For as long as the process runs.
    return [_hash_case(_hashed_columns())]


def _hashed_columns():
    rng = np.random.default_rng(_SEED)

    def make_columns():
        return [
            tf.constant(
                [f"{x:x}" for x in rng.integers(0, 2**40, batches.SAMPLES)]
            )
            for _ in range(batches.IDS)
        ]

    return [make_columns() for _ in range(_HASHED_BATCHES)]


def _hash_case(all_columns):
    names = [f"C{i}" for i in range(batches.IDS)]

    def hash_batch(columns):
        return ops.hash_category(columns, namespaces=names).signs

    count = _HASHED_BATCHES * batches.IDS * batches.SAMPLES
    run = _in_one_function(hash_batch, all_columns)
    return Case("tf_ext hash_category", run, count)


def _in_one_function(hash_batch, inputs):
    # Several batches, and nothing returned: a call from Python with 26
    # results takes as long as hashing them. The tensors are captured, for
    # 26 arguments would cost 0.3 ms more.
    @tf.function(autograph=False)
    def run():
        signs = [hash_batch(batch) for batch in inputs]
        with tf.control_dependencies(tf.nest.flatten(signs)):
            return tf.constant(0)

    return run


@contextlib.contextmanager
def _unoptimized_graphs():
    """Graphs keep what nothing is returned of.

    Only inside: optimized graphs round differently.
    """
    before = _set_unoptimized_graphs(True)
    try:
        yield
    finally:
        _set_unoptimized_graphs(before)


def _set_unoptimized_graphs(value):
    """Sets the option; returns what it was before."""
    name = "disable_meta_optimizer"
    options = tf.config.optimizer
    before = options.get_experimental_options().get(name, False)
    options.set_experimental_options({name: value})
    return before
