# SPDX-License-Identifier: Apache-2.0
"""The AUC of models that combine embeddings, by the rule of their table.

The models are those of docs/models.md, on the 39 columns of Criteo's examples,
in the order of time: each fold trains on the examples before its own. The last
tenth of the former is the validation part, on which training is stopped. A fold
is measured once for each setting and seed, after the epoch of the highest AUC
on the validation part.
"""

import collections
import dataclasses
import pathlib
import statistics

import default_rates
import numpy as np
import tensorflow as tf
from harness import write_json
from tensorflow import keras

import tf_ext

import wide_deep  # isort: skip
import wide_deep_data  # isort: skip

# The first is logistic regression.
_MODELS = ("linear", "deep", "wide & deep", "dcn", "dlrm", "deepfm", "fm")
_DEFAULT = "row_wise_adagrad"
_RULES = (_DEFAULT, "adagrad", "adam")
_RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
_BATCH_SIZES = (256, 2048)
_DIM = 16
_HIDDEN_UNITS = (64, 32)
_CROSS_LAYERS = 2
_DENSE_RATE = 0.001
# Of 20,000 examples, folds are 2,000 each, and the first trains on 10,000.
_FOLDS = 5
_PARTS = 10
_VALIDATION_FRACTION = 0.1
# The first one without a better AUC on the validation part is the last, once
# the model has begun to learn. Before, its AUC may be anything, and fall.
_MAX_EPOCHS = 12
_LEARNED = 0.6
# Settings are searched with another seed, on the validation parts of two folds.
_SEARCH_SEED = 101
_SEARCH_FOLDS = (1, 3)
# What `regularization` tries, by the argument of Network.
_REGULARIZERS = {
    "l2": (0.01, 0.03, 0.1, 0.3, 1.0),
    "activity_l2": (0.001, 0.003, 0.01, 0.03, 0.1),
    "dropout": (0.03, 0.1, 0.2, 0.4),
}
_ADMITTED = 10
_UNKNOWN_MODELS = ("deep", "deepfm")
_UNKNOWN = {
    "initial": {},
    "zeros": {"unknown": "zeros"},
    "shared": {"unknown": "shared"},
    "shared, 100 buckets": {"unknown": "shared", "unknown_buckets": 100},
    "shared, 1,000 buckets": {"unknown": "shared", "unknown_buckets": 1000},
}
# Of DLRM's dot products, which keeps them small while rows are new.
_DOT_SCALE = 1 / 128


@dataclasses.dataclass(frozen=True)
class Part:
    """Consecutive examples.

    Attributes:
      signs: int64 `[n, columns]`, those of the categorical columns first.
      numbers: float32 `[n, numeric columns]`, standardized logarithms.
      labels: float32 `[n]`.
    """

    signs: np.ndarray
    numbers: np.ndarray
    labels: np.ndarray

    def __getitem__(self, rows):
        return Part(self.signs[rows], self.numbers[rows], self.labels[rows])


class Criteo:
    """Criteo's examples in the order of time.

    Args:
      folder: string, with a folder of them.
    """

    def __init__(self, folder):
        path = pathlib.Path(folder, default_rates.FOLDERS["criteo"])
        columns, self._labels = wide_deep_data.read_all(path, "criteo")
        self._numbers = {
            k: v for k, v in columns.items() if v.dtype == np.float32
        }
        self._codes = [
            np.unique(v, return_inverse=True)[1]
            for k, v in columns.items()
            if k not in self._numbers
        ]

    def fold(self, number):
        """The training, validation and test part of a fold."""
        size = len(self._labels) // _PARTS
        begin = size * (_PARTS - _FOLDS + number)
        train = begin - int(begin * _VALIDATION_FRACTION)
        codes, scaled = list(self._codes), []
        for values in self._numbers.values():
            known = values[:train]
            bounds = wide_deep_data.quantile_boundaries(known)
            codes.append(np.searchsorted(bounds, values, side="right"))
            logs = np.log1p(np.where(np.isfinite(values), values, 0).clip(0))
            scaled.append((logs - logs[:train].mean()) / logs[:train].std())
        every = Part(
            np.stack([(i << 40) + c for i, c in enumerate(codes)], 1),
            np.stack(scaled, 1).astype(np.float32),
            self._labels,
        )
        return every[:train], every[train:begin], every[begin:][:size]


