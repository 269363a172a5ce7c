# SPDX-License-Identifier: Apache-2.0
"""Runs programs of the combination test as they come: KIND FOLDER.

This is a process, or one of several workers, of the place that KIND names.
"""

import argparse
import contextlib
import dataclasses
import functools
import os

import numpy as np
import tensorflow as tf
from clusters import tasks
from models.combination_models import columns_of, has_twin, make, make_twin
from models.model_building import mirrored_strategy
from oracles.combination_axes import WORKERS, Program
from oracles.combination_data import (
    BATCH_SIZE,
    arrays_of,
    click_key,
    dataset_of,
    features_of,
    twin_samples_of,
)

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

_EPOCHS = 2


def run(program, place, folder):
    """Trains a program's model, uses and saves it.

    Args:
      program: Program.
      place: Place, where.
      folder: string, where it saves.

    Returns:
      dict of what `fit`, `evaluate` and `predict` returned, and of predictions
      after an epoch more.
    """
    with _policy(program), place.strategy(program).scope():
        model = make(program)
    data = functools.partial(dataset_of, program)
    found = {}
    if program.samples == 15:
        # In a call before `fit`, models and optimizers are built by it.
        found["predicted first"] = _predict(model, program)
    found["logs"] = _fit(model, program, _EPOCHS)
    found["evaluated"] = model.evaluate(
        data(model), verbose=0, return_dict=True
    )
    found["predicted"] = _predict(model, program)
    _save(model, program, place, folder)
    if program.saved in _CONTINUED:
        _fit(model, program, 1)
        found["continued"] = _predict(model, program)
    return {name: _as_arrays(value) for name, value in found.items()}


def run_twin(program):
    """What `run` is to return, of a model in one process without a strategy."""
    program = dataclasses.replace(
        program, regime="none", model="functional", data="dataset"
    )
    if not has_twin(program):
        return run(program, Place(), None)
    model = make_twin(program)
    features, labels, weights = twin_samples_of(program, columns_of(program))
    whole = (features, labels) + (() if weights is None else (weights,))
    data = tf.data.Dataset.from_tensor_slices(whole).batch(BATCH_SIZE)
    only_features = data.map(lambda features, *_: features)
    found = {}
    if program.samples == 15:
        found["predicted first"] = model.predict(only_features, verbose=0)
    found["logs"] = model.fit(data, epochs=_EPOCHS, verbose=0).history
    found["evaluated"] = model.evaluate(data, verbose=0, return_dict=True)
    found["predicted"] = model.predict(only_features, verbose=0)
    if program.saved in _CONTINUED:
        model.fit(data, verbose=0)
        found["continued"] = model.predict(only_features, verbose=0)
    return {name: _as_arrays(value) for name, value in found.items()}


def load(program, folder):
    """Loads what `run` saved: predictions, also after an epoch more."""
    program = dataclasses.replace(program, regime="none")
    with _policy(program):
        if program.saved in ("exported", "served"):
            return {"predicted": _as_arrays(_serve(program, folder))}
        model = _load(program, folder)
    found = {"predicted": _predict(model, program)}
    _fit(model, program, 1)
    found["continued"] = _predict(model, program)
    return {name: _as_arrays(value) for name, value in found.items()}


class Place:
    """Where programs run.

    Args:
      cluster: a function to the strategy of the cluster that this process is
        connected to; None if there is none.
      rank: int, of this process among synchronous workers.
    """

    def __init__(self, cluster=None, rank=0):
        self._cluster = cluster
        self.rank = rank

    def strategy(self, program):
        """The tf.distribute.Strategy of a program's regime."""
        if self._cluster is not None:
            return self._cluster()
        return {
            "none": tf.distribute.get_strategy,
            "one_device": _one_device,
            "one_worker": _one_worker,
            "mirrored": mirrored_strategy,
        }[program.regime]()


@functools.cache
def _one_device():
    return tf.distribute.MirroredStrategy(["CPU:0"])


@functools.cache
def _one_worker():
    return tf_ext.distribute.multi_worker_strategy()


@contextlib.contextmanager
def _policy(program):
    policies = keras.mixed_precision
    name = "dtype_policy" if IS_KERAS_3 else "global_policy"
    before = getattr(policies, name)()
    set_policy = getattr(policies, f"set_{name}", None)
    set_policy = set_policy or policies.set_global_policy
    set_policy(program.precision)
    try:
        yield
    finally:
        set_policy(before)


