# SPDX-License-Identifier: Apache-2.0
"""What admission and eviction cost, and what small rows do to the AUC."""

import dataclasses
import statistics

import batches
import numpy as np
import tables
import tensorflow as tf
from harness import Case, heading, measure, report, write_json

import tf_ext
from tf_ext import ops

_BATCH = 65_536
_STREAM_BATCHES = 64
_WARMUP = 4
# Of the distinct ids of the stream, 90 % occur once and 10 % about 11 times,
# so half of all occurrences are of the latter.
_ONCE = 0.9
_REPEATED = 11
_ROWS = 1_000_000
_MAX_PRESENT = 50
_DIM = 16
_EXAMPLES = 3_000_000
_TEST_EXAMPLES = 1_000_000
_TRAIN_BATCH = 512
_TEST_BATCH = 16_384
# The second one reaches the higher AUC in one epoch. Updates with the first one
# are small, as those of tables that have been trained for long.
_LEARNING_RATES = (0.005, 0.01)
# How many ids each feature has, and the standard deviation of their effects on
# the logit. The first feature is the bias.
_VOCABULARIES = (1, 50, 500, 3000, 10_000, 30_000, 100_000)
_EFFECTS = (0.0, 1.0, 1.0, 0.7, 0.5, 0.3, 0.2)
_BIAS = -1.5
# The standard deviation of what two ids add together, and its rank.
_INTERACTION, _RANK = 0.3, 4


def lifetime(args):
    """A stream of ids, and rows that are all present."""
    _stream(args)
    _present(args)


# A stream of ids, of which 90 % occur once.


def _stream(args):
    policies = {
        "every id": None,
        "Count(2)": tf_ext.admission.Count(2),
        "Count(2, forget=16)": tf_ext.admission.Count(2, forget=16),
    }
    stream = list(_batches())
    streams = [
        _Stream(
            tf_ext.SparseTable("stream", args.dim, "adagrad", admission=policy),
            stream,
        )
        for policy in policies.values()
    ]
    cases = [
        Case(name, one.step, _BATCH)
        for name, one in zip(policies, streams, strict=True)
    ]
    # Each batch is trained once, as each table grows.
    repeats = _STREAM_BATCHES - _WARMUP
    results = measure(cases, repeats, _WARMUP, settle=False)
    every = streams[0].table.stats()["bytes"]
    for result, one in zip(results, streams, strict=True):
        stats = one.table.stats()
        result.update(
            rows=stats["rows"],
            bytes=stats["bytes"],
            bytes_ratio=stats["bytes"] / every,
        )
    _report("lifetime_stream", results, args)
    for r in results:
        print(
            f"  {r['case']:32} {r['rows']:>12,} rows {r['bytes']:>14,} bytes, "
            f"{r['bytes_ratio']:.2f} of every id's"
        )


def _batches():
    """Yields `(distinct signs [n], counts [n, 1])` for each batch."""
    random = np.random.default_rng(1)
    # The share of occurrences that are an id's only one.
    once = _ONCE / (_ONCE + (1 - _ONCE) * _REPEATED)
    new = round(_BATCH * once)
    repeated = round((_BATCH - new) * _STREAM_BATCHES / _REPEATED)
    for i in range(_STREAM_BATCHES):
        begin = repeated + i * new
        ids = np.concatenate(
            [
                np.arange(begin, begin + new),
                random.integers(0, repeated, _BATCH - new),
            ]
        )
        signs, counts = np.unique(ids, return_counts=True)
        order = random.permutation(len(signs))
        yield (
            tf.constant(signs[order]),
            tf.constant(counts[order, np.newaxis], tf.float32),
        )


class _Stream:
    """A table that is trained on the batches of a stream.

    Args:
      table: SparseTable.
      batches: list of `(signs [n], counts [n, 1])`.
    """

    def __init__(self, table, batches):
        self.table = table
        self._batches = batches
        self._gradients = tf.random.stateless_normal(
            [_BATCH, table.dim], [1, 2]
        )
        self._steps = 0

    def step(self):
        """Pulls and pushes the next batch."""
        signs, counts = self._batches[self._steps]
        self._steps += 1
        tables.pull(self.table, signs, training=True)
        tables.push(
            self.table,
            signs,
            self._gradients[: len(signs)],
            step=self._steps,
            statistics=counts if self.table.statistics_width else None,
        )


# Rows that are all present.


