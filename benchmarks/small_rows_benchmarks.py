"""What rows in float16 and bfloat16 do to the AUC."""

import dataclasses
import pathlib
import statistics
import sys

import batches
import default_rates
import numpy as np
import tables
import tensorflow as tf
from harness import heading, read_json, write_json

import tf_ext
from tf_ext import ops

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# The example's modules import each other by name.
sys.path.insert(0, str(_ROOT / "examples"))

import wide_deep  # noqa: E402

_PLOT = _ROOT / "docs" / "small_rows.png"
_DIM = 16
_EXAMPLES = 3_000_000
_TEST_EXAMPLES = 1_000_000
_BATCH = 512
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
_EPOCHS = {"adult": 3, "criteo": 1}
_COLOURS = {
    "float32": "tab:grey",
    "float16": "tab:blue",
    "bfloat16": "tab:orange",
}


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
    """AUC of each way to store rows, on generated and on real data."""
    settings = {
        "examples": _EXAMPLES,
        "test_examples": _TEST_EXAMPLES,
        "batch": _BATCH,
        "rule": "adagrad",
        "dim": _DIM,
    }
    print(heading("small_rows", settings))
    settings["data"] = "generated"
    for rate in _LEARNING_RATES:
        settings["learning_rate"] = rate
        for seed in args.seeds:
            train, test, best = _generate(seed)
            for rows in _CASES:
                machine = _Machine(rows, rate, seed)
                result = machine.train_and_evaluate(train, test)
                result["best_auc"] = best
                _write(settings, rows, seed, result, args)
    if args.data:
        _real_data(args)


def _write(settings, rows, seed, result, args):
    line = {
        "benchmark": "small_rows",
        **settings,
        "case": rows.name,
        **dataclasses.asdict(rows),
        "seed": seed,
        **result,
    }
    write_json([line], args.json)
    print(
        f"  {settings['data']:10} rate {settings.get('learning_rate', '-')} "
        f"seed {seed} {rows.name:26} "
        f"AUC {result['auc']:.5f}, saturated {result['saturated']}",
        flush=True,
    )


def _real_data(args):
    """The Wide & Deep example on Adult and on a sample of Criteo."""
    for name, folder in default_rates.FOLDERS.items():
        settings = {"data": name, "rule": "row_wise_adagrad", "dim": _DIM}
        for seed in args.seeds:
            for rows in _CASES:
                if rows.rounding == "stochastic":
                    found = _wide_deep(name, args.data, folder, rows, seed)
                    _write(settings, rows, seed, found, args)


def _wide_deep(name, data, folder, rows, seed):
    example = wide_deep.parse_arguments(
        [
            *(f"--data={pathlib.Path(data, folder)}", f"--format={name}"),
            *(f"--dtype={rows.dtype}", f"--slot_dtype={rows.slot_dtype}"),
            *(f"--seed={seed}", f"--epochs={_EPOCHS[name]}"),
        ]
    )
    result = wide_deep.train_and_evaluate(
        tf.distribute.get_strategy(), example, wide_deep.load_data(example)
    )
    return {key: result[key] for key in ("auc", "rows", "bytes", "saturated")}


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
    return train, test, float(wide_deep.auc(test[1], logits[_EXAMPLES:]))


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
        for step, begin in enumerate(range(0, len(ids), _BATCH), 1):
            part = slice(begin, begin + _BATCH)
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
            "auc": float(wide_deep.auc(labels, np.concatenate(logits))),
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


# The plot and the tables.


def plot_small_rows(args):
    """Plots the AUC over the bytes of a row, and prints tables of all AUCs."""
    lines = [
        line
        for line in read_json(args.json)
        if line["benchmark"] == "small_rows"
    ]
    if not lines:
        raise SystemExit(f"{args.json} has no results of `small_rows`.")
    studies = {}
    for line in lines:
        key = line["data"], line.get("learning_rate")
        case = studies.setdefault(key, {}).setdefault(line["case"], {})
        case[line["seed"]] = line
    for (data, rate), cases in studies.items():
        print(f"\n{data}" + (f", learning rate {rate}" if rate else ""))
        _print_table(cases)
    _plot(
        {rate: cases for (_, rate), cases in studies.items() if rate},
        pathlib.Path(args.output, _PLOT.name) if args.output else _PLOT,
    )


def _differences(case, float32):
    """The AUCs of a case minus those of float32 with the same seeds."""
    shared = sorted(set(case) & set(float32))
    return [case[seed]["auc"] - float32[seed]["auc"] for seed in shared]


def _print_table(cases):
    print("\n| rows | seeds | AUC | minus float32's: mean | from | to |")
    print("|---|---|---|---|---|---|")
    for name, case in cases.items():
        apart = _differences(case, cases[_Rows().name])
        mean = statistics.fmean(line["auc"] for line in case.values())
        print(
            f"| {name} | {len(case)} | {mean:.5f} | "
            f"{statistics.fmean(apart):+.5f} | "
            f"{min(apart):+.5f} | {max(apart):+.5f} |"
        )


def _plot(studies, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        *(1, len(studies)),
        figsize=(5 * len(studies), 4),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for axes, (rate, cases) in zip(panels[0], studies.items(), strict=True):
        _plot_study(axes, rate, cases)
    panels[0][0].set_ylabel("AUC minus that of float32, each seed")
    panels[0][0].legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    print(f"\nwrote {path}")


def _plot_study(axes, rate, cases):
    float32 = cases[_Rows().name]
    shifts = {"bfloat16": 1.2}  # Apart from float16 at the same bytes.
    for rows in (rows for rows in _CASES if rows.name in cases):
        case = cases[rows.name]
        apart = _differences(case, float32)
        size = next(iter(case.values()))["row_bytes"]
        nearest = rows.rounding == "nearest"
        if nearest:  # Imitated in float32, 2 bytes larger for each weight.
            size -= 2 * _DIM
        axes.plot(
            [size + shifts.get(rows.dtype, 0)] * len(apart),
            apart,
            "x" if nearest else "o",
            color=_COLOURS[rows.dtype],
            alpha=0.7,
            label=rows.name,
        )
    # Linear near 0, where the differences of seeds are, logarithmic below.
    axes.set_yscale("symlog", linthresh=1e-3)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xlabel(f"bytes of a row, dim {_DIM}, Adagrad")
    mean = statistics.fmean(line["auc"] for line in float32.values())
    axes.set_title(f"learning rate {rate}: float32 {mean:.4f}", fontsize=10)
    axes.grid(alpha=0.3)
