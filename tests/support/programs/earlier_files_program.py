# SPDX-License-Identifier: Apache-2.0
"""Writes the files in tests/fixtures/earlier, which later versions must load.

Run it with the Python of the build that the files are to represent, once as is
and once with TF_USE_LEGACY_KERAS=1, in this folder:

    python earlier_files_program.py ../../fixtures/earlier

They are in a folder that has the version's name.
"""

import pathlib
import shutil
import sys

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext import feature_column
from tf_ext._keras import IS_KERAS_3, keras

_RULES = tf_ext.optimizers
# Of each rule all sets of slots.
RULES = {
    "sgd": lambda: _RULES.SparseSGD(0.5, weight_decay=0.01),
    "momentum": lambda: _RULES.SparseSGD(0.5, momentum=0.9, nesterov=True),
    "adagrad": lambda: _RULES.SparseAdagrad(0.05, 0.2),
    "row_wise_adagrad": lambda: _RULES.SparseRowWiseAdagrad(0.05),
    "adam_by_row": lambda: _RULES.SparseAdam(0.01),
    "adam_global": lambda: _RULES.SparseAdam(0.01, bias_correction="global"),
    "ftrl": lambda: _RULES.SparseFtrl(0.1, -0.4, 0.2, 0.01, 0.02, 0.03, 1.0),
    "rmsprop": lambda: _RULES.SparseRMSprop(0.01),
    "rmsprop_all": lambda: _RULES.SparseRMSprop(
        0.01, momentum=0.5, centered=True
    ),
}
INITIALIZERS = {
    "zeros": "zeros",
    "constant": tf_ext.initializers.Constant(0.25),
    "uniform": tf_ext.initializers.Uniform(-0.5, 0.25),
    "normal": tf_ext.initializers.Normal(0.1, 0.2),
    "truncated_normal": tf_ext.initializers.TruncatedNormal(0.0, 0.3),
}
_SIGNS = np.array([0, -1, 5, 2**63 - 1, -(2**63), *range(100, 115)], np.int64)
_DIM = 3


def table(rule="sgd", initializer="normal"):
    """A table of which a snapshot is written."""
    return tf_ext.SparseTable(
        "deep", _DIM, RULES[rule](), INITIALIZERS[initializer], seed=7
    )


def erased():
    """The signs that the delta erases."""
    return _SIGNS[:2]


def train(one, seed):
    """Updates rows: the same on every machine, to the bit."""
    rng = np.random.default_rng(seed)
    for step in range(1, 4):
        signs = rng.permutation(_SIGNS)[:12]
        gradients = rng.normal(size=(12, _DIM)).astype(np.float32)
        one.push(signs, gradients, step=step)


def write_snapshots(one, path):
    """Writes a full snapshot, and a delta of it; two directories in `path`."""
    train(one, 1)
    one.save(f"{path}/full", step=3, incremental=True)
    train(one, 2)
    one.erase(erased())
    one.save(f"{path}/delta", base=f"{path}/full", step=6)


def build_model():
    """A model with each kind of column and three tables."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    column = feature_column.category_column
    user = column("user")
    tags = column("tags", combiner="mean")
    price = column("price", boundaries=[1.0, 10.0])
    clicks = column("clicks", bucket_size=50, missing=-1)
    both = feature_column.crossed_column([user, price], combiner="sum")
    deep = tf_ext.SparseTable("deep", 4, RULES["adam_by_row"](), seed=3)
    small = tf_ext.SparseTable("small", 2, seed=4)
    wide = tf_ext.SparseTable(
        "wide", 1, _RULES.SparseFtrl(schedule), "zeros", seed=5
    )
    inputs = {
        "user": keras.Input((1,), dtype="string", name="user"),
        "tags": keras.Input((2,), dtype="string", name="tags"),
        "price": keras.Input((1,), dtype="float32", name="price"),
        "clicks": keras.Input((1,), dtype="int64", name="clicks"),
    }
    layer = tf_ext.layers.EmbeddingFeatures(
        {deep: [user, tags], small: [price, clicks], wide: [user, both]},
        name="features",
    )
    outputs = layer(inputs)
    joined = keras.layers.Concatenate()(
        [outputs["deep"], outputs["small"], outputs["wide"]]
    )
    hidden = keras.layers.Dense(
        4, "relu", kernel_initializer=_glorot(1), name="hidden"
    )(joined)
    result = keras.layers.Dense(
        1, "sigmoid", kernel_initializer=_glorot(2), name="result"
    )(hidden)
    model = tf_ext.Model(inputs, result)
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.Adam(0.01)),
        "binary_crossentropy",
    )
    return model


@keras.utils.register_keras_serializable("earlier_files")
class Subclassed(tf_ext.Model):
    """A model of which earlier versions recorded the shapes of inputs only."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        column = feature_column.category_column
        table = tf_ext.SparseTable("deep", 2, RULES["adagrad"](), seed=3)
        self.features = tf_ext.layers.EmbeddingFeatures(
            [column("user"), column("tags"), column("clicks")], table
        )
        self.hidden = [keras.layers.Dense(3), keras.layers.Dense(2)]
        self.result = keras.layers.Dense(1)

    def call(self, inputs, training=None):
        hidden = self.features(inputs, training=training)
        hidden = tf.concat([hidden, inputs["price"]], 1)
        for layer in self.hidden:
            hidden = layer(hidden)
        return self.result(hidden)


