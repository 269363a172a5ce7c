# SPDX-License-Identifier: Apache-2.0
"""Models under MirroredStrategy, on two logical devices of one machine."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases import uneven_share_cases
from models import small_models
from models.model_building import generator, mirrored_strategy, number, rows_of
from models.small_models import Subclassed, compiled, functional, table

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.feature_column import category_column
from tf_ext.training.losses import losses_add_up

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "MirroredTest::test_a_layer_of_tf_keras_that_misses_updates",
        "MirroredTest::test_accumulating_gradients_is_refused",
        "MirroredTest::test_added_losses_beside_sums_over_replicas0",
        "MirroredTest::test_gradients_are_means_over_all_samples",
        "MirroredTest::test_losses_of_outputs_are_means_over_all_samples",
        "MirroredTest::test_outputs_without_losses_beside_sums",
        "MirroredTest::test_several_steps_an_execution",
        "MirroredTest::test_sums_beside_means_are_refused",
        "MirroredTest::test_two_replicas_are_as_one_functional",
    ),
]

_BATCH = 16


class MirroredTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.strategy = mirrored_strategy()

    def data(self, size):
        features, labels = small_models.batch(generator(self), size)
        dataset = tf.data.Dataset.from_tensor_slices((features, labels))
        return dataset.batch(_BATCH)

    def assert_same(self, alone, mirrored, data, rtol=1e-5, atol=1e-6):
        rows, others = rows_of(alone.tables[0]), rows_of(mirrored.tables[0])
        self.assertCountEqual(rows, others)
        for sign, row in rows.items():
            self.assertAllClose(row, others[sign], rtol=rtol, atol=atol)
        for one, two in zip(
            alone.get_weights(), mirrored.get_weights(), strict=True
        ):
            self.assertAllClose(one, two, rtol=rtol, atol=atol)
        for method in ("evaluate", "predict"):
            self.assertAllClose(
                getattr(alone, method)(data, verbose=0),
                getattr(mirrored, method)(data, verbose=0),
                rtol=rtol,
                atol=atol,
            )

    @parameterized.named_parameters(
        ("functional", functional, "adagrad"),
        ("subclassed", Subclassed, "adam"),
    )
    def test_two_replicas_are_as_one(self, make, rule):
        data = self.data(64)
        alone = compiled(make(table(rule)))
        with self.strategy.scope():
            mirrored = compiled(make(table(rule)))
        for model in (alone, mirrored):
            model.fit(data, epochs=3, verbose=0)
            self.assertEqual(number(model.optimizer.iterations), 12)
        # Adam divides by gradients: sums in another order differ by more.
        self.assert_same(alone, mirrored, data, atol=1e-5)

    def test_a_last_batch_that_gives_one_replica_less(self):
        data = self.data(2 * _BATCH + 3)
        alone = compiled(functional(table()))
        with self.strategy.scope():
            mirrored = compiled(functional(table()))
        for model in (alone, mirrored):
            model.fit(data, epochs=2, verbose=0)
        self.assert_same(alone, mirrored, data)
        self.assertEqual(number(mirrored.optimizer.iterations), 6)

    def test_shares_of_different_sizes(self):
        self.check_uneven_shares(uneven_share_cases.MODELS["own_loss"])

    @parameterized.named_parameters(
        *(uneven_share_cases.MODELS | uneven_share_cases.SINGLE).items()
    )
    @pytest.mark.slow
    def test_more_shares_of_different_sizes(self, make):
        self.check_uneven_shares(make)

    def check_uneven_shares(self, make):
        none = tf.distribute.get_strategy()
        expected = uneven_share_cases.trained(none, make)
        found = uneven_share_cases.trained(self.strategy, make)
        uneven_share_cases.assert_same(self, [found], expected)

    @parameterized.parameters("sum", "none")
    def test_sums_add_up(self, reduction):
        # tf_keras takes "none" for a loss of each sample in `fit`.
        data = self.data(2 * _BATCH + 3)
        models = []
        for strategy in (tf.distribute.get_strategy(), self.strategy):
            with strategy.scope():
                model = functional(table())
                model.compile(
                    tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.01)),
                    keras.losses.BinaryCrossentropy(reduction=reduction),
                )
            model.fit(data, verbose=0)
            models.append(model)
        alone, mirrored = models
        for one, two in zip(
            alone.get_weights(), mirrored.get_weights(), strict=True
        ):
            self.assertAllClose(one, two, 1e-5, 1e-6)

    def test_sums_beside_means_are_refused(self):
        loss = keras.losses.MeanSquaredError
        with (
            self.strategy.scope(),
            self.assertRaisesRegex(
                ValueError,
                "`loss` of compile must be all means, or all sums, "
                "under MirroredStrategy.*Received: reductions sum, "
                "sum_over_batch_size. Use reduction='sum_over_batch_size'",
            ),
        ):
            functional(table()).compile(
                tf_ext.optimizers.Optimizer("sgd"),
                [
                    loss(reduction="sum"),
                    loss(reduction="sum_over_batch_size"),
                ],
            )

    def test_outputs_without_losses_beside_sums(self):
        with self.strategy.scope():
            model = functional(table())
            model.compile(
                tf_ext.optimizers.Optimizer("sgd"),
                [keras.losses.MeanSquaredError(reduction="sum"), None],
            )
        self.assertTrue(losses_add_up(model.loss))

    def two_outputs(self):
        """A model without tables, and labels: 3 samples, and 2."""
        values = np.float32([[1], [2], [3], [4], [9]])
        labels = (np.zeros_like(values), np.ones_like(values))
        inputs = keras.Input([1])
        outputs = [
            keras.layers.Dense(1, kernel_initializer="ones", name=name)(inputs)
            for name in ("a", "b")
        ]
        return tf_ext.Model(inputs, outputs), values, labels

    def test_losses_of_outputs_are_means_over_all_samples(self):
        with self.strategy.scope():
            model, values, labels = self.two_outputs()
            sgd = tf_ext.optimizers.Optimizer("sgd")
            model.compile(sgd, ["mse", "mse"])
        data = tf.data.Dataset.from_tensors((values, labels))
        logs = model.evaluate(data, return_dict=True, verbose=0)
        means = [np.mean((values - label) ** 2) for label in labels]
        self.assertAllClose([logs["a_loss"], logs["b_loss"]], means)
        self.assertAllClose(logs["loss"], sum(means))

    def test_gradients_are_means_over_all_samples(self):
        with self.strategy.scope():
            model, values, labels = self.two_outputs()
            sgd = keras.optimizers.SGD(0.01)
            model.compile(tf_ext.optimizers.Optimizer(sgd), ["mse", "mse"])
        data = tf.data.Dataset.from_tensors((values, labels))
        logs = model.fit(data, verbose=0).history
        errors = [values - label for label in labels]
        self.assertAllClose(logs["loss"], [sum(np.mean(e**2) for e in errors)])
        wanted = []
        for error in errors:
            wanted.append(1 - 0.01 * np.mean(2 * error * values))
            wanted.append(-0.01 * np.mean(2 * error))
        self.assertAllClose([w.item() for w in model.get_weights()], wanted)

    def test_a_step_that_would_weight_its_loss_too_late_is_refused(self):
        self.assertRegex(
            uneven_share_cases.refusal(
                self.strategy, uneven_share_cases.late_step
            ),
            uneven_share_cases.LATE_STEP_REFUSAL,
        )

    @parameterized.parameters("added_loss_before", "added_loss_after")
    def test_added_losses_beside_sums_over_replicas(self, kind):
        def make():
            return uneven_share_cases.Towers(kind)

        if IS_KERAS_3:
            self.assertRegex(
                uneven_share_cases.refusal(self.strategy, make),
                "Layers of Towers must not call `add_loss` under "
                "MirroredStrategy beside a layer that sums over replicas",
            )
            return
        expected = uneven_share_cases.trained(
            tf.distribute.get_strategy(), make
        )
        found = uneven_share_cases.trained(self.strategy, make)
        uneven_share_cases.assert_same(self, [found], expected)

    def test_a_layer_of_tf_keras_that_misses_updates(self):
        if IS_KERAS_3:
            self.skipTest("Keras 3's layer misses none")

        def make():
            model = uneven_share_cases.SINGLE["keras_batch_normalization"]()
            model.has_empty_shares = True
            return model

        self.assertRegex(
            uneven_share_cases.refusal(self.strategy, make),
            "Layer 'batch_normalization.*' of tf_keras does not update its "
            "moving averages on a replica without samples.*Use "
            "tf_ext.layers.BatchNormalization",
        )

    def test_features_of_strings_hashed_or_not(self):
        text = tf.strings.as_string
        strings = [category_column("user"), category_column("items")]

        def to_strings(features, labels):
            return tf.nest.map_structure(text, features), labels

        raw = self.data(32).map(to_strings)
        hashed = tf_ext.data.hash_columns(raw, strings)
        results = []
        with (
            mock.patch.object(small_models, "columns", lambda: strings),
            mock.patch.object(small_models, "DTYPE", "string"),
        ):
            for make, data in ((functional, hashed), (Subclassed, raw)):
                with self.strategy.scope():
                    model = compiled(make(table()))
                model.fit(data, verbose=0)
                logs = model.evaluate(data, verbose=0)
                results.append((logs, rows_of(model.tables[0])))
        (logs, rows), (others, other_rows) = results
        self.assertNotEmpty(rows)
        self.assertCountEqual(rows, other_rows)
        for sign, row in rows.items():
            self.assertAllEqual(row, other_rows[sign])
        self.assertAllEqual(logs, others)

    def test_mixed_precision(self):
        keras.mixed_precision.set_global_policy("mixed_float16")
        self.addCleanup(keras.mixed_precision.set_global_policy, "float32")
        data = self.data(64)
        alone = compiled(functional(table()))
        with self.strategy.scope():
            mirrored = compiled(functional(table()))
        for model in (alone, mirrored):
            model.fit(data, epochs=2, verbose=0)
        self.assert_same(alone, mirrored, data, rtol=0, atol=2e-3)
        users = np.arange(20)
        self.assertGreater(
            np.abs(mirrored.tables[0].pull(users) - table().pull(users)).max(),
            1e-2,
        )

    def test_several_steps_an_execution(self):
        alone = compiled(functional(table()))
        with self.strategy.scope():
            mirrored = functional(table())
            if IS_KERAS_3:
                with self.assertRaisesRegex(
                    ValueError,
                    "`steps_per_execution` of compile must be 1 under a "
                    "strategy with several replicas.*=2. Use 1, or tf_keras",
                ):
                    compiled(mirrored, steps_per_execution=2)
                return
            compiled(mirrored, steps_per_execution=2)
        data = self.data(64)
        for model in (alone, mirrored):
            model.fit(data, verbose=0)
        self.assert_same(alone, mirrored, data)

    def test_accumulating_gradients_is_refused(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras does not accumulate gradients")
        with self.strategy.scope():
            model = compiled(
                functional(table()),
                keras.optimizers.SGD(0.5, gradient_accumulation_steps=4),
            )
        with self.assertRaisesRegex(
            ValueError,
            "`gradient_accumulation_steps` of the optimizer must be None with "
            "several replicas.*Received: gradient_accumulation_steps=4",
        ):
            model.fit(self.data(64), verbose=0)

    def test_a_loop_of_ones_own(self):
        def train(strategy):
            with strategy.scope():
                model = functional(table("adagrad"))
                compiled(model)  # Makes the optimizer under the strategy.
            optimizer = model.optimizer

            def step(features, labels):
                with tf.GradientTape() as tape:
                    predicted = model(features, training=True)
                    loss = tf.reduce_sum((predicted - labels) ** 2) / _BATCH
                variables = model.trainable_variables
                gradients = tape.gradient(loss, variables)
                optimizer.apply_gradients(zip(gradients, variables))

            run = tf.function(lambda batch: strategy.run(step, args=batch))
            for batch in strategy.experimental_distribute_dataset(data):
                run(batch)
            return model

        data = self.data(64)
        alone = train(tf.distribute.get_strategy())
        self.assert_same(alone, train(self.strategy), data)


if __name__ == "__main__":
    tf.test.main()
