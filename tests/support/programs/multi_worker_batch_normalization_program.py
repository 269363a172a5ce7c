# SPDX-License-Identifier: Apache-2.0
"""A worker that checks batch normalisation against one process."""

import json
import os
import tempfile

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext import distribute
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.layers import BatchNormalization

_FEATURES = 5
_BATCH = 12


def _built():
    layer = BatchNormalization(momentum=0.7)
    layer.build([None, _FEATURES])
    rng = np.random.default_rng(1)
    layer.set_weights(
        [rng.uniform(0.5, 2.0, [_FEATURES]) for _ in layer.weights]
    )
    return layer


def _variables(layer):
    return [v.value if IS_KERAS_3 else v for v in layer.weights]


def _step(layer, inputs, upstream):
    """Outputs, their inputs' gradient and that of the weights."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs, training=True)
        loss = tf.reduce_sum(outputs * upstream)
    gradients = tape.gradient(loss, [inputs, *_variables(layer)[:2]])
    return outputs, gradients[0], tf.stack(gradients[1:])


def _trained(data):
    """The weights of a small model after an epoch."""
    initializer = keras.initializers.RandomUniform(-1, 1, seed=1)
    inputs = keras.Input([_FEATURES])
    hidden = BatchNormalization(momentum=0.7)(inputs)
    hidden = keras.layers.Dense(4, kernel_initializer=initializer)(hidden)
    hidden = BatchNormalization(momentum=0.7)(hidden)
    outputs = keras.layers.Dense(1, kernel_initializer=initializer)(hidden)
    model = tf_ext.Model(inputs, outputs)
    sgd = keras.optimizers.SGD(0.05)
    model.compile(tf_ext.optimizers.Optimizer(sgd), "mse")
    model.fit(data, verbose=0)
    return model.get_weights()


def main():
    strategy = distribute.multi_worker_strategy()
    workers = strategy.num_replicas_in_sync
    worker = strategy.cluster_resolver.task_id
    alone = _built()
    with strategy.scope():
        layer = _built()

    def distributed(inputs, upstream):
        outputs, of_inputs, of_weights = _step(layer, inputs, upstream)
        context = tf.distribute.get_replica_context()
        of_weights = context.all_reduce(tf.distribute.ReduceOp.SUM, of_weights)
        return outputs, of_inputs, of_weights

    signature = [tf.TensorSpec([None, _FEATURES])] * 2
    run = tf.function(
        lambda *shares: strategy.run(distributed, shares), signature
    )
    rng = np.random.default_rng(2)
    # The first row a worker's share begins at: even, uneven, two of none.
    for borders in (
        [_BATCH * i // workers for i in range(workers + 1)],
        [0, *range(1, workers), _BATCH],
        [0, 0, *[_BATCH] * (workers - 1)],
        [0] * (workers + 1),
    ):
        share = slice(borders[worker], borders[worker + 1])
        inputs, upstream = (
            rng.normal(mean, 1.0, [borders[-1], _FEATURES]).astype(np.float32)
            for mean in (100.0, 0.0)
        )
        expected = _step(alone, tf.constant(inputs), upstream)
        found = run(tf.constant(inputs[share]), tf.constant(upstream[share]))
        np.testing.assert_allclose(found[0], expected[0][share], 0, 1e-4)
        np.testing.assert_allclose(found[1], expected[1][share], 0, 1e-4)
        np.testing.assert_allclose(found[2], expected[2], 1e-4, 1e-4)
        for one, other in zip(
            alone.get_weights(), _variables(layer), strict=True
        ):
            np.testing.assert_allclose(other.numpy(), one, 1e-5, 1e-6)
    # The last batch is one sample, and other workers have none of it.
    x = rng.normal(3.0, 2.0, [5 * _BATCH + 1, _FEATURES])
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(_BATCH)
    expected = _trained(data)
    with strategy.scope():
        found = _trained(data)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other, one, 1e-4, 1e-5)
    if worker == 0:  # Others need not take part.
        with tempfile.TemporaryDirectory() as folder:
            tf.train.Checkpoint(layer).save(os.path.join(folder, "layer"))
    print(json.dumps({"rank": worker, "replicas": workers}))


if __name__ == "__main__":
    main()