class Network(tf_ext.Model):
    """A model of docs/models.md; its outputs are logits.

    Args:
      model: string, one of `_MODELS`.
      columns: int, their number.
      numeric: int, how many of them are numbers.
      seed: int, of the tables.
      activity_l2: float, by which the loss of an example grows with the sum of
        the squares of its embeddings.
      dropout: float, the probability with which the embedding of a column is
        zero in training.
      **arguments: of the table of embeddings.
    """

    def __init__(
        self,
        model,
        columns,
        numeric,
        seed,
        activity_l2=0.0,
        dropout=0.0,
        **arguments,
    ):
        super().__init__()
        self._kind, self._numeric = model, numeric
        self._activity_l2 = activity_l2
        self.dropout = keras.layers.Dropout(
            dropout, noise_shape=(None, None, 1), seed=seed
        )
        sequence = tf_ext.feature_column.sequence_category_column(
            tf_ext.feature_column.category_column("signs", hashing="identity"),
            max_length=columns,
        )
        if model == "linear":
            arguments = {"initializer": "zeros", **arguments}
        self.table = tf_ext.SparseTable(
            "embeddings",
            1 if model == "linear" else _DIM,
            seed=seed,
            **arguments,
        )
        tables = {self.table: [sequence]}
        linear = {
            "wide & deep": {"initializer": "zeros"},
            "deepfm": {"optimizer": "ftrl"},
            "fm": {"optimizer": "ftrl"},
        }
        if model in linear:
            table = tf_ext.SparseTable("linear", 1, seed=seed, **linear[model])
            tables[table] = [sequence]
        self.embed = tf_ext.layers.EmbeddingFeatures(tables, concatenate=False)
        self.dense = [keras.layers.Dense(u, "relu") for u in _HIDDEN_UNITS]
        self.bottom = [keras.layers.Dense(u, "relu") for u in (32, _DIM)]
        self.crosses = [
            keras.layers.Dense(columns * _DIM) for _ in range(_CROSS_LAYERS)
        ]
        self.last = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        signs = inputs["signs"]
        if self._kind == "dlrm":
            # Numbers go through a perceptron instead.
            signs = signs[:, : signs.shape[1] - self._numeric]
        embedded = self.embed({"signs": signs}, training=training)
        vectors = embedded["embeddings"]["signs"]
        if self._activity_l2:
            squares = tf.reduce_sum(vectors**2, (1, 2))
            self.add_loss(self._activity_l2 * tf.reduce_mean(squares))
        vectors = self.dropout(vectors, training=training)
        if "linear" in embedded:
            linear = embedded["linear"]["signs"][..., 0]
        if self._kind == "linear":
            sums = tf.reduce_sum(vectors, 1)
            return sums[:, 0] + self.last(tf.zeros_like(sums))[:, 0]
        joined = tf.reshape(vectors, [-1, vectors.shape[1] * _DIM])
        if self._kind == "dlrm":
            bottom = _perceptron(self.bottom, inputs["numbers"])
            every = tf.concat([vectors, bottom[:, tf.newaxis]], 1)
            dots = tf.matmul(every, every, transpose_b=True)
            count = every.shape[1]
            places = [i * count + j for i in range(count) for j in range(i)]
            dots = tf.gather(tf.reshape(dots, [-1, count**2]), places, axis=1)
            joined = tf.concat([bottom, dots * _DOT_SCALE], 1)
        if self._kind in ("deepfm", "fm"):
            total = tf.reduce_sum(vectors, 1)
            pairs = tf.reduce_sum(total**2, 1) - tf.reduce_sum(joined**2, 1)
            pairs /= vectors.shape[1] * (vectors.shape[1] - 1)
        if self._kind == "fm":
            bias = self.last(tf.zeros_like(pairs)[:, tf.newaxis])[:, 0]
            return bias + tf.reduce_sum(linear, 1) + pairs
        hidden = _perceptron(self.dense, joined)
        if self._kind == "dcn":
            crossed = joined
            for layer in self.crosses:
                crossed = joined * layer(crossed) + crossed
            hidden = tf.concat([crossed, hidden], 1)
        elif self._kind == "deepfm":
            hidden = tf.concat([linear, pairs[:, tf.newaxis], hidden], 1)
        logits = self.last(hidden)[:, 0]
        if self._kind == "wide & deep":
            logits += tf.reduce_sum(linear, 1)
        return logits


def _perceptron(layers, hidden):
    for layer in layers:
        hidden = layer(hidden)
    return hidden


