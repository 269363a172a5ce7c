# SPDX-License-Identifier: Apache-2.0
"""The AUC of tables with rules specified by name, and with tuned rules.

A setting is trained for one epoch on one of three data sets: that of the Wide &
Deep example's generator, and Adult and Criteo if they are available. The search
for settings uses other seeds than the reported results.
"""

import dataclasses
import itertools
import pathlib
import statistics
import sys

import numpy as np
import tensorflow as tf
from harness import write_json
from tensorflow import keras

import tf_ext
from tf_ext.tables import sparse_optimizers

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# The example's modules import each other by name.
sys.path.insert(0, str(_ROOT / "examples"))

import wide_deep  # noqa: E402
import wide_deep_data  # noqa: E402
import wide_deep_generator  # noqa: E402

FOLDERS = {"adult": "adult", "criteo": "criteo_kaggle_20k"}
_HIDDEN_UNITS = (64, 32)
_DENSE_RATE = 0.001
_DEFAULT = "row_wise_adagrad"

# What is searched. Accumulators are c / batch^2, in squares of the gradient
# of an example of weight 1; 0 stands for one so small that it has no effect.
_RATES = {
    "adagrad": (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8),
    "row_wise_adagrad": (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8),
    "adam": (0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8),
    "rmsprop": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4),
}
_ACCUMULATORS = (0.0, 1.0)
# Beside a wide table, whose rate is searched too.
_DEEP_RATES = (0.02, 0.05, 0.1, 0.2)
_WIDE_RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
_SEARCH_SEEDS = (101,)
_FINALISTS = 4
_SEEDS = range(1, 6)
_FIT_SEEDS = range(1, 6)
# Has no effect, and its root is a normal float32.
_NO_ACCUMULATOR = 1e-30


@dataclasses.dataclass(frozen=True)
class Plan:
    """The measurements of a model on each data set.

    Attributes:
      model: string, "deep" or "wide & deep".
      dim: int, the deep table's dim.
      batch_sizes: tuple of int.
      searched: tuple of strings, the rules whose settings are searched.
      named: tuple of strings, other rules that are measured by name.
    """

    model: str
    dim: int
    batch_sizes: tuple[int, ...]
    searched: tuple[str, ...]
    named: tuple[str, ...] = ()


_WIDE = "wide & deep"
_SIZES = (256, 2048, 8192)
_ONE = ("row_wise_adagrad",)
_PLANS = (
    Plan("deep", 16, _SIZES, tuple(_RATES), ("ftrl", "lion", "sgd")),
    Plan(_WIDE, 16, _SIZES, _ONE),
    Plan("deep", 8, _SIZES, _ONE),
    Plan("deep", 32, _SIZES, _ONE),
)


class Data:
    """A data set in memory.

    Args:
      source: a GeneratedStream or a TextFiles.
      shuffled: bool, whether the order differs between epochs.
    """

    def __init__(self, source, shuffled):
        self.schema = source.schema
        self.boundaries = source.boundaries
        self.crosses = source.crosses
        self.features, self.labels = _whole(source.train())
        self.test_features, labels = _whole(source.test())
        self.test_labels = labels.numpy()
        self.size = len(self.labels)
        self._shuffled = shuffled

    def order(self, seed):
        """The order in which examples are trained on, `[size]`."""
        if self._shuffled:
            return np.random.default_rng(seed).permutation(self.size)
        return np.arange(self.size)

    def batches(self, batch_size, seed):
        """A dataset of one epoch in that order."""
        order = self.order(seed)
        dataset = tf.data.Dataset.from_tensor_slices(order).batch(batch_size)
        return dataset.map(lambda rows: (self.take(rows), self.label(rows)))

    def take(self, rows):
        """The features of examples."""
        return {k: tf.gather(v, rows) for k, v in self.features.items()}

    def label(self, rows):
        """The labels of examples."""
        return tf.gather(self.labels, rows)


def _whole(dataset):
    batches = list(dataset)
    features = {
        key: tf.concat([f[key] for f, _ in batches], 0) for key in batches[0][0]
    }
    return features, tf.concat([labels for _, labels in batches], 0)


