# SPDX-License-Identifier: Apache-2.0
"""Saves subclassed models, or loads them and compares what they predict.

    subclassed_saving_program.py save|load DIRECTORY CASE ...

`load` prints a JSON object: for each case and way to load it, the greatest
difference of predictions, or the error. The first case is loaded in more ways.
"""

import json
import pathlib
import sys
import warnings

import numpy as np
import tensorflow as tf
from models.model_building import mirrored_strategy

from tf_ext._keras import keras


def _fit(case, model):
    # The order is part of the result.
    model.fit(case.batches(), verbose=0)


def save(case, path):
    keras.utils.set_random_seed(3)
    model = case.compiled()
    _fit(case, model)
    model.save(f"{path}.keras")
    model.save_weights(f"{path}.weights.h5")
    tf.train.Checkpoint(model=model).write(f"{path}.checkpoint")
    saved = case.predict(model)
    _fit(case, model)
    np.savez(f"{path}.npz", saved=saved, trained=case.predict(model))


def _built(case):
    model = case.compiled()
    with model.distribute_strategy.scope():
        case.build(model, case.inputs)
    return model


def _restored(model, path):
    checkpoint = tf.train.Checkpoint(model=model)
    checkpoint.read(f"{path}.checkpoint").expect_partial()
    return model


def _weights_loaded(model, path):
    model.load_weights(f"{path}.weights.h5")
    return model


def load_model(case, path):
    with case.strategy().scope():
        return keras.models.load_model(f"{path}.keras")


def load_weights(case, path):
    return _weights_loaded(_built(case), path)


def restore_checkpoint(case, path):
    return _restored(_built(case), path)


def load_weights_unbuilt(case, path):
    return _weights_loaded(case.compiled(), path)


def restore_checkpoint_unbuilt(case, path):
    return _restored(case.compiled(), path)


def load_without_compiling(case, path):
    return keras.models.load_model(f"{path}.keras", compile=False)


def load_and_save_again(case, path):
    keras.models.load_model(f"{path}.keras").save(f"{path}.again.keras")
    return keras.models.load_model(f"{path}.again.keras")


def load_under_strategy(case, path):
    with mirrored_strategy().scope():
        return keras.models.load_model(f"{path}.keras")


LOADERS = [load_model, load_weights, restore_checkpoint]
MORE_LOADERS = [
    load_weights_unbuilt,
    restore_checkpoint_unbuilt,
    load_without_compiling,
    load_and_save_again,
    load_under_strategy,
]


def compare(case, path, loader):
    """The greatest difference to what the saved model predicted.

    A loaded model is then trained like the saved one, and compared again.
    """
    expected = np.load(f"{path}.npz")
    try:
        model = loader(case, path)
        found = {"saved": case.predict(model)}
        if loader is load_model:
            _fit(case, model)
            found["trained"] = case.predict(model)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return max(
        float(np.abs(values - expected[name]).max())
        for name, values in found.items()
    )


def main(action, directory, *names):
    cpus = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpus[0], two)
    # Its tensors are on these devices.
    from models.subclassed_models import CASES, SLOW_CASES

    directory = pathlib.Path(directory)
    cases = {name: (CASES | SLOW_CASES)[name] for name in names}
    results = {}
    for index, (name, case) in enumerate(cases.items()):
        if action == "save":
            save(case, directory / name)
            continue
        loaders = LOADERS if index else LOADERS + MORE_LOADERS
        with warnings.catch_warnings(record=True):
            results[name] = {
                loader.__name__: compare(case, directory / name, loader)
                for loader in loaders
            }
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