class Study:
    """A model that is compiled once, and trained from scratch repeatedly.

    Args:
      model: string, one of `_MODELS`.
      example: Part, of any examples.
      seed: int, of initial weights and of the order of the examples.
      **arguments: of the table of embeddings.
    """

    def __init__(self, model, example, seed, **arguments):
        self._seed = seed
        self.rows = 0  # of the table of embeddings, when it was best
        columns, numeric = example.signs.shape[1], example.numbers.shape[1]
        self._network = Network(model, columns, numeric, seed, **arguments)
        self.rule = self._network.table.optimizer
        self.own_rate = self.rule.learning_rate
        self._network(_features(example[:2]))
        self._adam = keras.optimizers.Adam(_DENSE_RATE)
        self._optimizer = tf_ext.optimizers.Optimizer(self._adam)
        self._optimizer.build(self._network.trainable_variables)
        self._loss = keras.losses.BinaryCrossentropy(from_logits=True)
        signature = (
            tf.TensorSpec([None, columns], tf.int64),
            tf.TensorSpec([None, numeric], tf.float32),
        )
        more = [tf.TensorSpec([None], of) for of in (tf.float32, tf.int64)]
        self._train = tf.function(
            self._epoch, (*signature, *more, tf.TensorSpec([], tf.int64))
        )
        self._predict = tf.function(
            lambda signs, numbers: self._network(
                {"signs": signs, "numbers": numbers}, training=False
            ),
            signature,
        )

    def run(self, fold, rate, batch_size):
        """Trains, and measures after the best epoch on the validation part.

        Args:
          fold: triple of Parts.
          rate: float, of the table of embeddings.
          batch_size: int.

        Returns:
          A pair: the AUC on the validation and on the test part.
        """
        train, validation, test = fold
        self._reset(rate)
        rng = np.random.default_rng(self._seed)
        best = -1.0
        for _ in range(_MAX_EPOCHS):
            order = rng.permutation(len(train.labels))
            self._train(
                train.signs, train.numbers, train.labels, order, batch_size
            )
            auc = self._auc(validation)
            if auc > best:
                best = auc
                self.rows = self._network.table.size()
                predictions = self._predict(test.signs, test.numbers).numpy()
            elif best > _LEARNED:
                break
        return best, float(wide_deep.auc(test.labels, predictions))

    def _auc(self, part):
        predictions = self._predict(part.signs, part.numbers).numpy()
        if not np.isfinite(predictions).all():
            return 0.0
        return float(wide_deep.auc(part.labels, predictions))

    def _epoch(self, signs, numbers, labels, order, batch_size):
        def loss_of(rows):
            features = {
                "signs": tf.gather(signs, rows),
                "numbers": tf.gather(numbers, rows),
            }
            logits = self._network(features, training=True)
            losses = [self._loss(tf.gather(labels, rows), logits)]
            return tf.add_n(losses + self._network.losses)

        default_rates.train_epoch(
            loss_of,
            order,
            batch_size,
            self._network.trainable_variables,
            self._optimizer,
        )

    def _reset(self, rate):
        self.rule.learning_rate = rate
        for table in self._network.embed.tables:
            table.clear()
        network = self._network
        layers = [*network.dense, *network.bottom, *network.crosses]
        default_rates.reset_dense(
            [*layers, network.last], self._adam, self._seed
        )


def _features(part):
    return {
        "signs": tf.constant(part.signs),
        "numbers": tf.constant(part.numbers),
    }


def ctr_models(args):
    """Compares the default with the best setting of a search; prints tables."""
    data = Criteo(args.data)
    folds = [data.fold(number) for number in range(_FOLDS)]
    results = []
    for model in _MODELS:
        lines = _compare(model, folds, args.seeds)
        write_json(lines, args.json)
        for line in lines:
            print(line, flush=True)
        results += lines
    print(_table(results))


def regularization(args):
    """Compares ways to regularize rows; prints the table of docs/rows.md.

    The value of each that is the best on the validation parts of two folds is
    measured in the folds, beside none, all with the default rule.
    """
    data = Criteo(args.data)
    folds = [data.fold(number) for number in range(_FOLDS)]
    batch = _BATCH_SIZES[0]
    rows = [["model", "none", *_REGULARIZERS]]
    for model in _MODELS:
        cases = [{}]
        for name, values in _REGULARIZERS.items():
            aucs = {
                value: statistics.mean(
                    _regularized(
                        {name: value},
                        *(model, folds, _SEARCH_SEED, batch),
                        searched=_SEARCH_FOLDS,
                    )
                )
                for value in values
            }
            cases.append({name: max(aucs, key=aucs.get)})
        rows.append([model])
        for case in cases:
            aucs = [
                _regularized(case, model, folds, seed, batch)
                for seed in args.seeds
            ]
            label = "".join(f"{k}={v:g}" for k, v in case.items()) or "none"
            line = _line(model, batch, label, _DEFAULT, None, aucs)
            write_json([line], args.json)
            print(line, flush=True)
            [value] = [f" ({v:g})" for v in case.values()] or [""]
            rows[-1].append(default_rates.mean_and_spread(line) + value)
    print(default_rates.markdown(rows))


