# SPDX-License-Identifier: Apache-2.0
"""Errors on one worker, which all workers must raise."""

import os
import re
import tempfile
import time
import types
from unittest import mock

import numpy as np
import tensorflow as tf
from clusters.case_workers import export
from models.model_building import id_column, number

import tf_ext
from cases.multi_worker_step_cases import (
    DIM,
    dot,
    dot_batch,
    fit_shares,
    optimizer,
    sum_table,
)
from tf_ext._keras import IS_KERAS_3, keras


def _error_of(function, *arguments):
    """The type and the text of what a call raises, or None."""
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _train_function(worker, model):
    @tf.function(autograph=False, reduce_retracing=True)
    def train(features, targets):
        def step(features, targets):
            model.train_step((features, targets))

        worker.strategy.run(step, args=(features, targets))

    return train


# Input errors.


class Weighted(tf_ext.Model):
    """A model of a weighted column and one that comes as a SparseTensor."""

    def __init__(self):
        super().__init__()
        columns = [id_column("tags", weights="w"), id_column("sparse")]
        self.features = tf_ext.layers.EmbeddingFeatures(columns, sum_table())

    def call(self, inputs, training=None):
        return self.features(inputs, training=training)


def _weighted_batch(weight_splits=(0, 1, 3), order=(0, 1)):
    features = {
        "tags": tf.RaggedTensor.from_row_splits(
            tf.constant([1, 2, 3], tf.int64), [0, 1, 3]
        ),
        "w": tf.RaggedTensor.from_row_splits([1.0, 2.0, 3.0], weight_splits),
        "sparse": tf.SparseTensor(
            [[row, 0] for row in order], tf.constant([4, 5], tf.int64), [2, 1]
        ),
    }
    return features, tf.ones([2, 2 * DIM])


def input_errors(worker):
    """One worker's batch is malformed, then nobody's."""
    with worker.strategy.scope():
        model = Weighted()
        model.compile(optimizer(), dot)
    good = _weighted_batch()
    model(good[0])
    train = _train_function(worker, model)
    errors = []
    for rank, broken in (
        (1, {"weight_splits": [0, 2, 3]}),
        (0, {"order": [1, 0]}),
        (1, {"order": [1, 0]}),
    ):
        batch = _weighted_batch(**broken) if worker.rank == rank else good
        errors.append(_error_of(train, *batch))
    rows = model.tables[0].size()
    train(*good)
    return {
        "errors": errors,
        "rows_after_errors": rows,
        "rows": export(model.tables[0])["weights"],
    }


def input_error_beside_a_gather(worker):
    """All raise while one of them has not begun to gather a number of theirs.

    The last result is how many such gathers have ended.
    """
    with worker.strategy.scope():
        model = Weighted()
        model.compile(optimizer(), dot)
    good = _weighted_batch()
    model(good[0])
    gather = tf.raw_ops.CollectiveGatherV2
    ended = []

    def begin(values):
        if worker.rank == 0:
            time.sleep(0.5)
        return values

    def end(values):
        ended.append(values)
        return values

    def call(function, values):
        # TensorFlow would run stateful ones in the order of the program.
        return tf.numpy_function(function, [values], values.dtype, False)

    def late(input, **kwargs):
        if input.shape != [1, 1]:
            return gather(input=input, **kwargs)
        input = call(begin, input)
        return call(end, gather(input=input, **kwargs))

    with mock.patch.object(tf.raw_ops, "CollectiveGatherV2", late):
        train = _train_function(worker, model)
        broken = _weighted_batch([0, 2, 3]) if worker.rank == 1 else good
        errors = [_error_of(train, *batch) for batch in (broken, good)]
    return *errors, len(ended)


def pipeline_error(worker):
    """One worker's dataset fails in its third batch; then nobody's."""
    with worker.strategy.scope():
        model = _dense_model()
    features, targets = dot_batch()

    def fail(features, targets):
        check = tf.debugging.assert_none_equal(
            targets[0], 7.0, message="sample 40 cannot be read"
        )
        with tf.control_dependencies([check]):
            return features, tf.identity(targets)

    def data(broken):
        mine = np.array(targets)
        if broken and worker.rank == 1:
            mine[40, 0] = 7.0
        return (
            tf.data.Dataset.from_tensor_slices((features, mine))
            .map(fail)
            .batch(16)
        )

    error = _error_of(fit_shares, worker, model, lambda _: data(True), 8)
    steps = int(number(model.optimizer.iterations))
    fit_shares(worker, model, lambda _: data(False), 8)
    return {
        "error": error,
        "steps": steps,
        "all_steps": int(number(model.optimizer.iterations)),
    }


def a_share_without_samples(worker):
    """A layer of tf_keras that would miss an update on one worker."""
    with worker.strategy.scope():
        model = Sums(keras.layers.BatchNormalization(synchronized=True))
        model.compile(optimizer(0.1), "mse")
    x = tf.ones([2, 3])  # Of three workers, one has none.
    data = tf.data.Dataset.from_tensors((x, x[:, :1]))
    return {"error": _error_of(model.fit, data)}


class Sums(tf_ext.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs, training=None):
        return tf.reduce_sum(self.layer(inputs, training=training), 1, True)


def unreadable_file(worker):
    """One worker's file has no record that is well-formed."""
    with worker.strategy.scope():
        model = _dense_model()
    field = tf_ext.data.Field
    schema = tf_ext.data.Schema(
        [
            field("label", "float32"),
            field("user", "int64"),
            field("items", "int64", separator="|"),
        ],
        label="label",
    )
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "clicks.csv")
    with open(path, "w") as file:
        file.write("0.5,1,2|3\n" if worker.rank != 1 else "?,1,2\n")

    def data(_):
        return tf_ext.data.read(path, schema, batch_size=1).map(
            lambda x, y: (x, tf.repeat(y[:, tf.newaxis], 2 * DIM, axis=1))
        )

    return {"error": _error_of(lambda: model.fit(data, verbose=0))}