def _fit(model, program, epochs):
    options = {"epochs": epochs, "verbose": 0, "shuffle": False}
    if program.regime == "servers":
        # Otherwise the order of updates is not that of one process.
        options["max_inflight_steps"] = 1
    if program.table == "evicted":
        options["callbacks"] = [tf_ext.callbacks.Evict(steps=2)]
    if program.data == "arrays":
        return model.fit(
            **arrays_of(program), batch_size=BATCH_SIZE, **options
        ).history
    return model.fit(dataset_of(program, model), **options).history


def _predict(model, program):
    if program.data == "arrays":
        return model.predict(
            arrays_of(program)["x"], batch_size=BATCH_SIZE, verbose=0
        )
    # A tuple of features alone would be taken for features and labels.
    data = dataset_of(program, model).map(lambda features, *_: (features,))
    return model.predict(data, verbose=0)


# Formats.

_CONTINUED = ("keras", "weights", "checkpoint")


def _save(model, program, place, folder):
    """Saves a model as the program says; all processes call it."""
    if folder is None or program.saved == "none":
        return
    path = os.path.join(folder, program.saved)
    if program.saved == "keras":
        model.save(f"{path}.keras")
    elif program.saved == "weights":
        model.save_weights(f"{path}.weights.h5")
    elif program.saved == "checkpoint":
        # Each worker writes its own; that of the first one is whole.
        own = path if place.rank == 0 else f"{path}_{place.rank}"
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.write(os.path.join(own, "written"))
    elif program.saved == "exported":
        model.export(path)
    else:
        # Of a model that was called with hashed features alone.
        hashed = program.data == "hashed" and program.model != "functional"
        signature = features_of(program) if hashed else None
        tf_ext.serving.export(model, path, signature=signature)


def _load(program, folder):
    path = os.path.join(folder, program.saved)
    if program.saved == "keras":
        return keras.models.load_model(f"{path}.keras")
    model = make(program)
    _predict(model, program)  # Keras restores models that are built.
    if program.saved == "weights":
        model.load_weights(f"{path}.weights.h5")
    else:
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.read(os.path.join(path, "written")).expect_partial()
    return model


def _serve(program, folder):
    """What an export returns for all samples, by its signature."""
    path = os.path.join(folder, program.saved)
    if program.saved == "exported":
        served = tf.saved_model.load(path)
        features = arrays_of(program)["x"]
        if program.layer == "clicks":
            # They are counted in training alone.
            del features[click_key()]
        return served.serve(tf.nest.map_structure(_tensor, features))
    [version] = os.listdir(path)
    signature = tf.saved_model.load(os.path.join(path, version)).signatures[
        "serving_default"
    ]
    wanted = signature.structured_input_signature[1]
    found = signature(**_flat_features(program, wanted))
    return found if len(found) > 1 else next(iter(found.values()))


def _tensor(value):
    return value if isinstance(value, tf.RaggedTensor) else tf.constant(value)


def _flat_features(program, wanted):
    """Features under the names that a signature wants them.

    Those of inputs that are no dict are their places, in order.
    """
    features = arrays_of(program)["x"]
    if program.model == "listed":
        features = dict(enumerate(features))
    flat = {}
    for key, value in features.items():
        value = _tensor(value)
        if isinstance(value, tf.RaggedTensor):
            flat[f"{key}_values"] = value.values
            flat[f"{key}_row_splits"] = value.row_splits
        else:
            flat[f"{key}"] = value
    if program.model == "listed":
        return {n: flat[k] for n, k in zip(sorted(wanted), sorted(flat))}
    return {name: flat[name] for name in wanted}


def _as_arrays(value):
    if isinstance(value, dict):
        return {
            key: _as_arrays(v)
            for key, v in value.items()
            # Keras and tf_ext add logs of their own.
            if key not in ("staleness", "learning_rate", "lr")
        }
    return np.asarray(value, np.float64)


_TASKS = {"load": load, "run_twin": run_twin}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", help="alone, servers or a regime of workers")
    parser.add_argument("folder", help="of its tasks")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = _place(args.kind, stack)
        tasks.run_all(args.folder, place.rank, functools.partial(_run, place))


def _place(kind, stack):
    if kind in WORKERS:
        strategy = tf_ext.distribute.multi_worker_strategy()
        rank = strategy.cluster_resolver.task_id
        return Place(lambda: strategy, rank)
    if kind == "servers":
        cluster = stack.enter_context(tf_ext.distribute.local_cluster(1, 2))
        strategy = cluster.strategy()
        return Place(lambda: strategy)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    return Place()


def _run(place, task):
    name, text, *arguments = task
    program = Program.from_json(text)
    try:
        if name == "run":
            return run(program, place, *arguments)
        return _TASKS[name](program, *arguments)
    finally:
        tf.keras.backend.clear_session()


if __name__ == "__main__":
    main()