def _present(args):
    made = {
        "no options": {},
        "Count(2)": {"admission": tf_ext.admission.Count(2)},
        "Unseen(steps=1000)": {"eviction": tf_ext.eviction.Unseen(steps=1000)},
        **{
            f"{', '.join(fields)}, Unseen": {
                "statistics": fields,
                "eviction": tf_ext.eviction.Unseen(steps=1000),
            }
            for fields in (["show"], ["show", "click"])
        },
    }
    random = np.random.default_rng(1)
    keys = [
        tf.constant(random.choice(_ROWS, _BATCH, replace=False))
        for _ in range(batches.BATCHES)
    ]
    gradients = tf.random.stateless_normal([_BATCH, args.dim], [1, 2])
    cases = []
    for name, options in made.items():
        table = tf_ext.SparseTable("present", args.dim, "adagrad", **options)
        for begin in range(0, _ROWS, _BATCH):
            signs = np.arange(begin, min(begin + _BATCH, _ROWS))
            # Twice, for Count(2).
            for _ in range(2):
                tables.push(table, signs, gradients[: len(signs)])

        # As Keras gives them to tables that use them.
        width = table.statistics_width
        counts = tf.ones([_BATCH, width]) if width else None

        def step(signs, table=table, counts=counts):
            tables.pull(table, signs, training=True)
            tables.push(table, signs, gradients, statistics=counts)

        cases.append(Case(name, batches.in_turn(step, keys), _BATCH))
    results = measure(cases, min(args.repeats, _MAX_PRESENT))
    _report("lifetime_present", results, args)


def _report(benchmark, results, args):
    settings = {"threads": args.threads, "dim": args.dim, "unit": "ids"}
    report(benchmark, results, settings, args.json)


# How rows are stored, and the AUC.


@dataclasses.dataclass(frozen=True)
class _Rows:
    """How rows are stored.

    Attributes:
      dtype, slot_dtype: strings, as of SparseTable.
      rounding: "stochastic" as in tf_ext, or "nearest", which is imitated.
    """

    dtype: str = "float32"
    slot_dtype: str = "float32"
    rounding: str = "stochastic"

    @property
    def name(self):
        """As results and plots call it."""
        slots = f", {self.slot_dtype} slots"
        nearest = ", to nearest" if self.rounding == "nearest" else ""
        own = self.slot_dtype != "float32"
        return self.dtype + (slots if own else "") + nearest


_CASES = (
    _Rows(),
    _Rows("float16"),
    _Rows("float16", "bfloat16"),
    _Rows("bfloat16"),
    _Rows("bfloat16", "bfloat16"),
    _Rows("float16", rounding="nearest"),
    _Rows("bfloat16", rounding="nearest"),
)


def small_rows(args):
    """AUC of each way to store rows, on generated data."""
    settings = {
        "examples": _EXAMPLES,
        "test_examples": _TEST_EXAMPLES,
        "batch": _TRAIN_BATCH,
        "rule": "adagrad",
        "dim": _DIM,
    }
    print(heading("small_rows", settings))
    for rate in _LEARNING_RATES:
        aucs = {rows.name: [] for rows in _CASES}
        for seed in args.seeds:
            train, test, best = _generate(seed)
            for rows in _CASES:
                machine = _Machine(rows, rate, seed)
                result = machine.train_and_evaluate(train, test)
                aucs[rows.name].append(result["auc"])
                line = {
                    "benchmark": "small_rows",
                    **settings,
                    "case": rows.name,
                }
                line |= {"learning_rate": rate, "seed": seed, "best_auc": best}
                write_json([{**line, **result}], args.json)
        print(f"\nlearning rate {rate}, seeds {args.seeds}")
        _print_table(aucs)


def _print_table(aucs):
    print("\n| rows | AUC | minus float32's: mean | from | to |")
    print("|---|---|---|---|---|")
    for name, found in aucs.items():
        apart = np.subtract(found, aucs[_Rows().name])
        print(
            f"| {name} | {statistics.fmean(found):.5f} | "
            f"{apart.mean():+.5f} | {apart.min():+.5f} | {apart.max():+.5f} |"
        )


# Generated data: each id has an effect and a vector, and vectors interact.


