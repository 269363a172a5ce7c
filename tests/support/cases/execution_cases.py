# SPDX-License-Identifier: Apache-2.0
"""What tests of `steps_per_execution` on a cluster have in common."""

import tensorflow as tf
from clusters import parameter_server_util as util
from models import small_models
from models.model_building import generator, number
from saving_util import TestCase, contents

from tf_ext._keras import keras


def adam():
    return keras.optimizers.Adam(0.05, clipnorm=0.1)


class ExecutionsCase(TestCase):
    """Compares models that are trained in one process and on a cluster."""

    # parameter_server_util.Cluster.
    cluster = None
    # Of an epoch; the last one is smaller.
    batches = 13

    def data(self, batches=None):
        samples = 16 * (batches or self.batches) - 5
        features, labels = small_models.batch(generator(self), samples)
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(16)

    def make(self, strategy, rule="adam", dense=adam, **options):
        with strategy.scope():
            return small_models.compiled(
                small_models.functional(small_models.table(rule)),
                dense(),
                metrics=["AUC", "accuracy"],
                **options,
            )

    def alone(self, **options):
        return self.make(tf.distribute.get_strategy(), **options)

    def spread(self, steps=4, **options):
        return self.make(
            self.cluster.strategy, steps_per_execution=steps, **options
        )

    def assert_same_model(self, alone, spread):
        self.assert_same_dense(alone, spread)
        here, there = (contents(m.tables[0]) for m in (alone, spread))
        for field, rows in here.items():
            self.assertCountEqual(there[field], rows)
            for sign, values in rows.items():
                self.assertAllClose(there[field][sign], values, 1e-5, 1e-6)
        self.assertEqual(
            number(spread.optimizer.iterations),
            number(alone.optimizer.iterations),
        )

    def assert_same_dense(self, alone, spread):
        for mine, theirs in zip(
            alone.layers[-1].weights, spread.layers[-1].weights, strict=True
        ):
            self.assertAllClose(
                tf.convert_to_tensor(theirs),
                tf.convert_to_tensor(mine),
                1e-6,
                1e-6,
            )


def check_a_worker_that_is_killed(test, **options):
    """Has a worker killed within executions.

    Args:
      test: tf.test.TestCase.
      **options: of `fit`.
    """
    cluster = util.Cluster()
    test.addCleanup(cluster.stop)
    cluster.start()
    with cluster.strategy.scope():
        model = util.model(steps_per_execution=8)

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 103:
                cluster.processes.kill("worker", 0)

    history = model.fit(
        util.data(3200, 8), callbacks=[Kill()], verbose=0, **options
    )
    test.assertLen(history.epoch, 1)
    # Its executions are run again: what they had applied counts twice.
    test.assertBetween(number(model.optimizer.iterations), 400, 416)