def _glorot(seed):
    return keras.initializers.GlorotUniform(seed=seed)


def batch(seed=11):
    """Features and labels."""
    rng = np.random.default_rng(seed)

    def text(*shape):
        return rng.integers(0, 6, shape).astype(str).astype(object)

    features = {
        "user": text(32, 1),
        "tags": text(32, 2),
        "price": rng.uniform(0, 20, (32, 1)).astype(np.float32),
        "clicks": rng.integers(-1, 100, (32, 1)),
    }
    features = {k: tf.constant(v) for k, v in features.items()}
    return features, rng.integers(0, 2, (32, 1)).astype(np.float32)


def state(model):
    """All rows, variables and predictions of a model, by name."""
    found = {"predictions": model.predict(batch()[0], verbose=0)}
    for one in model.tables:
        signs, fields = one.export_rows()
        order = np.argsort(signs)
        found[f"{one.name}/sign"] = np.asarray(signs)[order]
        for name, values in fields.items():
            found[f"{one.name}/{name}"] = np.asarray(values)[order]
    for name in ("hidden", "result"):
        found[f"{name}/kernel"] = model.get_layer(name).kernel.numpy()
    iterations = tf.convert_to_tensor(model.optimizer.iterations)
    found["iterations"] = iterations.numpy()
    return found


def write_model(path):
    """Writes what Keras and TensorFlow save of a trained model."""
    path.mkdir(parents=True)
    model = build_model()
    features, labels = batch()
    for _ in range(3):
        model.train_on_batch(features, labels)
    model.save(path / "model.keras")
    model.save_weights(path / "model.weights.h5")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.write(str(path / "checkpoint"))
    np.savez_compressed(path / "state.npz", **state(model))


def write_subclassed(path):
    """Writes a trained subclassed model, in each format."""
    model = Subclassed()
    model.compile(tf_ext.optimizers.Optimizer("adam"), "mse")
    features, labels = batch()
    for _ in range(3):
        model.train_on_batch(features, labels)
    model.save(path / "subclassed.keras")
    model.save_weights(path / "subclassed.weights.h5")
    tf.train.Checkpoint(model=model).write(str(path / "subclassed_checkpoint"))
    predictions = model.predict(features, verbose=0)
    np.savez_compressed(path / "subclassed.npz", predictions=predictions)


def write_points(path):
    """Writes a recovery point."""
    model = build_model()
    dataset = tf.data.Dataset.from_tensors(batch()).repeat(5)
    callback = tf_ext.callbacks.TableSnapshot(path / "points", steps=5)
    model.fit(dataset, callbacks=[callback], verbose=0)
    np.savez_compressed(path / "points.npz", **state(model))


def main(path):
    path = pathlib.Path(path, tf_ext.__version__)
    if IS_KERAS_3:
        snapshots = path / "snapshots"
        shutil.rmtree(snapshots, ignore_errors=True)
        for rule in RULES:
            write_snapshots(table(rule), f"{snapshots}/{rule}")
        for initializer in INITIALIZERS:
            one = table(initializer=initializer)
            write_snapshots(one, f"{snapshots}/{initializer}")
    folder = path / ("keras_3" if IS_KERAS_3 else "tf_keras")
    shutil.rmtree(folder, ignore_errors=True)
    write_model(folder)
    write_subclassed(folder)
    write_points(folder)


if __name__ == "__main__":
    main(sys.argv[1])
