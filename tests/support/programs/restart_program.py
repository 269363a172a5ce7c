# SPDX-License-Identifier: Apache-2.0
"""One life of a training program that is interrupted; `restart_test` runs it.

    restart_program.py first DIRECTORY   trains, saves half-way, goes on
    restart_program.py second DIRECTORY  restores, trains the second half

Each writes what its models hold in the end to DIRECTORY/<life>_<case>.npz.
"""

import pathlib
import sys

import numpy as np
import tensorflow as tf
from models.sharded_tables import counters_of

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.optimizers import (
    SparseAdagrad,
    SparseAdam,
    SparseFtrl,
    SparseLion,
    SparseRMSprop,
    SparseRowWiseAdagrad,
    SparseSGD,
)

STEPS = 5  # before the interruption, and after it

# Formats that keep whole training, and how a model is saved in each.
FORMATS = ("keras", "weights", "checkpoint", "checkpoint_manager")

_ASSIGNED_RATE = 0.03

# Of some tables: those that count have to go on counting.
_ADMISSION = {
    "adam_row": tf_ext.admission.Count(4, forget=3),
    "sgd_scheduled": tf_ext.admission.Count(6),
}


def rules():
    """The rules under test, one table each: `{table name: rule}`."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return {
        "sgd": SparseSGD(0.1, weight_decay=0.01),
        "sgd_of_the_model": SparseSGD(),
        "sgd_assigned": SparseSGD(0.1),
        "sgd_scheduled": SparseSGD(schedule),
        "momentum": SparseSGD(0.1, momentum=0.9, nesterov=True),
        "adagrad": SparseAdagrad(0.1),
        "row_wise_adagrad": SparseRowWiseAdagrad(0.1),
        "adam_row": SparseAdam(0.01),
        "adam_global": SparseAdam(0.01, bias_correction="global"),
        "ftrl": SparseFtrl(0.1, l1_regularization_strength=1e-4, beta=0.1),
        "lion": SparseLion(0.01),
        "rmsprop": SparseRMSprop(0.01),
        "rmsprop_centered": SparseRMSprop(0.01, centered=True),
        "rmsprop_momentum": SparseRMSprop(0.01, momentum=0.9),
    }


def batch(step):
    """Features and labels of a step: repeated signs, and new ones."""
    rng = np.random.default_rng(step)
    user = rng.integers(-8, 8 + 4 * step, 32)
    return {"user": user}, (user % 2).astype(np.float32)[:, np.newaxis]


def make_model(dense=None, names=None):
    """A compiled model with a table of each rule, or of some."""
    tables = {
        name: tf_ext.SparseTable(
            name, 3, rule, "normal", seed=7, admission=_ADMISSION.get(name)
        )
        for name, rule in rules().items()
        if names is None or name in names
    }
    column = tf_ext.feature_column.category_column("user", hashing="identity")
    inputs = {"user": keras.Input((), dtype="int64", name="user")}
    embeddings = tf_ext.layers.EmbeddingFeatures(
        {table: [column] for table in tables.values()}
    )(inputs)
    uniform = keras.initializers.RandomUniform(-0.5, 0.5, seed=1)
    hidden = keras.layers.Concatenate()(list(embeddings.values()))
    hidden = keras.layers.Dense(4, "tanh", kernel_initializer=uniform)(hidden)
    output = keras.layers.Dense(1, kernel_initializer=uniform)(hidden)
    model = tf_ext.Model(inputs, output)
    dense = dense or keras.optimizers.Adam(0.01, clipnorm=1.0)
    model.compile(tf_ext.optimizers.Optimizer(dense), "mse")
    return model


def accumulating():
    """A dense optimizer that is in the middle of a step after STEPS."""
    return keras.optimizers.Adam(0.01, gradient_accumulation_steps=3)


def train(model, first, count):
    """Trains on the batches of steps `first` to `first + count`."""
    for step in range(first, first + count):
        model.train_on_batch(*batch(step))


def assign_rate(model):
    """Changes a table's learning rate in the course of training."""
    [table] = [t for t in model.tables if t.name == "sgd_assigned"]
    table.optimizer.learning_rate = _ASSIGNED_RATE


