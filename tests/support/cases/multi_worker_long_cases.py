# SPDX-License-Identifier: Apache-2.0
"""The graph of a step, and many steps."""

import os
import pathlib
import re

import numpy as np
import tensorflow as tf
from models.model_building import id_column

import tf_ext
from tf_ext import optimizers
from tf_ext._keras import IS_KERAS_3, keras

_LOOP_STEPS = int(os.environ.get("TF_EXT_TEST_STEPS", "10000"))
_FIT_STEPS = int(os.environ.get("TF_EXT_TEST_STEPS", "2000"))


def _wide_deep():
    """A model of a wide and a deep table."""
    ids = {"user": keras.Input((), dtype="int64", name="user")}
    columns = [id_column("user")]
    wide = tf_ext.SparseTable("wide", 1, optimizers.SparseFtrl(), "zeros")
    deep = tf_ext.SparseTable("deep", 4, optimizers.SparseAdagrad(), "normal")
    features = tf_ext.layers.EmbeddingFeatures({wide: columns, deep: columns})(
        ids
    )
    hidden = keras.layers.Dense(2, "tanh")(features["deep"])
    logits = keras.layers.Dense(1)(
        keras.layers.Concatenate()([hidden, features["wide"]])
    )
    model = tf_ext.Model(ids, logits)
    model.compile(tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.1)), "mse")
    return model


def _train_function(worker, model):
    signature = [
        {"user": tf.TensorSpec([None], tf.int64)},
        tf.TensorSpec([None, 1], tf.float32),
    ]

    @tf.function(autograph=False, input_signature=signature)
    def train(features, targets):
        def step(features, targets):
            return model.train_step((features, targets))["loss"]

        return worker.strategy.run(step, args=(features, targets))

    return train


def collectives_in_graph(worker):
    """What a step's graph has, operation type -> names.

    Of collectives, and of the ops on tables.
    """
    with worker.strategy.scope():
        model = _wide_deep()
    graph = _train_function(worker, model).get_concrete_function().graph
    graphs = [graph.as_graph_def()]
    operations = [
        *graphs[0].node,
        *(n for f in graphs[0].library.function for n in f.node_def),
    ]
    found = {}
    for node in operations:
        if node.op.startswith(("Collective", "TfExt>SparseTable")):
            found.setdefault(node.op, []).append(node.name)
    return found


def _memory():
    """Resident bytes and threads of this process."""
    status = pathlib.Path("/proc/self/status").read_text()
    kilobytes, threads = (
        int(re.search(rf"^{key}:\s*(\d+)", status, re.MULTILINE).group(1))
        for key in ("VmRSS", "Threads")
    )
    return kilobytes * 1024, threads


def _batches(worker, count=97):
    """Small batches of many sizes, of few ids."""
    rng = np.random.default_rng(worker.rank)
    for size in rng.integers(1, 9, count):
        ids = rng.integers(0, 50, size)
        yield {"user": ids}, np.ones([size, 1], np.float32)


def long_custom_loop(worker):
    """Resident memory and threads, at a tenth of the way each."""
    with worker.strategy.scope():
        model = _wide_deep()
    train = _train_function(worker, model)
    batches = [tf.nest.map_structure(tf.constant, b) for b in _batches(worker)]
    measured = []
    for index in range(_LOOP_STEPS):
        train(*batches[index % len(batches)])
        if (index + 1) % (_LOOP_STEPS // 10) == 0:
            measured.append(_memory())
    return measured


class _Measure(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.measured = []
        self._steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self._steps += 1
        if self._steps % (_FIT_STEPS // 10) == 0:
            self.measured.append(_memory())


def long_fit(worker):
    """The same in `fit`."""
    with worker.strategy.scope():
        model = _wide_deep()
    measure = _Measure()
    signature = (
        {"user": tf.TensorSpec([None], tf.int64)},
        tf.TensorSpec([None, 1], tf.float32),
    )
    model.fit(
        lambda context: tf.data.Dataset.from_generator(
            lambda: _batches(worker), output_signature=signature
        ).repeat(),
        steps_per_epoch=_FIT_STEPS,
        callbacks=[measure],
        verbose=0,
    )
    return measure.measured


# tf_keras's fit makes new keys for TensorFlow's own collectives.
LONG = ["long_custom_loop", "long_fit"] if IS_KERAS_3 else ["long_custom_loop"]
