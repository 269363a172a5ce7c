# SPDX-License-Identifier: Apache-2.0
"""Counts the bytes that training steps send through parameter servers.

    python tests/support/programs/parameter_server_network_program.py

Prints, as a line of JSON, a list with a dict for each dim: the dim, the steps
made, how many distinct signs a step has, how many rows the table has got, and
the bytes that a step sends, with pull and push and with stubs in their place.
"""

import ctypes
import fcntl
import json
import os
import pathlib
import socket
import struct
import sys
from unittest import mock

# Of linux/sched.h, linux/sockios.h and net/if.h.
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1

_SERVERS = 2
_DIMS = (1, 16)
_BATCH = 1024
# 24,576 distinct signs a step, each of them twice in it.
_SIGNS_A_SAMPLE = 24
_WARMUP_STEPS = 2
_STEPS = 5
_REPETITIONS = 3


def enter_own_network():
    """Moves this process and its children to a network namespace of their own.

    Without the permission to do so, the machine's loopback is measured,
    including other traffic. Other threads of the process are not moved.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # The latter is what users that are not root may be allowed to do.
    kinds = _CLONE_NEWNET, _CLONE_NEWUSER | _CLONE_NEWNET
    if all(libc.unshare(kind) != 0 for kind in kinds):
        error = os.strerror(ctypes.get_errno())
        print(f"no network of its own: {error}", file=sys.stderr)
        return
    with socket.socket() as any_socket:
        request = struct.pack("16sH14x", b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


if __name__ == "__main__":
    # Before there are threads: TensorFlow starts some when it is imported.
    enter_own_network()

import tensorflow as tf  # noqa: E402
from models.model_building import id_column  # noqa: E402

import tf_ext  # noqa: E402
from tf_ext._keras import keras  # noqa: E402
from tf_ext.regimes.exchange import Exchange  # noqa: E402


def loopback_bytes():
    """The bytes that the loopback has transferred so far, with headers."""
    for line in pathlib.Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[0])
    raise OSError("There is no loopback.")


def stubs():
    """Rows that are zeros made by the worker, gradients that are dropped."""

    def pull(self, requests, error=None):
        return [
            tf.zeros([tf.size(request.plan.signs), request.table.dim])
            for request in requests
        ]

    def push(self, gradients, hyperparameters, step, time=None, number=None):
        return tf.stack(
            [tf.size(gradient.signs, tf.int64) for gradient in gradients]
        )

    return mock.patch.multiple(Exchange, pull=pull, push=push)


def dataset():
    """Signs that no step before has had, made where the dataset is read."""
    distinct = _BATCH * _SIGNS_A_SAMPLE

    def batch(step):
        signs = distinct * step + tf.range(distinct, dtype=tf.int64)
        signs = tf.reshape(signs, [_BATCH, _SIGNS_A_SAMPLE])
        return tf.tile(signs, [1, 2]), tf.ones([_BATCH, 1])

    return tf.data.Dataset.range(1 << 40).map(batch)


def make_step(strategy, dim):
    """A training step of a model with a table on the servers."""
    with strategy.scope():
        table = tf_ext.SparseTable(f"dim{dim}", dim, "adagrad", "normal")
        layer = tf_ext.layers.EmbeddingFeatures([id_column("ids")], table)
        dense = keras.layers.Dense(1)
        dense.build([None, dim])
        optimizer = tf_ext.optimizers.Optimizer("sgd")
        variables = [table.shadow, *dense.trainable_variables]
        optimizer.build(variables)

    @tf.function
    def step(iterator):
        def replica(ids, labels):
            with tf.GradientTape() as tape:
                output = dense(layer({"ids": ids}, training=True))
                loss = tf.reduce_mean(tf.square(output - labels))
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables))
            return loss

        return strategy.run(replica, args=next(iterator))

    return table, step


def bytes_a_step(coordinator, step, iterator):
    """What a step sends, in the quietest of several runs."""

    def run(steps):
        for _ in range(steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()

    run(_WARMUP_STEPS)
    counted = []
    for _ in range(_REPETITIONS):
        before = loopback_bytes()
        run(_STEPS)
        counted.append((loopback_bytes() - before) / _STEPS)
    return min(counted)


def main():
    results = []
    with tf_ext.distribute.local_cluster(workers=1, ps=_SERVERS) as cluster:
        strategy = cluster.strategy()
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        for dim in _DIMS:
            iterator = iter(coordinator.create_per_worker_dataset(dataset))
            _, stubbed = make_step(strategy, dim)
            with stubs():
                stub_sent = bytes_a_step(coordinator, stubbed, iterator)
            table, step = make_step(strategy, dim)
            sent = bytes_a_step(coordinator, step, iterator)
            results.append(
                {
                    "dim": dim,
                    "distinct": _BATCH * _SIGNS_A_SAMPLE,
                    "rows": table.size(),
                    "steps": _WARMUP_STEPS + _REPETITIONS * _STEPS,
                    "bytes": sent,
                    "stub_bytes": stub_sent,
                }
            )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
