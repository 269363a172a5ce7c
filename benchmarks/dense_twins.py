# SPDX-License-Identifier: Apache-2.0
"""Models with a table beside the same models with a matrix that Keras trains.

Three tasks, on data that are drawn here: ratings by factorized matrices,
clicks in contexts by a perceptron, and items of users by two towers. Both
models of a pair have the same initial weights, batches and dense layers. Adam
of Keras decays all rows of its matrix in each step, and moves them by their
moments: SparseAdam(absent="decay") with `l2` is to do the same.
"""

import dataclasses
import statistics
import typing

import default_rates
import numpy as np
import tensorflow as tf
from harness import write_json
from tensorflow import keras

import tf_ext

import wide_deep  # isort: skip

_BATCH = 512
_DENSE_RATE = 0.001
_MAX_EPOCHS = 60
_PATIENCE = 3
_RATES = (0.001, 0.01)
_SEARCH_SEED = 101
_NEAREST = 20
_KERAS = "Keras"
# The rules of tables; None: the default, with its own rate.
_RULES = {"decay": "decay", "lazy": "keep", "default": None}


@dataclasses.dataclass(frozen=True)
class Task:
    """Examples, and how they are learned.

    Attributes:
      parts: three pairs of ids `[n, columns]`, which count from 0 through all
        columns, and labels `[n]`: to train, to stop, and to test.
      dim: int, of rows.
      units: tuple of int, of the dense layers.
      loss: function of rows `[b, columns, dim]`, ids, labels and the dense
        layers.
      measure: function of a function that returns the rows of ids, of the dense
        layers and of a part.
      better: 1 if larger measures are better, or -1.
      l2: float, the best of some on the validation part.
    """

    parts: typing.Any
    dim: int
    units: tuple[int, ...]
    loss: typing.Any
    measure: typing.Any
    better: int
    l2: float

    @property
    def rows(self):
        return 1 + max(int(ids.max()) for ids, _ in self.parts)


def _split(rng, ids, labels):
    order = rng.permutation(len(labels))
    ids, labels = ids[order], labels[order].astype(np.float32)
    ends = [int(len(labels) * part) for part in (0.7, 0.8)]
    return [*zip(np.split(ids, ends), np.split(labels, ends), strict=True)]


def _zipf(rng, size, count):
    weights = 1 / (np.arange(size) + 10.0)
    return rng.choice(size, count, p=weights / weights.sum())


def ratings():
    """40,000 ratings of 500 items by 1,000 users; RMSE."""
    rng = np.random.default_rng(1)
    users, items = _zipf(rng, 1000, 40_000), _zipf(rng, 500, 40_000)
    factors = rng.normal(0, 0.5, [1500, 5])
    factors[:, 4] *= 0.8
    labels = np.sum(factors[users, :4] * factors[1000 + items, :4], 1)
    labels += factors[users, 4] + factors[1000 + items, 4]
    labels += rng.normal(0, 0.7, len(labels))

    def predict(rows, dense):
        user, item = rows[:, 0], rows[:, 1]
        found = tf.reduce_sum(user[:, 1:] * item[:, 1:], 1)
        # The dense layer is only a bias, of inputs that are 0.
        return found + user[:, 0] + item[:, 0] + dense[0](user[:, :1] * 0)[:, 0]

    def loss(rows, _, labels, dense):
        return tf.reduce_mean((predict(rows, dense) - labels) ** 2)

    def measure(pull, dense, part):
        ids, labels = part
        errors = predict(pull(ids), dense).numpy() - labels
        return float(np.sqrt(np.mean(errors**2)))

    parts = _split(rng, np.stack([users, 1000 + items], 1), labels)
    return Task(parts, 9, (1,), loss, measure, -1, 0.3)


