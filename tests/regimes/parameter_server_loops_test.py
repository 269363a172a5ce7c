# SPDX-License-Identifier: Apache-2.0
"""Loops that are not `tf_ext.Model.fit`, and policies, on a cluster."""

import numpy as np
import pytest
import tensorflow as tf
from clusters import parameter_server_util as util
from models import small_models
from models.model_building import generator, id_column, number, rows_of
from models.small_models import compiled, functional, table
from saving_util import TestCase

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [
    pytest.mark.process("shared_cluster"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "CustomLoopTest::test_*",
        "MixedPrecisionTest::test_bfloat16",
        "MixedPrecisionTest::test_float16_with_a_fixed_scale",
    ),
]

setUpModule = util.shared


def _counting_model(cls):
    """A model whose rows count their updates, and its table."""
    counts = tf_ext.SparseTable(
        "counts", 1, tf_ext.optimizers.SparseSGD(), "zeros"
    )
    inputs = {"id": keras.Input((), dtype="int64", name="id")}
    layer = tf_ext.layers.EmbeddingFeatures([id_column("id")], counts)
    # A dense weight, too: of which the loss knows nothing.
    outputs = keras.layers.Dense(1, kernel_initializer="ones")(layer(inputs))
    model = cls(inputs, outputs)
    model.layers[-1].trainable = False
    # The gradient of a sample's row is -1.
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.SGD(1.0)),
        keras.losses.MeanAbsoluteError(reduction="sum"),
        metrics=[keras.metrics.MeanAbsoluteError(name="mae")],
    )
    return model, counts


class KerasFitTest(TestCase):
    """tf_keras's own `fit`, which Keras 3 does not have here."""

    def setUp(self):
        super().setUp()
        if IS_KERAS_3:
            self.skipTest("Keras 3's fit refuses the strategy.")

    def test_counts_every_sample(self):
        with util.shared().strategy.scope():
            model, counts = _counting_model(keras.Model)

        def dataset(_):
            # Other ids on each worker.
            ids = tf.data.Dataset.random().batch(4)
            return ids.map(lambda n: ({"id": n % 50}, tf.fill([4, 1], 1e6)))

        history = model.fit(
            keras.utils.experimental.DatasetCreator(dataset),
            epochs=3,
            steps_per_epoch=100,
            verbose=0,
        )
        self.assertLen(history.epoch, 3)
        self.assertEqual(number(model.optimizer.iterations), 300)
        updates = sum(float(row[0]) for row in rows_of(counts).values())
        self.assertEqual(updates, 300 * 4)

    def test_learns(self):
        arrays = small_models.batch(generator(self), 1024)

        def dataset(_):
            whole = tf.data.Dataset.from_tensor_slices(arrays)
            return whole.shuffle(1024).repeat().batch(32)

        creator = keras.utils.experimental.DatasetCreator(dataset)
        with util.shared().strategy.scope():
            model = compiled(
                functional(table("adagrad"), keras.Model), metrics=["AUC"]
            )
        model.fit(creator, epochs=3, steps_per_epoch=32, verbose=0)
        found = model.evaluate(creator, steps=32, verbose=0, return_dict=True)
        self.assertGreater(found["auc"], 0.95)


def _step(strategy, model, update):
    """A step on a worker, which calls `update(gradients, variables, ids)`."""

    def replica(ids):
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(model({"id": ids}, training=True))
        variables = model.trainable_variables
        return update(tape.gradient(loss, variables), variables, ids)

    return tf.function(lambda ids: strategy.run(replica, args=(ids,)))


