# SPDX-License-Identifier: Apache-2.0
"""A cluster on this machine, and dense models to train on it."""

import contextlib
import sys
import threading
import unittest.mock

import numpy as np
import processes
import tensorflow as tf

import tf_ext
from tf_ext._keras import keras
from tf_ext.distribute import local

FEATURES = 8
_IDS = 50


_shared = None


def shared():
    """Two workers and two parameter servers, which no test may end.

    The first caller starts them and connects to them; `stop_shared` ends them.
    """
    global _shared
    if _shared is None:
        _shared = Cluster()
        _shared.start()
    return _shared


def stop_shared():
    """Ends what `shared` started, if it did; when all tests have run."""
    global _shared
    if _shared is not None:
        _shared.stop()
        _shared = None


@contextlib.contextmanager
def local_cluster(workers, ps, **options):
    """As that of tf_ext, which imports TensorFlow once more in each cluster."""
    with contextlib.ExitStack() as stack:
        with unittest.mock.patch.object(local, "ForkServer", _SharedForks):
            cluster = tf_ext.distribute.local_cluster(workers, ps, **options)
            stack.enter_context(cluster)
        yield cluster


class _SharedForks:
    """A `ForkServer` that is not closed with a cluster: that of this process.

    Args:
      environment: dict, as of `ForkServer`.
    """

    def __init__(self, environment):
        del environment  # `start` gets that of each process.
        server = processes.fork_server(processes.program_environment())
        self.start = server.start

    def close(self):
        pass


class Cluster:
    """Workers and parameter servers of a module's tests."""

    def __init__(self):
        self._stack = contextlib.ExitStack()

    def start(self, workers=2, ps=2, **options):
        """Starts the processes and connects to them; for setUpModule.

        What TensorFlow made before is lost by that, also what is `shared`.
        """
        cluster = local_cluster(workers, ps, **options)
        self.processes = self._stack.enter_context(cluster)
        self.strategy = self.processes.strategy()

    def stop(self):
        """Ends the processes; for tearDownModule."""
        self._stack.close()


@contextlib.contextmanager
def recording_fetches():
    """Yields a list of the names of threads that fetch results of steps."""
    values = sys.modules["tensorflow.python.distribute.coordinator.values"]
    fetch = values.RemoteValueImpl._copy_to_local
    threads = []

    def recorded(value):
        threads.append(threading.current_thread().name)
        return fetch(value)

    with unittest.mock.patch.object(
        values.RemoteValueImpl, "_copy_to_local", recorded
    ):
        yield threads


def data(samples=200, batch=32, seed=0):
    """A dataset of features and labels, in a fixed order."""
    return tf.data.Dataset.from_tensor_slices(arrays(samples, seed)).batch(
        batch
    )


def arrays(samples=200, seed=0):
    """`(features, labels)` as arrays."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(samples, FEATURES)).astype(np.float32)
    ids = rng.integers(0, _IDS, (samples, 1))
    labels = numbers.sum(1, keepdims=True) + ids % 2 > 0.5
    features = {"numbers": numbers, "id": ids}
    return features, labels.astype(np.float32)


def model(optimizer="adam", metrics=("AUC", "accuracy"), **options):
    """A compiled model; all of them start with the same weights."""
    inputs = {
        "numbers": keras.Input([FEATURES], name="numbers"),
        "id": keras.Input([1], dtype="int64", name="id"),
    }
    uniform = keras.initializers.RandomUniform
    embedding = keras.layers.Embedding(_IDS, 4, uniform(-0.5, 0.5, seed=1))
    embedded = keras.layers.Flatten()(embedding(inputs["id"]))
    hidden = keras.layers.Concatenate()([inputs["numbers"], embedded])
    for units, activation, seed in ((8, "tanh", 2), (1, "sigmoid", 3)):
        hidden = keras.layers.Dense(
            units, activation, kernel_initializer=uniform(-0.5, 0.5, seed=seed)
        )(hidden)
    return compiled(tf_ext.Model(inputs, hidden), optimizer, metrics, **options)


def compiled(made, optimizer="adam", metrics=(), **options):
    """The model, compiled with a wrapped optimizer."""
    made.compile(
        tf_ext.optimizers.Optimizer(optimizer),
        "binary_crossentropy",
        metrics=list(metrics),
        **options,
    )
    return made
