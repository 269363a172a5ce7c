"""What admission and eviction of rows cost, save, and do to the AUC."""

import pathlib
import sys

import batches
import numpy as np
import tables
import tensorflow as tf
from harness import Case, heading, measure, read_json, report, write_json

import tf_ext

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# The example's modules import each other by name.
sys.path.insert(0, str(_ROOT / "examples"))

import wide_deep  # noqa: E402

_PLOT = _ROOT / "docs" / "rows.png"
_BATCH = 65_536
_STREAM_BATCHES = 64
_WARMUP = 4
# Of the distinct ids of the stream, 90 % occur once and 10 % about 11 times,
# so half of all occurrences are of the latter.
_ONCE = 0.9
_REPEATED = 11
_THRESHOLDS = (1, 2, 3, 5, 10, 20)
_EXAMPLES = 3_000_000
_ROWS = 1_000_000
_MAX_PRESENT = 50


def lifetime(args):
    """A stream of ids, rows that are all present, and the AUC by threshold."""
    _stream(args)
    _present(args)
    _thresholds(args)


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


# The AUC by threshold.


def _thresholds(args):
    """Trains the Wide & Deep example with thresholds of admission."""
    print(heading("lifetime_auc", {"examples": _EXAMPLES}))
    for n in _THRESHOLDS:
        options = [f"--examples={_EXAMPLES}"]
        if n > 1:
            options.append(f"--admission={n}")
        example = wide_deep.parse_arguments(options)
        result = wide_deep.train_and_evaluate(
            tf.distribute.get_strategy(), example, wide_deep.load_data(example)
        )
        line = {"benchmark": "lifetime_auc", "admission": n, **result}
        write_json([line], args.json)
        print(
            f"  Count({n}): AUC {result['auc']:.4f}, {result['rows']:,} rows, "
            f"{result['bytes']:,} bytes",
            flush=True,
        )


def plot_lifetime(args):
    """Plots AUC and memory over the threshold of admission."""
    lines = {
        line["admission"]: line
        for line in read_json(args.json)
        if line["benchmark"] == "lifetime_auc"
    }
    if not lines:
        raise SystemExit(f"{args.json} has no results of `lifetime`.")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = sorted(lines)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5))
    left.plot(found, [lines[n]["auc"] for n in found], marker="o")
    left.set_ylabel("AUC on the test examples")
    right.plot(found, [lines[n]["bytes"] / 1e6 for n in found], marker="o")
    right.set_ylim(bottom=0)
    right.set_ylabel("memory of both tables, MB")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(found, [str(n) for n in found])
        axes.minorticks_off()
        axes.set_xlabel("n of Count(n)")
        axes.grid(alpha=0.3)
    figure.tight_layout()
    path = pathlib.Path(args.output, _PLOT.name) if args.output else _PLOT
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    print(f"wrote {path}")