class CustomLoopTest(TestCase):
    def test_a_branch_updates(self):
        strategy = util.shared().strategy
        with strategy.scope():
            model, counts = _counting_model(tf_ext.Model)
            model.optimizer.build(model.trainable_variables)

        def update_some(gradients, variables, ids):
            def update():
                model.optimizer.apply_gradients(zip(gradients, variables))
                return 1

            return tf.cond(ids[0] > 5, update, lambda: 0)

        step = _step(strategy, model, update_some)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        steps = [
            coordinator.schedule(step, args=(tf.constant(batch),))
            for batch in ([7, 8], [3, 4], [8, 8])
        ]
        self.assertEqual([int(one.fetch()) for one in steps], [1, 0, 1])
        found = {sign: float(row[0]) for sign, row in rows_of(counts).items()}
        self.assertEqual(found, {3: 0, 4: 0, 7: 1, 8: 3})

    def test_counts_are_exact(self):
        strategy = util.shared().strategy
        with strategy.scope():
            model, counts = _counting_model(tf_ext.Model)
            optimizer = model.optimizer
            optimizer.build(model.trainable_variables)

        def update(gradients, variables, _):
            optimizer.apply_gradients(zip(gradients, variables))

        step = _step(strategy, model, update)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        ids = generator(self).integers(0, 20, [300, 4])
        for batch in ids:
            coordinator.schedule(step, args=(tf.constant(batch),))
        coordinator.join()
        self.assertEqual(number(optimizer.iterations), 300)
        expected = dict(zip(*np.unique(ids, return_counts=True), strict=True))
        found = {sign: float(row[0]) for sign, row in rows_of(counts).items()}
        self.assertEqual(found, expected)


class AccumulationTest(TestCase):
    def test_is_refused_without_compile(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras has none.")
        dense = keras.optimizers.SGD(gradient_accumulation_steps=2)
        with util.shared().strategy.scope():
            model = functional(table())
            optimizer = tf_ext.optimizers.Optimizer(dense)
            with self.assertRaisesRegex(
                ValueError, "must be None under .*gradient_accumulation_steps=2"
            ):
                optimizer.build(model.trainable_variables)


class MixedPrecisionTest(TestCase):
    def setUp(self):
        super().setUp()
        self.policy = keras.mixed_precision.set_global_policy
        self.addCleanup(self.policy, "float32")
        features, labels = small_models.batch(generator(self), 256)
        data = tf.data.Dataset.from_tensor_slices((features, labels))
        self.data = data.batch(16)

    def losses(self, strategy, **options):
        with strategy.scope():
            dense = keras.optimizers.SGD(0.5, **options)
            model = compiled(functional(table("adagrad")), dense)
        history = model.fit(
            self.data, epochs=2, verbose=0, max_inflight_steps=1
        )
        return history.history["loss"]

    def assert_as_in_one_process(self, **options):
        alone = tf.distribute.get_strategy()
        self.assertAllClose(
            self.losses(util.shared().strategy, **options),
            self.losses(alone, **options),
            1e-3,
            1e-3,
        )

    def test_bfloat16(self):
        self.policy("mixed_bfloat16")
        self.assert_as_in_one_process()

    def test_float16_with_a_fixed_scale(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras refuses the policy under the strategy.")
        self.policy("mixed_float16")
        self.assert_as_in_one_process(loss_scale_factor=128.0)

    def test_float16_with_a_dynamic_scale_is_refused(self):
        self.policy("mixed_float16")
        message = (
            r"Dynamic loss scaling \(of the policy mixed_float16.* Use "
            "mixed_bfloat16, or a fixed loss_scale_factor"
            if IS_KERAS_3
            else "Mixed precision is not supported with"
        )
        with self.assertRaisesRegex(ValueError, message):
            self.losses(util.shared().strategy)


class TwoTasks(tf_ext.Model):
    """Two tasks, whose conflict the training step projects out."""

    def __init__(self):
        super().__init__()
        self.heads = [keras.layers.Dense(1) for _ in range(2)]

    def call(self, inputs):
        return [head(inputs) for head in self.heads]

    def train_step(self, data):
        with tf.GradientTape(persistent=True) as tape:
            losses = [tf.reduce_sum(one) for one in self(data[0])]
        variables = self.trainable_variables
        gradients = tf_ext.optimizers.pcgrad(tape, losses, variables)
        self.optimizer.apply_gradients(zip(gradients, variables))
        return {"total": tf.add_n(losses)}


class TasksTest(tf.test.TestCase):
    def test_are_refused(self):
        data = tf.data.Dataset.from_tensors((tf.ones([2, 3]), tf.ones([2, 1])))
        with util.shared().strategy.scope():
            model = TwoTasks()
            model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        with self.assertRaisesRegex(
            ValueError,
            "pcgrad must be called without a tf.distribute strategy.*Under "
            "ParameterServerStrategy, a replica or worker",
        ):
            model.fit(data, verbose=0)


if __name__ == "__main__":
    tf.test.main()