# Gradients that are not finite.


def _dense_model(its_optimizer=None):
    ids = {
        "user": keras.Input((), dtype="int64", name="user"),
        "items": keras.Input((None,), dtype="int64", name="items"),
    }
    columns = [id_column("user"), id_column("items", "mean")]
    rule = tf_ext.optimizers.SparseAdagrad(0.1)
    embeddings = tf_ext.layers.EmbeddingFeatures(columns, sum_table(rule=rule))
    uniform = keras.initializers.RandomUniform(-1, 1, seed=1)
    dense = keras.layers.Dense(
        2 * DIM, kernel_initializer=uniform, dtype="float32"
    )
    model = tf_ext.Model(ids, dense(embeddings(ids)))
    model.compile(its_optimizer or optimizer(0.1), dot)
    return model


def _state(model):
    rows = export(model.tables[0])
    return {
        "iterations": int(number(model.optimizer.iterations)),
        "variables": [np.asarray(w) for w in model.get_weights()],
        "weights": rows["weights"],
        "accumulator": rows["accumulator"],
    }


def _through_nonfinite(worker, model, bad_value, other=()):
    """The model's states around a step in which one worker's targets are bad.

    Returns:
      dict of states `before`, `after` and `later`, the `error`, and what the
      functions `other` return at those times.
    """
    features, targets = worker.part(dot_batch())
    features = tf.nest.map_structure(tf.constant, features)
    bad = np.array(targets)
    if worker.rank == worker.size - 1:
        bad[3, 2] = bad_value
    train = _train_function(worker, model)
    result = {}
    for name, its_targets in (
        ("before", targets),
        ("after", bad),
        ("later", targets),
    ):
        error = _error_of(train, features, tf.constant(its_targets))
        result[name] = _state(model) | {
            "error": error,
            "other": [function() for function in other],
        }
    return result


def nonfinite_raises(worker):
    with worker.strategy.scope():
        model = _dense_model()
    return _through_nonfinite(worker, model, np.nan)


def nonfinite_raises_with_clipping(worker):
    with worker.strategy.scope():
        model = _dense_model(
            tf_ext.optimizers.Optimizer(
                keras.optimizers.SGD(0.1, global_clipnorm=0.1)
            )
        )
    return _through_nonfinite(worker, model, np.inf)


def nonfinite_skips(worker):
    with worker.strategy.scope():
        model = _dense_model(optimizer(0.1, on_nonfinite="skip"))
    return _through_nonfinite(worker, model, np.inf)


def loss_scaling_skips(worker):
    sgd = keras.optimizers.SGD(0.1)
    scaled = keras.mixed_precision.LossScaleOptimizer
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with worker.strategy.scope():
            if IS_KERAS_3:
                its_optimizer = tf_ext.optimizers.Optimizer(
                    scaled(sgd, initial_scale=1024.0)
                )
                model = _dense_model(its_optimizer)
                scale = lambda: float(number(its_optimizer.dynamic_scale))  # noqa: E731
            else:
                its_optimizer = scaled(
                    tf_ext.optimizers.Optimizer(sgd), initial_scale=1024.0
                )
                model = _dense_model(its_optimizer)
                scale = lambda: float(number(its_optimizer.loss_scale))  # noqa: E731
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return _through_nonfinite(worker, model, np.inf, [scale])


# Arguments.


def bad_arguments(worker):
    """What is refused, on every worker before it would wait for others."""
    make = tf_ext.optimizers.Optimizer
    outside = sum_table("outside")
    with worker.strategy.scope():
        inside = _dense_model()
        sums = keras.losses.MeanSquaredError(reduction="sum")
        layer = tf_ext.layers.EmbeddingFeatures([id_column("user")], outside)
    user = {"user": tf.constant([1, 2], tf.int64)}

    @tf.function(autograph=False)
    def call_outside():
        return worker.strategy.run(lambda: layer(user, training=True))

    with worker.strategy.scope():
        weight = tf.Variable(1.0)

    @tf.function(autograph=False)
    def tasks():
        def step():
            with tf.GradientTape(persistent=True) as tape:
                losses = [2.0 * weight, -3.0 * weight]
            return tf_ext.optimizers.pcgrad(tape, losses, [weight])

        return worker.strategy.run(step)

    errors = {
        "tasks": _error_of(tasks),
        "on_nonfinite": _error_of(lambda: make("sgd", on_nonfinite="x")),
        "loss": _error_of(inside.compile, optimizer(), sums),
        "outside": _error_of(call_outside),
    }
    composed = types.SimpleNamespace(
        optimizers=[optimizer(), keras.optimizers.SGD()]
    )
    errors["composed"] = _error_of(inside.compile, composed, dot)
    if not IS_KERAS_3:
        with worker.strategy.scope():
            plain = keras.Model(inside.inputs, inside.outputs)
            plain.compile(optimizer(), dot)
        data = tf.data.Dataset.from_tensors(dot_batch())
        errors["plain_model"] = _error_of(lambda: plain.fit(data, verbose=0))
    if IS_KERAS_3:
        errors["steps_per_execution"] = _error_of(
            lambda: inside.compile(optimizer(), dot, steps_per_execution=2)
        )
    return {name: re.sub(r"\s+", " ", e or "") for name, e in errors.items()}
