# SPDX-License-Identifier: Apache-2.0
"""Steps of synchronous workers whose ids are sent a step ahead."""

import graphlib
from unittest import mock

import numpy as np
import tensorflow as tf
from clusters.case_workers import export
from models.model_building import id_column, number

import tf_ext
from cases.multi_worker_step_cases import DIM, optimizer, sum_table
from tf_ext._keras import keras
from tf_ext.distribute.collectives import collectives_of
from tf_ext.regimes import SignExchange

_BATCH, _STEPS = 64, 5


def _table(name, **options):
    rule = tf_ext.optimizers.SparseAdagrad(0.1)
    return sum_table(name, rule, **options)


def _fit(worker, make, data=None, columns=None, **options):
    """Trains on global batches; variables, and the rows of this worker.

    Args:
      worker: Worker.
      make: function to a model.
      data: `(features, labels)`; None for `_data()`.
      columns: the columns to hash beforehand, a function of the model, or None.
      **options: of `fit`.
    """
    with worker.strategy.scope():
        model = make()
        model.compile(
            optimizer(0.1),
            "binary_crossentropy",
            metrics=[keras.metrics.BinaryAccuracy(name="accuracy")],
        )
    dataset = tf.data.Dataset.from_tensor_slices(data or _data())
    dataset = dataset.batch(_BATCH)
    if columns is not None:
        dataset = tf_ext.data.hash_columns(dataset, columns(model))
    history = model.fit(dataset, verbose=0, **options).history
    return {
        "losses": history["loss"],
        "variables": model.get_weights(),
        "tables": {table.name: export(table) for table in model.tables},
    }


def _data(ids=(40,) * _STEPS):
    """Ids, of batches among which there are so many, and labels."""
    rng = np.random.default_rng(0)
    features = {
        "user": np.concatenate([rng.integers(0, n, _BATCH) for n in ids]),
        "items": np.concatenate([rng.integers(0, n, (_BATCH, 9)) for n in ids]),
    }
    labels = (features["user"] % 3 == 0).astype(np.float32)[:, np.newaxis]
    return features, labels


def _inputs():
    return {
        "user": keras.Input((), dtype="int64", name="user"),
        "items": keras.Input((9,), dtype="int64", name="items"),
    }


def _columns():
    return [id_column("user"), id_column("items", "mean")]


def _model(ids, *outputs):
    ones = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")
    joined = outputs[0]
    if len(outputs) > 1:
        joined = keras.layers.Concatenate()(list(outputs))
    return tf_ext.Model(ids, ones(joined))


def _one_layer():
    ids = _inputs()
    layer = tf_ext.layers.EmbeddingFeatures(_columns(), _table("one"))
    return _model(ids, layer(ids))


def several_epochs(worker):
    return _fit(worker, _one_layer, epochs=3)


def epochs_of_some_steps(worker):
    """The data are longer than an epoch, and begin again within one."""
    return _fit(worker, _one_layer, epochs=4, steps_per_epoch=2)


def ids_that_increase(worker):
    """More than fit what the steps before needed."""
    ids = (2, 2, 100_000, 2, 2, 100_000)
    return _fit(worker, _one_layer, _data(ids), epochs=2)


def hashed_beforehand(worker):
    return _fit(worker, _one_layer, columns=lambda model: _columns())


def several_layers(worker):
    """One of them is called twice."""

    def make():
        ids = _inputs()
        user, items = _columns()
        one, two, twice = (
            tf_ext.layers.EmbeddingFeatures(columns, _table(name))
            for name, columns in (
                ("one", [user, items]),
                ("two", [items]),
                ("twice", [user]),
            )
        )
        other = {"user": ids["items"]}
        return _model(ids, one(ids), two(ids), twice(ids), twice(other))

    return _fit(worker, make)


def several_tables(worker):
    """Two that read the same columns, and one that reads one of these."""

    def make():
        ids = _inputs()
        user, items = _columns()
        tables = {
            _table("both"): [user, items],
            _table("too"): [user, items],
            _table("items"): [items],
        }
        outputs = tf_ext.layers.EmbeddingFeatures(tables)(ids)
        return _model(ids, *outputs.values())

    return _fit(worker, make)


