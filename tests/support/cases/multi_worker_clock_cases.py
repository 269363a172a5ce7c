# SPDX-License-Identifier: Apache-2.0
"""What workers whose clocks differ by hours write into rows, and evict."""

from unittest import mock

import numpy as np
import tensorflow as tf
from models.small_models import batch, functional

import tf_ext
from cases.multi_worker_step_cases import optimizer, sum_table
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.regimes import clock

# Of worker 0, and how far those of the workers are from it.
PRESENT = 2_000_000_000
OFFSETS = (0, 3600, -3600)
# What rows store is counted from it.
EPOCH = 1_577_836_800

_POLICY = tf_ext.eviction.Unseen(seconds=600)


def _result(table):
    """What the rows of this worker have stored, and all evicts."""
    seen = table.export_rows()[1]["last_seen"].ravel()
    return {
        "seen": sorted(set((seen + EPOCH).tolist())),
        "evicted": tuple(table.evict()),
    }


def _clock(worker):
    seconds = tf.constant(PRESENT + OFFSETS[worker.rank], tf.int64)
    return mock.patch.object(clock, "seconds", lambda: tf.identity(seconds))


def _trained(worker, optimizer):
    with _clock(worker), worker.strategy.scope():
        table = sum_table("clocks", eviction=_POLICY)
        model = functional(table)
        model.compile(optimizer, "binary_crossentropy")
        data = tf.data.Dataset.from_tensor_slices(
            batch(np.random.default_rng(0), 64)
        )
        model.fit(data.batch(16), verbose=0)
        return _result(table)


def trained_by_clocks(worker):
    return _trained(worker, optimizer(0.1))


def scaled_by_clocks(worker):
    """tf_keras scales gradients that are summed already."""
    scaled = keras.mixed_precision.LossScaleOptimizer
    if IS_KERAS_3:
        sgd = keras.optimizers.SGD(0.1)
        return _trained(worker, tf_ext.optimizers.Optimizer(scaled(sgd)))
    return _trained(worker, scaled(optimizer(0.1)))


def pushed_by_clocks(worker):
    with _clock(worker), worker.strategy.scope():
        table = sum_table("clocks", eviction=_POLICY)
        table.push(range(100), np.ones([100, table.dim], np.float32))
        return _result(table)


CASES = ["trained_by_clocks", "scaled_by_clocks", "pushed_by_clocks"]
