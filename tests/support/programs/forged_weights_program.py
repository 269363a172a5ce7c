# SPDX-License-Identifier: Apache-2.0
"""Loads forged `.weights.h5` files: FIRST_SEED COUNT.

Prints each seed before its file is read, so that the last line of a crash names
it. A file is loaded or refused; a refused one changes neither tables nor
variables.
"""

import collections
import json
import os
import random
import resource
import sys
import tempfile

import h5py
import numpy as np
import tensorflow as tf
from models.sharded_tables import bytes_of_rows, counters_of

import tf_ext
from tf_ext import _core
from tf_ext._keras import keras

_MEMORY_BYTES = 24 << 30  # of addresses, most of which TensorFlow reserves
_REFUSALS = (ValueError, KeyError, TypeError, OSError, RuntimeError)
_REFUSALS += (MemoryError, OverflowError, tf.errors.OpError)
_VALUES = (
    None,
    True,
    0,
    1,
    -1,
    2**40,
    2**63,
    0.5,
    1e300,
    "",
    "x",
    "{}",
    [],
    {},
)
_VALUES += ([1], {"a": 1}, {"optimizer": 5}, {"optimizer": "{}"}, "[" * 2000)
_DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint16", "S3")


def _model():
    tables = [
        tf_ext.SparseTable(
            "a",
            4,
            tf_ext.optimizers.SparseAdagrad(0.1),
            "normal",
            admission=tf_ext.admission.Count(2, forget=100),
            eviction=tf_ext.eviction.Unseen(steps=100),
            statistics=["show"],
        ),
        tf_ext.SparseTable("b", 4, "adam", "normal", dtype="bfloat16"),
    ]
    inputs = {
        name: keras.Input((), dtype="int64", name=name) for name in ("u", "v")
    }
    embedded = [
        tf_ext.layers.EmbeddingFeatures(
            [tf_ext.feature_column.category_column(name, hashing="identity")],
            table,
        )({name: inputs[name]})
        for name, table in zip(inputs, tables, strict=True)
    ]
    joined = keras.layers.Concatenate()(embedded)
    model = tf_ext.Model(inputs, keras.layers.Dense(1)(joined))
    model.compile(tf_ext.optimizers.Optimizer(keras.optimizers.Adam()), "mse")
    return model


def _train(model, seed):
    generator = np.random.default_rng(seed)
    features = {n: generator.integers(0, 60, 90) for n in ("u", "v")}
    for _ in range(3):
        model.train_on_batch(features, generator.normal(size=[90, 1]))


def _state(model):
    """All that a load may change."""
    optimizer = model.optimizer
    variables = {
        id(variable): np.asarray(tf.convert_to_tensor(variable)).tobytes()
        for variable in [*model.variables, *optimizer.variables]
    }
    return (
        [bytes_of_rows(table) for table in model.tables],
        counters_of(model.tables[0]),
        [table.optimizer.state() for table in model.tables],
        variables,
    )


def _datasets(file):
    names = []
    file.visititems(
        lambda name, item: (
            names.append(name) if isinstance(item, h5py.Dataset) else None
        )
    )
    return names


def _replace(file, name, value):
    del file[name]
    file[name] = value


def _seal(file, header_name, header):
    """Writes a header with its right checksum."""
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    _replace(file, header_name, text)
    checksum = np.array([_core.crc32c(text.tobytes())], np.uint32)
    _replace(file, f"{header_name}_crc32c", checksum)


def _forge_header(file, generator):
    name = generator.choice(
        [n for n in _datasets(file) if n.endswith("header")]
    )
    header = json.loads(file[name][()].tobytes())
    for _ in range(generator.choice((1, 1, 1, 3))):
        holder = header
        key = generator.choice(sorted(header))
        while isinstance(holder[key], dict) and holder[key]:
            if generator.random() < 0.3:
                break
            holder = holder[key]
            key = generator.choice(sorted(holder))
        if generator.random() < 0.15:
            del holder[key]
        elif key == "config":
            lines = holder[key].splitlines()
            place = generator.randrange(len(lines))
            lines[place] = generator.choice(("", "x", lines[place] + "0", "=="))
            holder[key] = "\n".join(lines)
        elif key == "optimizer" and generator.random() < 0.7:
            state = json.loads(holder[key])
            part = generator.choice(sorted(state))
            state[part] = generator.choice(_VALUES)
            holder[key] = json.dumps(state)
        else:
            holder[key] = generator.choice(_VALUES)
        if not header:
            break
    _seal(file, name, header)


def _changed(array, generator):
    """Another array in the place of one."""
    kind = generator.randrange(5)
    if kind == 0:
        return array.astype(generator.choice(_DTYPES))
    if kind == 1:
        return array[: len(array) // 2] if array.ndim else np.zeros(3)
    if kind == 2:
        return array.reshape([-1, *([1] * generator.randrange(3))])
    if kind == 3:
        return np.concatenate([array, array]) if array.ndim else array
    raw = bytearray(array.tobytes())
    for _ in range(3):
        if raw:
            raw[generator.randrange(len(raw))] ^= 1 << generator.randrange(8)
    return np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)


def _forge_array(file, generator):
    """A dataset of a table or of a variable, if possible with its checksum."""
    name = generator.choice([n for n in _datasets(file) if "header" not in n])
    if generator.random() < 0.1:
        del file[name]
        return
    with np.errstate(all="ignore"):
        array = _changed(file[name][()], generator)
    _replace(file, name, array)
    group, _, key = name.rpartition("/")
    if f"{group}/header" in file and generator.random() < 0.7:
        header = json.loads(file[f"{group}/header"][()].tobytes())
        if key in header["crc32c"]:
            header["crc32c"][key] = _core.crc32c(np.asarray(array).tobytes())
            _seal(file, f"{group}/header", header)


def _forge_bytes(path, generator):
    with open(path, "r+b") as file:
        size = os.path.getsize(path)
        if generator.random() < 0.3:
            file.truncate(generator.randrange(size))
            return
        for _ in range(generator.choice((1, 3, 20))):
            file.seek(generator.randrange(size))
            file.write(bytes([generator.randrange(256)]))


def _forge(path, seed):
    generator = random.Random(seed)
    if generator.random() < 0.15:
        _forge_bytes(path, generator)
        return
    with h5py.File(path, "r+") as file:
        for _ in range(generator.choice((1, 1, 2))):
            forge = generator.choice(
                (_forge_header, _forge_header, _forge_array)
            )
            forge(file, generator)


def main(first, count):
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard))
    model = _model()
    ends = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="tf_ext_forged_") as folder:
        path = os.path.join(folder, "m.weights.h5")
        _train(model, 1)
        model.save_weights(path)
        with open(path, "rb") as file:
            whole = file.read()
        _train(model, 2)
        before = _state(model)
        for seed in range(first, first + count):
            print(f"seed {seed}", flush=True)
            # Keras leaves a file open that it could not load.
            path = os.path.join(folder, f"{seed}.weights.h5")
            with open(path, "wb") as file:
                file.write(whole)
            try:
                _forge(path, seed)
            except (
                AttributeError,
                LookupError,
                OSError,
                TypeError,
                ValueError,
            ):
                ends["not forged"] += 1  # a second change of what is gone
                continue
            try:
                model.load_weights(path)
            except _REFUSALS as error:
                ends["refused"] += 1
                if _state(model) != before:
                    raise SystemExit(
                        f"Seed {seed} changed the model: {error}"
                    ) from error
            else:
                ends["loaded"] += 1
                _state(model)
                before = _state(model)
    print(json.dumps(ends))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
