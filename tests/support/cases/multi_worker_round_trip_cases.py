# SPDX-License-Identifier: Apache-2.0
"""The collectives of a step that wait for each other."""

import graphlib
from unittest import mock

import numpy as np
import tensorflow as tf
from models.model_building import id_column

import tf_ext
from cases.multi_worker_step_cases import dot_batch, optimizer, sum_table
from tf_ext._keras import keras
from tf_ext.distribute.collectives import collectives_of


def collectives_in_a_row(worker):
    """Of each graph of `fit`: all collectives, and the most in a row.

    A collective comes after another one if it needs its result, or if
    automatic control dependencies keep their order.
    """
    graphs = {}

    def noting(method):
        def call(self, *args, **kwargs):
            graph = tf.compat.v1.get_default_graph()
            graphs[id(graph)] = graph
            return method(self, *args, **kwargs)

        return call

    with worker.strategy.scope():
        model = dense_model()
    workers = type(collectives_of(worker.strategy))
    with mock.patch.multiple(
        workers,
        all_to_all=noting(workers.all_to_all),
        _gather=noting(workers._gather),
    ):
        features, _ = dot_batch()
        labels = np.zeros([128, 1], np.float32)
        data = tf.data.Dataset.from_tensor_slices((features, labels))
        model.fit(data.batch(64), epochs=1, verbose=0)
    return sorted(_chain(graph) for graph in graphs.values())


def _chain(graph):
    before = {
        op: [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        for op in graph.get_operations()
    }
    depths = {}
    for op in graphlib.TopologicalSorter(before).static_order():
        depth = max((depths[other] for other in before[op]), default=0)
        depths[op] = depth + op.type.startswith("Collective")
    count = sum(op.type.startswith("Collective") for op in depths)
    return count, max(depths.values(), default=0)


class _Noting(keras.callbacks.Callback):
    """Notes numbers after each step."""

    def __init__(self, numbers):
        super().__init__()
        self._numbers = numbers
        self.noted = []

    def on_train_batch_end(self, batch, logs=None):
        self.noted.append(dict(self._numbers))


def reads_ahead(worker):
    """What has been read and asked after each step of two epochs."""
    numbers = {"read": 0, "asked": 0}
    features, _ = dot_batch()

    def batches():
        for _ in range(100):
            numbers["read"] += 1
            yield features["user"], np.zeros([128, 1], np.float32)

    def data(context):
        dataset = tf.data.Dataset.from_generator(
            batches,
            output_signature=(
                tf.TensorSpec([128], tf.int64),
                tf.TensorSpec([128, 1], tf.float32),
            ),
        )
        options = tf.data.Options()
        # It would read one more.
        options.experimental_optimization.inject_prefetch = False
        return dataset.with_options(options)

    workers = type(collectives_of(worker.strategy))
    gather = workers._gather

    def asking(self, *args):
        numbers["asked"] += tf.executing_eagerly()
        return gather(self, *args)

    with worker.strategy.scope():
        users = keras.Input((), dtype="int64")
        rows = tf_ext.layers.EmbeddingFeatures(
            [id_column("user")], sum_table()
        )({"user": users})
        model = tf_ext.Model(users, keras.layers.Dense(1)(rows))
        model.compile(optimizer(), "mse")
    noting = _Noting(numbers)
    with mock.patch.object(workers, "_gather", asking):
        model.fit(
            data,
            epochs=2,
            steps_per_epoch=3,
            callbacks=[noting],
            verbose=0,
        )
    return noting.noted


def dense_model():
    """A model with dense weights and a metric besides the loss."""
    columns = [id_column("user"), id_column("items", "mean")]
    ids = {
        "user": keras.Input((), dtype="int64", name="user"),
        "items": keras.Input((None,), dtype="int64", name="items"),
    }
    rows = tf_ext.layers.EmbeddingFeatures(columns, sum_table())(ids)
    model = tf_ext.Model(ids, keras.layers.Dense(1, "sigmoid")(rows))
    model.compile(optimizer(), "mse", metrics=[keras.metrics.AUC()])
    return model