def computed_ids(worker):
    """No input of the model, so they are not known before the step."""

    def make():
        ids = _inputs()
        halves = {k: ids[k] // 2 for k in ids}
        layer = tf_ext.layers.EmbeddingFeatures(_columns(), _table("one"))
        return _model(ids, layer(halves))

    return _fit(worker, make)


def frozen_rows(worker):
    """No gradients of tables take signs along."""

    def make():
        ids = _inputs()
        layer = tf_ext.layers.EmbeddingFeatures(
            _columns(), _table("one"), trainable=False
        )
        return _model(ids, layer(ids))

    return _fit(worker, make)


class _Evaluate(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        data = tf.data.Dataset.from_tensor_slices(_data())
        self.model.evaluate(data.batch(_BATCH), verbose=0)


def evaluated_between_steps(worker):
    result = _fit(worker, _one_layer, epochs=2, callbacks=[_Evaluate()])
    # Keras's are those of the last evaluation.
    return {**result, "losses": []}


AS_ALONE = [
    "several_epochs",
    "epochs_of_some_steps",
    "ids_that_increase",
    "hashed_beforehand",
    "several_layers",
    "several_tables",
    "computed_ids",
    "frozen_rows",
    "evaluated_between_steps",
]


def exchanges_of_signs(worker):
    """Of each graph of training: those made, and those sent on their own."""
    graphs = {}

    def note(index):
        graph = tf.compat.v1.get_default_graph()
        # Keras builds a model in a graph that never runs.
        if not graph.name.startswith("scratch"):
            graphs.setdefault(id(graph), [0, 0])[index] += 1

    init, send = SignExchange.__init__, SignExchange.send

    def making(self, *args):
        note(0)
        init(self, *args)

    def sending(self):
        note(1)
        send(self)

    found = {}
    with mock.patch.multiple(SignExchange, __init__=making, send=sending):
        for case in (several_epochs, computed_ids, frozen_rows):
            graphs.clear()
            case(worker)
            found[case.__name__] = {tuple(counts) for counts in graphs.values()}
    return found


def widths_of_signs(worker):
    """What the next exchanges of signs expect, after some batches."""
    several_epochs(worker)
    workers = collectives_of(worker.strategy)
    return {
        key: int(workers.remembered(key, 0).value)
        for key in list(workers._remembered)
    }


def errors_before_collectives(worker):
    """Of a step's errors after gradients: those that may leave one under way.

    Returns:
      `(errors, such errors)`, numbers of operations.
    """
    graphs = []

    def noting(self, rows):
        graphs.append(tf.compat.v1.get_default_graph())
        return take_words(self, rows)

    take_words = SignExchange.take_words
    with mock.patch.object(SignExchange, "take_words", noting):
        several_epochs(worker)
    before = {
        op: {t.op for t in op.inputs} | set(op.control_inputs)
        for op in graphs[-1].get_operations()
    }
    all_before = {}
    for op in graphlib.TopologicalSorter(before).static_order():
        all_before[op] = before[op].union(*(all_before[o] for o in before[op]))
    agreed = [op for op in before if op.type.endswith("ExchangeAgree")]
    # Others have no state: they look for what is not finite.
    branches = [
        op for op in before if op.type == "If" and all_before[op] & set(agreed)
    ]
    assert len(branches) == 1, branches
    errors = [
        op
        for op in before
        if op.type.endswith("RaiseError") and all_before[op] & set(agreed)
    ]
    early = [op for op in errors if branches[0] not in all_before[op]]
    return len(errors), len(early)


class _Count(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1


def error_of_a_batch(worker):
    """The third batch of one worker is wrong; then none is."""

    def make():
        ids = {"user": keras.Input((), dtype="int64", name="user")}
        table = sum_table(statistics=["show", "click"])
        layer = tf_ext.layers.EmbeddingFeatures(
            [id_column("user")], table, click="bought"
        )
        bought = keras.Input((), name="bought")
        return tf_ext.Model(
            {**ids, "bought": bought}, layer({**ids, "bought": bought})
        )

    def data(wrong):
        ids = np.arange(80)
        bought = np.ones(80, np.float32)
        if wrong and worker.rank == 1:
            bought[40] = -1.0
        targets = np.ones([80, DIM], np.float32)
        features = {"user": ids + 80 * worker.rank, "bought": bought}
        return lambda _: tf.data.Dataset.from_tensor_slices(
            (features, targets)
        ).batch(16)

    with worker.strategy.scope():
        model = make()
        model.compile(optimizer(), "mse")
    count, text = _Count(), None
    try:
        model.fit(data(True), callbacks=[count], verbose=0)
    except tf.errors.InvalidArgumentError as error:
        text = error.message
    shows = export(model.tables[0])["show"]
    steps = int(number(model.optimizer.iterations))
    model.fit(data(False), verbose=0)
    ids = np.arange(80) + 80 * worker.rank
    unclicked = tf.data.Dataset.from_tensor_slices({"user": ids}).batch(16)
    return {
        "error": text,
        "predictions": [
            model.predict(batches, verbose=0)
            for batches in (lambda _: unclicked, data(False))
        ],
        "steps": (count.steps, steps),
        "shows": {k: float(v[0]) for k, v in shows.items()},
        "later": {
            k: float(v[0]) for k, v in export(model.tables[0])["show"].items()
        },
    }
