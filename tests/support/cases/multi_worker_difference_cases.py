# SPDX-License-Identifier: Apache-2.0
"""Programs of synchronous workers that differ on the last one."""

import numpy as np
import tensorflow as tf
from models.small_models import batch, compiled, functional, table

import tf_ext
from tf_ext._keras import keras

SAMPLES, BATCH = 64, 16
_RATE, _DIM = 0.5, 4


def _differs(worker):
    return worker.rank == worker.size - 1


def _error(
    worker,
    rule=None,
    rate=_RATE,
    dim=_DIM,
    clipnorm=None,
    data=None,
    **arguments,
):
    """What building and training a model raises, as a text; or None."""
    try:
        with worker.strategy.scope():
            rows = tf_ext.SparseTable(
                "rows", dim, rule or tf_ext.optimizers.SparseSGD(), "normal"
            )
            sgd = keras.optimizers.SGD(rate, clipnorm=clipnorm)
            model = compiled(functional(rows), sgd)
        x, y = (_dataset(), None) if data is None else data
        model.fit(x, y, verbose=0, **arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _arrays(samples=SAMPLES):
    return batch(np.random.default_rng(0), samples)


def _dataset(size=BATCH, samples=SAMPLES):
    return tf.data.Dataset.from_tensor_slices(_arrays(samples)).batch(size)


def same(worker):
    """Names of objects, which Keras counts, may differ."""
    if _differs(worker):
        keras.optimizers.SGD()
        compiled(functional(table()), keras.optimizers.SGD())
    return _error(worker)


def dim(worker):
    return _error(worker, dim=8 if _differs(worker) else _DIM)


def rule(worker):
    rules = tf_ext.optimizers
    chosen = rules.SparseAdagrad if _differs(worker) else rules.SparseSGD
    return _error(worker, rule=chosen())


def rate_of_a_rule(worker):
    rate = 0.25 if _differs(worker) else 0.75
    return _error(worker, rule=tf_ext.optimizers.SparseSGD(rate))


def schedule(worker):
    steps = 7 if _differs(worker) else 5
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, steps, 0.5)
    return _error(worker, rate=rate)


def clipping(worker):
    norm = 1.0 if _differs(worker) else 2.0
    return _error(worker, clipnorm=norm)


def learning_rate(worker):
    """TensorFlow gives variables the values that they have on worker 0."""
    return _error(worker, rate=0.125 if _differs(worker) else _RATE)


def batch_size_of_arrays(worker):
    size = 8 if _differs(worker) else BATCH
    return _error(worker, data=_arrays(), batch_size=size)


def samples_of_arrays(worker):
    samples = 48 if _differs(worker) else SAMPLES
    return _error(worker, data=_arrays(samples), batch_size=BATCH)


def batch_size_of_a_dataset(worker):
    size = 8 if _differs(worker) else BATCH
    return _error(worker, data=(_dataset(size), None))


def batch_size_behind_a_map(worker):
    """TensorFlow does not know it, nor the number of batches."""
    size = 8 if _differs(worker) else BATCH
    data = _dataset(size).map(lambda *one: one).filter(lambda *_: True)
    return _error(worker, data=(data, None))


def samples_behind_a_map(worker):
    samples = 48 if _differs(worker) else SAMPLES
    data = _dataset(samples=samples).map(lambda *one: one)
    return _error(worker, data=(data.filter(lambda *_: True), None))


def epochs(worker):
    return _error(worker, epochs=2 if _differs(worker) else 1)


def data_of_their_own(worker):
    """Data that may differ."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    sizes = (8, 48) if _differs(worker) else (16, 64)
    data = _dataset(*sizes).with_options(options)
    return _error(worker, data=(data, None))


LEGAL = ["same", "learning_rate", "data_of_their_own"]
