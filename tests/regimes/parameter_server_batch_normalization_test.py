# SPDX-License-Identifier: Apache-2.0
"""`layers.BatchNormalization` on a cluster, against one process."""

import os
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from clusters import parameter_server_util as util

import tf_ext
from tf_ext._keras import keras
from tf_ext.layers import BatchNormalization

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]

_BATCH = 16

setUpModule = util.shared


def _model(momentum, learning_rate=0.0):
    def initializer(seed):
        return keras.initializers.RandomUniform(-0.5, 0.5, seed=seed)

    inputs = keras.Input([util.FEATURES], name="numbers")
    hidden = BatchNormalization(momentum=momentum, name="first")(inputs)
    hidden = keras.layers.Dense(4, kernel_initializer=initializer(1))(hidden)
    hidden = BatchNormalization(momentum=momentum, name="second")(hidden)
    hidden = keras.layers.Dense(
        1, "sigmoid", kernel_initializer=initializer(2)
    )(hidden)
    return util.compiled(
        tf_ext.Model(inputs, hidden), keras.optimizers.SGD(learning_rate)
    )


def _averages(model):
    return _averages_of(model.get_layer("first"))


def _averages_of(layer):
    return [
        tf.convert_to_tensor(v).numpy().astype(np.float64)
        for v in (layer.moving_mean, layer.moving_variance)
    ]


def _samples(batches):
    rng = np.random.default_rng(4)
    shape = [batches * _BATCH, util.FEATURES]
    x = rng.normal(rng.normal(size=[1, util.FEATURES]), 2.0, shape)
    y = rng.uniform(size=[len(x), 1]) < 0.5
    return x.astype(np.float32), y.astype(np.float32)


class BatchNormalizationTest(tf.test.TestCase, parameterized.TestCase):
    def model(self, *args):
        with util.shared().strategy.scope():
            return _model(*args)

    def fit(self, model, x, y, **options):
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(_BATCH)
        model.fit(data, verbose=0, **options)

    @parameterized.parameters(0.0, 0.99)
    def test_one_step_at_a_time_is_as_one_process(self, momentum):
        x, y = _samples(12)
        x, y = x[:-5], y[:-5]
        alone, spread = _model(momentum, 0.1), self.model(momentum, 0.1)
        self.fit(alone, x, y)
        self.fit(spread, x, y, max_inflight_steps=1)
        for one, other in zip(
            alone.get_weights(), spread.get_weights(), strict=True
        ):
            self.assertAllClose(one, other, 1e-5, 1e-6)
        self.assertAllClose(
            alone.predict(x, verbose=0), spread.predict(x, verbose=0), 1e-5
        )

    def test_every_step_counts_once(self):
        # Of batches that are alike, the averages tell the number.
        steps, momentum = 300, 0.995
        x, y = _samples(1)
        x, y = np.tile(x, [steps, 1]), np.tile(y, [steps, 1])
        model = self.model(momentum)
        self.fit(model, x, y, max_inflight_steps=8)
        mean, variance = _averages(model)
        left = momentum**steps
        x = x[:_BATCH].astype(np.float64)
        # One step less would be 1.4e-3 off.
        self.assertAllClose(mean, (1 - left) * x.mean(0), 5e-5)
        self.assertAllClose(variance, left + (1 - left) * x.var(0), 5e-5)

    def test_averages_are_those_of_all_workers_samples(self):
        # With next to no decay the order of the steps does not matter.
        steps, momentum = 200, 1 - 2.0**-14
        x, y = _samples(steps)
        model = self.model(momentum)
        self.fit(model, x, y, max_inflight_steps=8)
        mean, variance = _averages(model)
        left = momentum**steps
        batches = x.astype(np.float64).reshape([steps, _BATCH, -1])
        variances = batches.var(1).mean(0)
        # One batch in 200 of an order unknown, decayed by 1 % at most.
        self.assertAllClose(mean / (1 - left), x.mean(0, np.float64), 0, 4e-3)
        self.assertAllClose((variance - left) / (1 - left), variances, 2e-3)
        self.assertAllClose(
            variances + batches.mean(1).var(0), x.var(0, np.float64), 1e-5
        )

    def test_an_empty_batch_changes_nothing(self):
        model = self.model(0.5)
        first = model.get_layer("first")
        before = _averages(model)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(
            util.shared().strategy
        )
        step = tf.function(lambda x: first(x, training=True))
        for rows in (0, 2):
            coordinator.schedule(step, (tf.ones([rows, util.FEATURES]),))
            coordinator.join()
            if rows == 0:
                self.assertAllEqual(_averages(model), before)
        ones = np.ones(util.FEATURES)
        self.assertAllClose(_averages(model), [0.5 * ones, 0.5 * ones])

    def test_partitioned_variables(self):
        partitioner = tf.distribute.experimental.partitioners
        strategy = util.shared().processes.strategy(
            variable_partitioner=partitioner.FixedShardsPartitioner(2)
        )
        with strategy.scope():
            layer = BatchNormalization(momentum=0.5)
            layer.build([None, 5])
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        coordinator.schedule(
            tf.function(lambda x: layer(x, training=True)),
            (tf.reshape(tf.range(10.0), [2, 5]),),
        )
        coordinator.join()
        mean, variance = _averages_of(layer)
        self.assertAllClose(mean, (2.5 + np.arange(5)) / 2)
        self.assertAllClose(variance, [(1 + 2.5**2) / 2] * 5)

    @parameterized.parameters("weights.weights.h5", "checkpoint")
    def test_weights_go_into_one_process_and_back(self, name):
        x, y = _samples(4)

        def copy(source, target):
            # What is restored later must not be written over.
            folder = tempfile.mkdtemp(dir=self.get_temp_dir())
            path = os.path.join(folder, name)
            if name == "checkpoint":
                saved = tf.train.Checkpoint(model=source).save(path)
                tf.train.Checkpoint(model=target).restore(saved)
            else:
                source.save_weights(path)
                target.load_weights(path)

        spread, alone, again = self.model(0.7), _model(0.7), self.model(0.7)
        self.fit(spread, x, y, max_inflight_steps=1)
        copy(spread, alone)
        self.assertAllEqual(_averages(alone), _averages(spread))
        copy(alone, again)
        for model, options in (
            (alone, {}),
            (again, {"max_inflight_steps": 1}),
        ):
            self.fit(model, x, y, **options)
        self.assertAllClose(_averages(alone), _averages(again), 1e-5)


if __name__ == "__main__":
    tf.test.main()