def load(name, folder=None, examples=100_000):
    """The data set of a name: "generated", "adult" or "criteo"."""
    if name == "generated":
        stream = wide_deep_generator.GeneratedStream(examples, 4096, seed=1)
        return Data(stream, shuffled=False)
    path = pathlib.Path(folder, FOLDERS[name])
    text_format = wide_deep_data.find_format(path, name)
    return Data(
        wide_deep_data.TextFiles(path, text_format, 4096, seed=1), shuffled=True
    )


@dataclasses.dataclass(frozen=True)
class Setting:
    """Hyperparameters of a model's tables.

    Attributes:
      rule: string, the name of the rule.
      rate: float, the deep table's learning rate.
      accumulator: float or None, its initial accumulator value.
      wide_rate: float or None, the wide table's learning rate.
      wide_accumulator: float or None. None: as for the deep table.
    """

    rule: str
    rate: float
    accumulator: float | None = None
    wide_rate: float | None = None
    wide_accumulator: float | None = None


def by_name(rule, dim, wide):
    """The setting of tables whose rule is specified by name."""
    both = [sparse_optimizers.get(rule, dim)] + (
        [sparse_optimizers.get(rule, 1)] if wide else []
    )
    fields = ("learning_rate", "initial_accumulator_value")
    return Setting(
        rule, *[getattr(one, name, None) for one in both for name in fields]
    )


class Study:
    """A model that is trained repeatedly, each time from scratch.

    It is compiled once: initial rows are imported into the tables, so that
    initial accumulator values are not constants of the compiled step.

    Args:
      data: Data.
      rule: string, the name of the rule of the tables.
      dim: int, of the deep table.
      wide: bool, whether there is a wide table too.
    """

    def __init__(self, data, rule, dim, wide=False):
        self._data = data
        tables, self._layer, self._dense = _layers(
            data, dim, wide, optimizer=rule
        )
        self._tables = tables
        self._adam = keras.optimizers.Adam(_DENSE_RATE)
        self._optimizer = tf_ext.optimizers.Optimizer(self._adam)
        self._loss = keras.losses.BinaryCrossentropy(from_logits=True)
        # Makes all rows, which tells their signs, and the dense variables.
        _logits(self._layer, self._dense, data.features, training=True)
        self._signs = {n: t.export_rows()[0] for n, t in tables.items()}
        self._variables = self._layer.trainable_variables + [
            v for layer in self._dense for v in layer.trainable_variables
        ]
        self._optimizer.build(self._variables)
        self._starts = {}
        self._train = tf.function(self._epoch)
        self._predict = tf.function(
            lambda features: _logits(
                self._layer, self._dense, features, training=False
            )
        )

    def auc(self, setting, batch_size, seed):
        """The AUC on the test examples after training.

        Args:
          setting: Setting, of the study's rule.
          batch_size: int.
          seed: int, of initial weights and of the order of the examples.
        """
        self._reset(setting, seed)
        order = self._data.order(seed)
        self._train(tf.constant(order), tf.constant(batch_size))
        predictions = self._predict(self._data.test_features).numpy()
        return float(wide_deep.auc(self._data.test_labels, predictions))

    def _epoch(self, order, batch_size):
        def loss_of(rows):
            features = self._data.take(rows)
            logits = _logits(self._layer, self._dense, features, training=True)
            return self._loss(self._data.label(rows), logits)

        train_epoch(
            loss_of, order, batch_size, self._variables, self._optimizer
        )

    def _reset(self, setting, seed):
        for name, table in self._tables.items():
            rate, accumulator = setting.rate, setting.accumulator
            if name == "wide":
                rate = setting.wide_rate
                accumulator = setting.wide_accumulator or accumulator
            table.optimizer.learning_rate = rate
            fields = {"weights": self._start(table, seed)}
            for field, _, width in table.optimizer.slots(table.dim):
                if field == "accumulator":
                    fields[field] = np.full(
                        [len(self._signs[name]), width],
                        accumulator,
                        np.float32,
                    )
            table.clear()
            table.import_rows(self._signs[name], fields)
        reset_dense(self._dense, self._adam, seed)

    def _start(self, table, seed):
        """The initial weights of a table with a seed."""
        key = table.name, seed
        if key not in self._starts:
            other = tf_ext.SparseTable(
                table.name, table.dim, initializer=table.initializer, seed=seed
            )
            start = other.pull(self._signs[table.name])
            self._starts[key] = start.numpy()
        return self._starts[key]