def _generate(seed):
    """Ids `[n, features]` and labels `[n]`, for training and for testing.

    The third result is the best AUC that any model could reach.
    """
    random = np.random.default_rng(seed)
    count = _EXAMPLES + _TEST_EXAMPLES
    sizes = np.array(_VOCABULARIES)
    first = np.cumsum(sizes) - sizes
    ids = np.stack(
        [
            begin + batches.zipf(random, batches.ZIPF_EXPONENT, size, count)
            for begin, size in zip(first, sizes, strict=True)
        ],
        axis=1,
    ).astype(np.int32)
    effects = random.normal(0, np.repeat(_EFFECTS, sizes))
    effects[0] = _BIAS
    # A product of two vectors has the deviation sqrt(rank) * deviation^2.
    deviation = np.sqrt(_INTERACTION / np.sqrt(_RANK))
    vectors = random.normal(0, deviation, (sizes.sum(), _RANK))
    vectors[0] = 0
    logits = np.concatenate(
        [
            effects[some].sum(axis=1) + _interactions(vectors[some])
            for some in np.array_split(ids, -(-count // _TEST_BATCH))
        ]
    )
    labels = random.random(count) < 1 / (1 + np.exp(-logits))
    parts = slice(_EXAMPLES), slice(_EXAMPLES, None)
    train, test = [(ids[p], labels[p].astype(np.float32)) for p in parts]
    return train, test, _auc(test[1], logits[_EXAMPLES:])


def _auc(labels, logits):
    users = np.zeros(len(labels), np.int64)
    return tf_ext.metrics.gauc(users, labels, logits).value


def _interactions(vectors):
    """Sums of the products of all pairs: `[n, features, k]` to `[n]`."""
    total = vectors.sum(axis=1)
    return ((total**2).sum(axis=1) - (vectors**2).sum(axis=(1, 2))) / 2


class _Machine:
    """A factorization machine: the first weight of a row is linear.

    Args:
      rows: _Rows.
      rate: float, the learning rate.
      seed: int, of the table.
    """

    def __init__(self, rows, rate, seed):
        imitated = rows.rounding == "nearest"
        self._rate = rate
        self._rounded = tf.as_dtype(rows.dtype) if imitated else None
        self._table = tf_ext.SparseTable(
            "bench",
            _DIM,
            tf_ext.optimizers.SparseAdagrad(rate),
            tf_ext.initializers.Normal(stddev=0.03),
            seed=seed,
            dtype="float32" if imitated else rows.dtype,
            slot_dtype=rows.slot_dtype,
        )
        ids = tf.TensorSpec([None, len(_VOCABULARIES)], tf.int64)
        labels = tf.TensorSpec([None], tf.float32)
        self._step = tf.function(
            self._train_step,
            [ids, labels, tf.TensorSpec([], tf.int64)],
            autograph=False,
        )
        self._predict = tf.function(self._logits_of, [ids], autograph=False)

    def train_and_evaluate(self, train, test):
        """Trains for one epoch; returns the measures, a dict."""
        ids, labels = train
        for step, begin in enumerate(range(0, len(ids), _TRAIN_BATCH), 1):
            part = slice(begin, begin + _TRAIN_BATCH)
            # The random bits of an update depend on it.
            number = tf.constant(step, tf.int64)
            self._step(_tensor(ids[part]), tf.constant(labels[part]), number)
        ids, labels = test
        logits = [
            self._predict(_tensor(ids[begin : begin + _TEST_BATCH])).numpy()
            for begin in range(0, len(ids), _TEST_BATCH)
        ]
        stats = self._table.stats()
        return {
            "auc": _auc(labels, np.concatenate(logits)),
            "rows": stats["rows"],
            "row_bytes": stats["row_bytes"],
            "bytes": stats["bytes"],
            "saturated": stats["saturated"],
        }

    def _train_step(self, ids, labels, step):
        unique = ops.unique_by_shard(tf.reshape(ids, [-1]))
        rows = tables.pull(self._table, unique.unique, training=True)
        with tf.GradientTape() as tape:
            tape.watch(rows)
            taken = tf.gather(rows, unique.inverse)
            logits = _logits(taken, len(_VOCABULARIES))
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses)
        [gradients] = tape.gradient(loss, [taken])
        gradients = tf.math.unsorted_segment_sum(
            gradients, unique.inverse, tf.size(unique.unique)
        )
        pushed = tables.push(
            self._table, unique.unique, gradients, self._rate, step
        )
        if self._rounded is not None:
            with tf.control_dependencies([pushed]):
                self._round(unique.unique)

    def _round(self, signs):
        """Rounds the weights of rows to the nearest values of a type."""
        weights = tables.pull(self._table, signs)
        nearest = tf.cast(tf.cast(weights, self._rounded), tf.float32)
        ops.sparse_table_import(
            tables.handle(self._table),
            signs,
            [nearest],
            field_names=["weights"],
        )

    def _logits_of(self, ids):
        rows = tables.pull(self._table, tf.reshape(ids, [-1]))
        return _logits(rows, len(_VOCABULARIES))


def _tensor(ids):
    return tf.constant(ids, tf.int64)


def _logits(rows, features):
    """Of rows `[n * features, dim]`, `[n]`."""
    rows = tf.reshape(rows, [-1, features, _DIM])
    linear = tf.reduce_sum(rows[..., 0], axis=1)
    vectors = rows[..., 1:]
    total = tf.reduce_sum(vectors, axis=1)
    squares = tf.reduce_sum(vectors**2, axis=[1, 2])
    return linear + (tf.reduce_sum(total**2, axis=1) - squares) / 2