def contexts():
    """40,000 clicks of users on items in four contexts; AUC."""
    rng = np.random.default_rng(2)
    sizes = (3000, 1000, 24, 6, 100, 400)
    ids = np.stack([_zipf(rng, size, 40_000) for size in sizes], 1)
    logits = np.full(len(ids), -1.2)
    for column, size in enumerate(sizes):
        logits += rng.normal(0, 0.6, size)[ids[:, column]]
    factors = [rng.normal(0, 0.7, [size, 3]) for size in sizes]
    for one, other in ((0, 1), (1, 2), (1, 4)):
        product = factors[one][ids[:, one]] * factors[other][ids[:, other]]
        logits += product.sum(1)
    labels = rng.random(len(ids)) < 1 / (1 + np.exp(-logits))
    ids += np.cumsum([0, *sizes[:-1]])
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def predict(rows, dense):
        hidden = tf.reshape(rows, [-1, len(sizes) * 16])
        for layer in dense:
            hidden = layer(hidden)
        return hidden[:, 0]

    def loss(rows, _, labels, dense):
        return entropy(labels, predict(rows, dense))

    def measure(pull, dense, part):
        ids, labels = part
        scores = predict(pull(ids), dense).numpy()
        return float(wide_deep.auc(labels, scores))

    parts = _split(rng, ids, labels)
    return Task(parts, 16, (64, 32, 1), loss, measure, 1, 0.3)


def two_towers():
    """40,000 items of 2,000 users; recall among the 20 nearest of 1,000."""
    rng = np.random.default_rng(3)
    users = _zipf(rng, 2000, 40_000)
    tastes, factors = rng.normal(size=[2000, 4]), rng.normal(size=[1000, 4])
    popularity = -0.7 * np.log(np.arange(1000) + 10.0)
    logits = 1.5 * tastes @ factors.T + popularity
    noise = rng.gumbel(size=[len(users), 1000])
    items = np.argmax(logits[users] + noise, 1)
    parts = _split(rng, np.stack([users, 2000 + items], 1), items)
    counts = np.bincount(parts[0][0][:, 1] - 2000, minlength=1000) + 1.0
    frequency = tf.constant(np.log(counts / counts.sum()), tf.float32)

    def loss(rows, ids, _, dense):
        towers = [
            tf.math.l2_normalize(layer(rows[:, i]), 1)
            for i, layer in enumerate(dense)
        ]
        scores = 10 * tf.matmul(*towers, transpose_b=True)
        scores -= tf.gather(frequency, ids[:, 1] - 2000)
        again = ids[:, 1] == ids[:, 1, tf.newaxis]
        again &= ~tf.eye(tf.shape(ids)[0], dtype=tf.bool)
        scores = tf.where(again, -1e9, scores)
        labels = tf.range(tf.shape(ids)[0])
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
        )

    def measure(pull, dense, part):
        ids, labels = part
        user, item = (
            tf.math.l2_normalize(layer(pull(wanted)), 1)
            for layer, wanted in zip(
                dense, (ids[:, 0], np.arange(2000, 3000)), strict=True
            )
        )
        scores = tf.matmul(user, item, transpose_b=True)
        found = tf.math.in_top_k(labels.astype(np.int32), scores, _NEAREST)
        return float(tf.reduce_mean(tf.cast(found, tf.float32)))

    return Task(parts, 16, (16, 16), loss, measure, 1, 0.1)


TASKS = {"ratings": ratings, "contexts": contexts, "two towers": two_towers}