def train_epoch(loss_of, order, batch_size, variables, optimizer):
    """Trains on batches in an order, within a tf.function.

    Args:
      loss_of: function of the rows of a batch, which returns its loss.
      order: tensor of integers, `[examples]`.
      batch_size: integer scalar.
      variables: list of the variables to train.
      optimizer: tf_ext.optimizers.Optimizer of them.
    """
    begin = tf.zeros([], batch_size.dtype)
    while begin < tf.size(order, batch_size.dtype):
        with tf.GradientTape() as tape:
            loss = loss_of(order[begin : begin + batch_size])
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
        begin += batch_size


def reset_dense(layers, adam, seed):
    """Gives the layers that are built weights of a seed, and Adam none yet."""
    for i, layer in enumerate(layers):
        if layer.built:
            glorot = keras.initializers.GlorotUniform(seed=1000 * seed + i)
            layer.kernel.assign(glorot(layer.kernel.shape))
            layer.bias.assign(tf.zeros_like(layer.bias))
    for variable in adam.variables:
        if "learning_rate" not in variable.name:
            variable.assign(tf.zeros_like(variable))


def _layers(data, dim, wide, **arguments):
    """Tables by name, the layer that reads them, and the dense layers."""
    columns, crosses = wide_deep.make_columns(data, None)
    tables = {"deep": tf_ext.SparseTable("deep", dim, **arguments)}
    uses = {tables["deep"]: columns}
    if wide:
        tables["wide"] = tf_ext.SparseTable(
            "wide", 1, initializer="zeros", **arguments
        )
        uses[tables["wide"]] = columns + crosses
    dense = [keras.layers.Dense(units, "relu") for units in _HIDDEN_UNITS]
    layer = tf_ext.layers.EmbeddingFeatures(uses)
    return tables, layer, [*dense, keras.layers.Dense(1)]


def _logits(layer, dense, features, training=None):
    outputs = layer(features, training=training)
    hidden = outputs["deep"]
    for one in dense:
        hidden = one(hidden)
    if "wide" in outputs:
        hidden = hidden + wide_deep.Sum()(outputs["wide"])
    return hidden[:, 0]