def unknown(args):
    """Compares what ids without a row read; prints the tables of docs/rows.md.

    Ids are counted over epochs, and get a row in the batch in which they have
    occurred `_ADMITTED` times.
    """
    data = Criteo(args.data)
    folds = [data.fold(number) for number in range(_FOLDS)]
    batch = _BATCH_SIZES[0]
    for model in _UNKNOWN_MODELS:
        rows = [["unknown", "AUC", "rows"]]
        for case, arguments in _UNKNOWN.items():
            aucs, counts = [], []
            for seed in args.seeds:
                study = Study(
                    model,
                    folds[0][0],
                    seed,
                    admission=tf_ext.admission.Count(_ADMITTED),
                    **arguments,
                )
                aucs.append([])
                for fold in folds:
                    auc = study.run(fold, study.own_rate, batch)[1]
                    aucs[-1].append(auc)
                    counts.append(study.rows)
            line = _line(model, batch, case, _DEFAULT, None, aucs)
            line["rows"] = statistics.mean(counts)
            write_json([line], args.json)
            print(line, flush=True)
            auc = default_rates.mean_and_spread(line)
            rows.append([case, auc, f"{line['rows']:.0f}"])
        print(f"\n{model}\n{default_rates.markdown(rows)}", flush=True)


def _regularized(case, model, folds, seed, batch, searched=None):
    """AUCs of test parts, or of the validation parts of searched folds."""
    study = Study(model, folds[0][0], seed, **case)
    if searched is None:
        return [study.run(fold, study.own_rate, batch)[1] for fold in folds]
    return [study.run(folds[n], study.own_rate, batch)[0] for n in searched]


def _compare(model, folds, seeds):
    """Lines of the search, and of the default and the best setting found."""
    example = folds[0][0]
    lines = []
    for rule in _RULES:
        study = Study(model, example, _SEARCH_SEED, optimizer=rule)
        for batch in _BATCH_SIZES:
            for rate in _RATES:
                aucs = [
                    study.run(folds[number], rate, batch)[0]
                    for number in _SEARCH_FOLDS
                ]
                lines.append(
                    _line(model, batch, "searched", rule, rate, [aucs])
                )
    for batch in _BATCH_SIZES:
        found = max(
            (line for line in lines if line["batch"] == batch),
            key=lambda line: line["auc"],
        )
        for case, rule in (("default", _DEFAULT), ("best", found["rule"])):
            aucs = []
            for seed in seeds:
                study = Study(model, example, seed, optimizer=rule)
                rate = study.own_rate if case == "default" else found["rate"]
                aucs.append([study.run(f, rate, batch)[1] for f in folds])
            lines.append(_line(model, batch, case, rule, rate, aucs))
    return lines


def _line(model, batch, case, rule, rate, aucs):
    """A result, of AUCs `[seeds, folds]`; the spread is that over seeds."""
    means = [statistics.mean(one) for one in aucs]
    return {
        "benchmark": "ctr_models",
        "model": model,
        "batch": batch,
        "case": case,
        "rule": rule,
        "rate": rate,
        "auc": statistics.mean(means),
        "spread": statistics.pstdev(means),
    }


def _table(lines):
    """The table of docs/learning_rates.md."""
    rows = collections.defaultdict(dict)
    for line in lines:
        rows[line["model"], line["batch"]][line["case"]] = line
    table = [["model", "batch", "default", "best", "gap", "best setting"]]
    for (model, batch), row in rows.items():
        default, best = row["default"], row["best"]
        table.append(
            [model, f"{batch:,}"]
            + [default_rates.mean_and_spread(x) for x in (default, best)]
            + [f"{best['auc'] - default['auc']:.4f}"]
            + [f"{best['rule']}, rate {best['rate']:g}"]
        )
    return default_rates.markdown(table)
