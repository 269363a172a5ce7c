# SPDX-License-Identifier: Apache-2.0
"""Steps whose gradients are not finite change nothing."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import mirrored_strategy

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "NonfiniteTest::test_models_without_tables",
        # All pairs of values, optimizers and options run by default.
        "NonfiniteTest::test_nothing_is_changed[1257]",
        "NonfiniteTest::test_nothing_is_changed1[1345]",
    ),
]

_IDS = np.arange(8)


class NonfiniteTest(tf.test.TestCase, parameterized.TestCase):
    def _model(self, optimizer="sgd", mirrored=False, **options):
        scope = contextlib.nullcontext()
        if mirrored:
            scope = mirrored_strategy().scope()
        with scope:
            keras.utils.set_random_seed(3)
            table = tf_ext.SparseTable("ids", 2, statistics=["show"])
            ids = tf_ext.feature_column.category_column(
                "id", hashing="identity"
            )
            inputs = {
                "id": keras.Input([1], dtype="int64", name="id"),
                "number": keras.Input([1], name="number"),
            }
            hidden = tf_ext.layers.EmbeddingFeatures([ids], table)(inputs)
            of_ids = keras.layers.Dense(1, name="of_ids")(hidden)
            of_number = keras.layers.Dense(
                1,
                use_bias=False,
                kernel_initializer="zeros",
                name="of_number",
            )(inputs["number"])
            outputs = keras.layers.Add()([of_ids, of_number])
            model = tf_ext.Model(inputs, outputs)
            model.compile(
                tf_ext.optimizers.Optimizer(optimizer), "mse", **options
            )
        return model

    def _state(self, model):
        signs, fields = model.tables[0].export_rows()
        order = np.argsort(signs)
        return [
            signs[order],
            fields["weights"][order],
            fields["show"][order],
            *map(np.array, model.get_weights()),
            np.array(tf.convert_to_tensor(model.optimizer.iterations)),
        ]

    def _fit(self, model, number=1.0, label=1.0):
        numbers, labels = np.ones([2, 8, 1], np.float32)
        numbers[2], labels[5] = number, label
        features = {"id": _IDS[:, np.newaxis], "number": numbers}
        model.fit(features, labels, batch_size=8, shuffle=False, verbose=0)

    @parameterized.product(
        [{"number": 3e38, "label": 1e8}, {"number": 1.0, "label": np.nan}],
        optimizer=["sgd", "adam"],
        options=[
            {},
            {"run_eagerly": True},
            {"mirrored": True},
            {"steps_per_execution": 2},
        ],
    )
    def test_nothing_is_changed(self, number, label, optimizer, options):
        model = self._model(optimizer, **options)
        self._fit(model)
        before = self._state(model)
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "variables are not finite: .*No variable and no table was changed",
        ) as raised:
            self._fit(model, number, label)
        names_a_sign = (
            "for 1 signs, of which the first is 5. Gradients of these"
        )
        is_of_table = names_a_sign in raised.exception.message
        self.assertEqual(is_of_table, number == 1.0, raised.exception)
        for found, expected in zip(self._state(model), before, strict=True):
            self.assertAllEqual(found, expected)
        self._fit(model)
        self.assertNotAllEqual(self._state(model)[1], before[1])

    def test_large_gradients(self):
        """Their squares are infinite, but not they."""
        model = self._model()
        rate = model.optimizer.learning_rate
        rate.assign(1e-27)
        self._fit(model, label=1e25)
        self.assertAllInRange(np.abs(model.get_weights()[-1]), 1e-4, 1e-1)

    def test_frozen_variables_and_tables(self):
        model = self._model()
        for layer in model.layers:
            layer.trainable = layer.name == "of_number"
        model.tables[0].trainable = False
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        before = model.get_weights()
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "gradient of variable of_number/kernel.* is not finite. No variable"
            " was changed. Look for NaN",
        ):
            self._fit(model, label=np.nan)
        for found, expected in zip(model.get_weights(), before, strict=True):
            self.assertAllEqual(found, expected)

    def test_models_without_tables(self):
        inputs = keras.Input([1])
        model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        one = np.ones([1, 1], np.float32)
        for compiled in (False, True):
            optimizer = tf_ext.optimizers.Optimizer("sgd")
            model.compile(optimizer, "mse", jit_compile=compiled)
            model.fit(one, one, verbose=0)
            before = model.get_weights()
            model.fit(one, one * 0, verbose=0)
            self.assertNotAllEqual(model.get_weights()[0], before[0])
        # XLA leaves errors out.
        model.fit(one, one * np.nan, verbose=0)
        self.assertAllEqual(np.isnan(model.get_weights()[0]), [[True]])

    def test_servers_leave_no_step_out(self):
        make = tf_ext.optimizers.Optimizer
        make("sgd").check_for_servers()
        with self.assertRaisesRegex(
            ValueError, "`on_nonfinite` .* must be 'raise' under ParameterServ"
        ):
            make("sgd", on_nonfinite="skip").check_for_servers()


class LossScaleTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        if not IS_KERAS_3:
            self.skipTest("tf_keras has it outside")

    def test_grows_after_as_many_finite_steps_in_a_row(self):
        optimizer = tf_ext.optimizers.Optimizer(
            keras.mixed_precision.LossScaleOptimizer(
                keras.optimizers.SGD(1.0),
                initial_scale=8.0,
                dynamic_growth_steps=2,
            )
        )
        variable = keras.Variable([0.0])
        optimizer.build([variable])
        scales = []
        for gradient in (1.0, np.nan, 1.0, 1.0, 1.0, np.inf):
            optimizer.apply([tf.constant([gradient])], [variable])
            scales.append(float(optimizer.dynamic_scale))
        self.assertEqual(scales, [8.0, 4.0, 4.0, 8.0, 8.0, 4.0])

    def test_of_mixed_precision(self):
        policy = keras.mixed_precision.dtype_policy()
        self.addCleanup(keras.mixed_precision.set_dtype_policy, policy)
        keras.mixed_precision.set_dtype_policy("mixed_float16")
        for factor, scale in ((None, 2.0**15), (4.0, 4.0)):
            optimizer = tf_ext.optimizers.Optimizer(
                keras.optimizers.SGD(1.0, loss_scale_factor=factor)
            )
            optimizer.build([keras.Variable([0.0])])
            self.assertEqual(float(optimizer.scale_loss(1.0)), scale)


if __name__ == "__main__":
    tf.test.main()
