# SPDX-License-Identifier: Apache-2.0
"""Training of small rows whose bits do not depend on who sums gradients.

The gradients are powers of two times small whole numbers: their sums are exact
in any order. They depend on the signs of differences from what is pulled, so a
bit of a row that differs soon makes others differ.
"""

import numpy as np
import tensorflow as tf
from clusters.case_workers import export, merge_rows
from models.model_building import id_column

import tf_ext
from tf_ext._keras import keras

_STEPS, _BATCH, _BAG, _EVICT_AT = 12, 64, 4, 4
_DIMS = {"adagrad": 8, "adam": 4, "shared": 4, "dense_adam": 4}
# Some rows shrink in each step, whoever pushes them.
_OPTIONS = {
    "adagrad": {"l2": 0.25, "l1": 0.002},
    "adam": {},
    # Ids without a row train one of three.
    "shared": {"l2": 0.125, "unknown": "shared", "unknown_buckets": 3},
    "dense_adam": {"l2": 0.25},
}
_COUNTS = ("rows", "waiting", "admitted", "evicted", "saturated")


def dataset():
    """Batches of ids that come and go, some rare, clicks and targets."""
    rng = np.random.default_rng(3)
    size = _STEPS * _BATCH
    drift = np.arange(size) // (2 * _BATCH) * 20
    features = {
        "user": rng.integers(0, 90, size) + drift,
        "items": -1 - rng.integers(0, 300, (size, _BAG)) - drift[:, np.newaxis],
        "bought": rng.integers(0, 4, (size, 1)).astype(np.float32) / 4,
    }
    targets = rng.normal(size=(size, 2 * sum(_DIMS.values())))
    return tf.data.Dataset.from_tensor_slices(
        (features, targets.astype(np.float32))
    ).batch(_BATCH)


def sign_loss(targets, outputs):
    """A loss with gradients of 1 and -1."""
    return tf.reduce_sum(tf.abs(outputs - targets), -1)


def make_model(dtype="float16", slot_dtype="bfloat16"):
    """A model that returns the embeddings, which are compared with targets."""
    rules = {
        "adagrad": tf_ext.optimizers.SparseAdagrad(0.125, 1e-4),
        "adam": tf_ext.optimizers.SparseAdam(0.0625),
        "shared": tf_ext.optimizers.SparseAdam(0.0625),
        "dense_adam": tf_ext.optimizers.SparseAdam(0.0625, absent="decay"),
    }
    tables = [
        tf_ext.SparseTable(
            name,
            dim,
            rules[name],
            "normal",
            seed=7,
            admission=tf_ext.admission.Count(2, forget=8),
            eviction=tf_ext.eviction.Unseen(steps=3),
            statistics=["show", "click"],
            dtype=dtype,
            slot_dtype=slot_dtype,
            **_OPTIONS[name],
        )
        for name, dim in _DIMS.items()
    ]
    columns = [id_column("user"), id_column("items", "mean")]
    inputs = {
        "user": keras.Input((), dtype="int64", name="user"),
        "items": keras.Input((_BAG,), dtype="int64", name="items"),
        "bought": keras.Input((1,), name="bought"),
    }
    features = tf_ext.layers.EmbeddingFeatures(
        dict.fromkeys(tables, columns), click="bought"
    )(inputs)
    outputs = keras.layers.Concatenate()(list(features.values()))
    model = tf_ext.Model(inputs, outputs)
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.SGD(1.0)), sign_loss
    )
    return model


def fit(model, **kwargs):
    """Trains, evicts, and returns `{table: (rows, counts)}` of this worker.

    Rows are `{field: {sign: values}}`, counts `{name: number}`.
    """
    evict = tf_ext.callbacks.Evict(steps=_EVICT_AT, decay=0.5)
    model.fit(dataset(), verbose=0, shuffle=False, callbacks=[evict], **kwargs)
    return {
        table.name: (
            export(table),
            {name: table.stats()[name] for name in _COUNTS},
        )
        for table in model.tables
    }


def trained(worker):
    with worker.strategy.scope():
        model = make_model()
    return fit(model)


def assert_same_bits(found, expected):
    """Checks the results of all workers against the one of one process.

    Args:
      found: list of results of `fit`, one for each process that owns rows.
      expected: result of `fit`.
    """
    assert expected.keys() == {*_DIMS}
    for name, (fields, counts) in expected.items():
        for result in found:
            assert result[name][1] == counts, (name, result[name][1], counts)
        merged = merge_rows([result[name][0] for result in found])
        assert _bits(merged) == _bits(fields), name


def _bits(fields):
    return {
        (name, sign): np.asarray(values).tobytes()
        for name, rows in fields.items()
        for sign, values in rows.items()
    }