def fit(data, dim, wide, batch_size, seed, **arguments):
    """The AUC after `Model.fit` of a model with plain tables.

    Args:
      data: Data.
      dim: int, of the deep table.
      wide: bool, whether there is a wide table too.
      batch_size: int.
      seed: int.
      **arguments: of both tables.
    """
    keras.utils.set_random_seed(seed)
    inputs = wide_deep.make_inputs(data.schema)
    _, layer, dense = _layers(data, dim, wide, seed=seed, **arguments)
    model = tf_ext.Model(inputs, _logits(layer, dense, inputs))
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.Adam(_DENSE_RATE)),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    model.fit(data.batches(batch_size, seed), shuffle=False, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices(data.test_features)
    predictions = model.predict(dataset.batch(8192), verbose=0)
    return float(wide_deep.auc(data.test_labels, predictions))


def _grid(rule, batch_size, wide):
    """The settings of a rule to try."""
    accumulators = [None]
    if rule in ("adagrad", "row_wise_adagrad"):
        accumulators = [
            c / batch_size**2 or _NO_ACCUMULATOR for c in _ACCUMULATORS
        ]
    return [
        Setting(rule, *rest)
        for rest in itertools.product(
            _DEEP_RATES if wide else _RATES[rule],
            accumulators,
            _WIDE_RATES if wide else [None],
        )
    ]


def _mean(study, setting, batch_size, seeds):
    """The mean AUC over seeds, and its standard deviation over them."""
    aucs = [study.auc(setting, batch_size, seed) for seed in seeds]
    return statistics.mean(aucs), statistics.pstdev(aucs)


def _search(studies, batch_size, wide):
    """The best setting, with its mean AUC and spread."""
    found = []
    for rule, study in studies.items():
        for setting in _grid(rule, batch_size, wide):
            mean, _ = _mean(study, setting, batch_size, _SEARCH_SEEDS)
            found.append((mean, setting))
    found.sort(key=lambda one: -one[0])
    finals = [
        (*_mean(studies[s.rule], s, batch_size, _SEEDS), s)
        for _, s in found[:_FINALISTS]
    ]
    return max(finals, key=lambda one: one[0])


def _compare(data, name, plan, json_path):
    """Measures the settings of one model on one data set; returns lines.

    Args:
      data: Data.
      name: string, of the data set.
      plan: Plan.
      json_path: file that lines are appended to, or None.
    """
    wide = plan.model == _WIDE
    named = dict.fromkeys([_DEFAULT, "adagrad", *plan.searched, *plan.named])
    studies = {rule: Study(data, rule, plan.dim, wide) for rule in named}
    following = Setting(
        "adagrad", _DENSE_RATE, 0.1, _DENSE_RATE if wide else None
    )
    found = []
    for batch_size in plan.batch_sizes:
        settings = {
            f'"{rule}"': by_name(rule, plan.dim, wide) for rule in studies
        }
        settings["SparseAdagrad()"] = following
        aucs = {
            case: (*_mean(studies[s.rule], s, batch_size, _SEEDS), s)
            for case, s in settings.items()
        }
        searched = {rule: studies[rule] for rule in plan.searched}
        aucs["best found"] = _search(searched, batch_size, wide)
        default = by_name(_DEFAULT, plan.dim, wide)
        fits = [
            fit(data, plan.dim, wide, batch_size, seed) for seed in _FIT_SEEDS
        ]
        aucs["default, fit"] = (
            statistics.mean(fits),
            statistics.pstdev(fits),
            default,
        )
        lines = [
            {
                "benchmark": "defaults",
                "data": name,
                "model": plan.model,
                "dim": plan.dim,
                "batch": batch_size,
                "case": case,
                "auc": mean,
                "spread": spread,
                **dataclasses.asdict(setting),
            }
            for case, (mean, spread, setting) in aucs.items()
        ]
        write_json(lines, json_path)
        for line in lines:
            print(line, flush=True)
        found += lines
    return found


def defaults(args):
    """Searches for the best settings, and compares rules specified by name."""
    results = {plan: [] for plan in _PLANS}
    for name in ["generated", *(FOLDERS if args.data else [])]:
        data = load(name, args.data)
        for plan in _PLANS:
            results[plan] += _compare(data, name, plan, args.json)
    for plan, lines in results.items():
        print(f"\n### {plan.model}, dim {plan.dim}\n\n{_table(lines)}")


def _table(lines):
    """A table of docs/learning_rates.md."""
    rows = {}
    for line in lines:
        row = rows.setdefault((line["data"], line["batch"]), {})
        row[line["case"]] = line
    cases = list(dict.fromkeys(line["case"] for line in lines))
    cases.sort(key=lambda case: (case != f'"{_DEFAULT}"', case != "best found"))
    table = [["data", "batch", *cases, "best setting found"]]
    for (data, batch), row in sorted(rows.items()):
        best = row["best found"]
        said = [best["rule"], f"rate {best['rate']:g}"]
        if best["accumulator"] is not None:
            said.append(f"accumulator {best['accumulator']:.1g}")
        if best["wide_rate"] is not None:
            said.append(f"wide rate {best['wide_rate']:g}")
        table.append(
            [data, f"{batch:,}"]
            + [mean_and_spread(row[case]) for case in cases]
            + [", ".join(said)]
        )
    return markdown(table)


def mean_and_spread(line):
    """The AUC of a line, as in tables."""
    return f"{line['auc']:.4f} ±{line['spread']:.4f}"


def markdown(table):
    """A table in Markdown, of rows of cells; the first is the heading."""
    heading, *rows = table
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