def dump(model, path):
    """Writes rows, slots, counters, dense weights and steps of a model."""
    state = {"iterations": np.asarray(model.optimizer.iterations)}
    for table in model.tables:
        signs, fields = table.export_rows()
        order = np.argsort(signs)
        state[f"{table.name}/signs"] = signs[order]
        for name, values in fields.items():
            state[f"{table.name}/{name}"] = values[order]
        if table.admission is not None:
            period, counters = counters_of(table)
            state[f"{table.name}/period"] = np.array(period)
            state[f"{table.name}/counters"] = np.array(sorted(counters.items()))
    variables = [v for layer in model.layers[2:] for v in layer.weights]
    for index, variable in enumerate(variables):
        state[f"dense/{index}"] = np.asarray(variable)
    np.savez(path, **state)


def save(model, kind, directory):
    """Saves a model in a format of FORMATS."""
    path = str(directory / kind)
    if kind == "keras":
        model.save(f"{path}.keras")
    elif kind == "weights":
        model.save_weights(f"{path}.weights.h5")
    elif kind == "checkpoint":
        tf.train.Checkpoint(model=model).write(path)
    else:
        tf.train.CheckpointManager(
            tf.train.Checkpoint(model=model), path, max_to_keep=1
        ).save()


def restore(kind, directory, dense=None):
    """A new model with what `save` wrote."""
    path = str(directory / kind)
    if kind == "keras":
        return keras.models.load_model(f"{path}.keras")
    model = make_model(dense)
    # Empty, or it would prove nothing that the rows are there afterwards.
    assert [table.size() for table in model.tables] == [0] * len(rules())
    if kind == "weights":
        model.load_weights(f"{path}.weights.h5")
    elif kind == "checkpoint":
        tf.train.Checkpoint(model=model).read(path).expect_partial()
    else:
        manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(model=model), path, max_to_keep=1
        )
        assert manager.restore_or_initialize() is not None
    return model


class Interrupt(keras.callbacks.Callback):
    """Ends a program as a kill does: between two epochs."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def fit_with_backup(model, directory, callbacks=()):
    """Four epochs of training that can be taken up again."""
    features, labels = batch(step=0)
    backup = keras.callbacks.BackupAndRestore(str(directory / "backup"))
    return model.fit(
        features,
        labels,
        batch_size=8,
        epochs=4,
        shuffle=False,
        verbose=0,
        callbacks=[backup, *callbacks],
    )


def first_life(directory):
    """Trains without a break; saves another model half-way."""
    whole = make_model()
    train(whole, 0, STEPS)
    assign_rate(whole)
    train(whole, STEPS, STEPS)
    dump(whole, directory / "first_whole.npz")

    half = make_model()
    train(half, 0, STEPS)
    assign_rate(half)
    for kind in FORMATS:
        save(half, kind, directory)

    if IS_KERAS_3:
        accumulated = make_model(accumulating())
        train(accumulated, 0, STEPS)
        for kind in FORMATS:
            (directory / "accumulated").mkdir(exist_ok=True)
            save(accumulated, kind, directory / "accumulated")
        train(accumulated, STEPS, STEPS)
        dump(accumulated, directory / "first_accumulated.npz")

    uninterrupted = make_model()
    fit_with_backup(uninterrupted, directory / "elsewhere")
    dump(uninterrupted, directory / "first_backup.npz")
    try:
        fit_with_backup(make_model(), directory, [Interrupt()])
    except KeyboardInterrupt:
        return
    raise AssertionError("fit was not interrupted")


def second_life(directory):
    """Restores from each format and trains on."""
    for kind in FORMATS:
        model = restore(kind, directory)
        train(model, STEPS, STEPS)
        dump(model, directory / f"second_{kind}.npz")
        if IS_KERAS_3:
            model = restore(kind, directory / "accumulated", accumulating())
            train(model, STEPS, STEPS)
            dump(model, directory / f"second_accumulated_{kind}.npz")
    model = make_model()
    assert [table.size() for table in model.tables] == [0] * len(rules())
    history = fit_with_backup(model, directory)
    assert history.epoch == [2, 3], history.epoch
    dump(model, directory / "second_backup.npz")


def main(life, directory):
    # TensorFlow's own dense kernels give other bits with other threads.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    {"first": first_life, "second": second_life}[life](pathlib.Path(directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