class Study:
    """A model that is compiled once, and trained from scratch repeatedly.

    Args:
      task: Task.
      kind: string, `_KERAS` or one of `_RULES`.
      l2: float, of rows.
    """

    def __init__(self, task, kind, l2):
        self._task = task
        rule = "row_wise_adagrad"
        if kind != _KERAS and _RULES[kind]:
            rule = tf_ext.optimizers.SparseAdam(0.001, absent=_RULES[kind])
        self._table = tf_ext.SparseTable("twin", task.dim, rule, l2=l2)
        columns = task.parts[0][0].shape[1]
        sequence = tf_ext.feature_column.sequence_category_column(
            tf_ext.feature_column.category_column("ids", hashing="identity"),
            max_length=columns,
        )
        self._layer = tf_ext.layers.EmbeddingFeatures(
            {self._table: [sequence]}, concatenate=False
        )
        self._dense = [
            keras.layers.Dense(u, "relu" if len(task.units) > 2 else None)
            for u in task.units[:-1]
        ] + [keras.layers.Dense(task.units[-1])]
        self._matrix = None
        if kind == _KERAS:
            self._matrix = tf.Variable(tf.zeros([task.rows, task.dim]))
            self._adam_of_rows = keras.optimizers.Adam(weight_decay=l2 or None)
            self._adam_of_rows.build([self._matrix])
        task.loss(self._rows(task.parts[0][0][:2]), *self._some())
        self._adam = keras.optimizers.Adam(_DENSE_RATE)
        self._optimizer = tf_ext.optimizers.Optimizer(self._adam)
        self._variables = [
            v for layer in self._dense for v in layer.trainable_variables
        ]
        if self._matrix is None:
            self._variables += self._layer.trainable_variables
        self._optimizer.build(self._variables)
        self._first = tf.Variable(0, dtype=tf.int64)
        self._epoch = tf.function(self._train)

    def run(self, rate, seed):
        """What is measured after the best epoch: validation and test.

        Args:
          rate: float, of rows; None: the rule's own.
          seed: int.
        """
        self._reset(rate, seed)
        train, validation, test = self._task.parts
        rng = np.random.default_rng(seed)
        best, found, worse = -np.inf, np.nan, 0
        for _ in range(_MAX_EPOCHS):
            self._epoch(*train, rng.permutation(len(train[1])))
            measured = self._task.measure(self._pull, self._dense, validation)
            worse += 1
            if measured * self._task.better > best:
                best, worse = measured * self._task.better, 0
                found = self._task.measure(self._pull, self._dense, test)
            if worse == _PATIENCE:
                break
        return best * self._task.better, found

    def _some(self):
        ids, labels = self._task.parts[0]
        return ids[:2], labels[:2], self._dense

    def _pull(self, ids):
        if self._matrix is None:
            return self._table.pull(ids + int(self._first))
        return tf.gather(self._matrix, ids)

    def _rows(self, ids):
        if self._matrix is not None:
            return tf.gather(self._matrix, ids)
        ids = tf.convert_to_tensor(ids) + getattr(self, "_first", 0)
        return self._layer({"ids": ids}, training=True)["twin"]["ids"]

    def _train(self, ids, labels, order):
        begin = 0
        while begin < tf.size(order):
            rows = order[begin : begin + _BATCH]
            its, wanted = tf.gather(ids, rows), tf.gather(labels, rows)
            with tf.GradientTape() as tape:
                loss = self._task.loss(
                    self._rows(its), its, wanted, self._dense
                )
            variables = list(self._variables)
            if self._matrix is not None:
                variables.append(self._matrix)
            gradients = tape.gradient(loss, variables)
            if self._matrix is not None:
                gradient = tf.convert_to_tensor(gradients.pop())
                self._adam_of_rows.apply_gradients([(gradient, self._matrix)])
            self._optimizer.apply_gradients(zip(gradients, self._variables))
            begin += _BATCH

    def _reset(self, rate, seed):
        self._table.clear()
        # Initial rows depend on the ids.
        self._first.assign(seed * self._task.rows)
        if self._matrix is not None:
            ids = np.arange(self._task.rows) + seed * self._task.rows
            self._matrix.assign(self._table.pull(ids))
            self._adam_of_rows.learning_rate.assign(rate)
            for variable in self._adam_of_rows.variables:
                if "learning_rate" not in variable.path:
                    variable.assign(tf.zeros_like(variable))
        elif rate is not None:
            self._table.optimizer.learning_rate = rate
        self._optimizer.iterations.assign(0)
        default_rates.reset_dense(self._dense, self._adam, seed)


def twins(args):
    """Compares tables with matrices, with and without l2; prints a table."""
    table = [["task", "l2", "rate", "Keras", *_RULES]]
    for name, make in TASKS.items():
        task = make()
        for l2 in (0.0, task.l2):
            lines = _compare(name, task, l2, args.seeds)
            write_json(lines, args.json)
            for rate in _RATES:
                table.append([name, f"{l2:g}", f"{rate:g}"])
                for kind in (_KERAS, *_RULES):
                    [found] = [
                        default_rates.mean_and_spread(line)
                        for line in lines
                        if line["kind"] == kind and line["rate"] in (rate, None)
                    ]
                    table[-1].append(found)
    print(default_rates.markdown(table))


def _compare(name, task, l2, seeds):
    lines = []
    for kind in (_KERAS, *_RULES):
        study = Study(task, kind, l2)
        for rate in (None,) if kind == "default" else _RATES:
            results = [study.run(rate, seed)[1] for seed in seeds]
            lines.append(
                {
                    "benchmark": "twins",
                    "task": name,
                    "kind": kind,
                    "l2": l2,
                    "rate": rate,
                    "auc": statistics.mean(results),
                    "spread": statistics.pstdev(results),
                    "values": results,
                }
            )
            print(lines[-1], flush=True)
    return lines
