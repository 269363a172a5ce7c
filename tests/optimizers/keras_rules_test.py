# SPDX-License-Identifier: Apache-2.0
"""Tables that take Keras's optimizers as their update rules."""

import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import generator

import tf_ext
from tf_ext import optimizers
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ConversionTest::test_rows_are_those_of_a_dense_variable_adagrad",
        "ConversionTest::test_rows_are_those_of_a_dense_variable_adam",
        "ConversionTest::test_rows_are_those_of_a_dense_variable_adamw",
        "ConversionTest::test_rows_are_those_of_a_dense_variable_ftrl",
        "ConversionTest::test_rows_are_those_of_a_dense_variable_rmsprop",
        "RefusalTest::test_another_keras",
    ),
]

_KERAS = keras.optimizers
_SIGNS = np.arange(6)

# A Keras optimizer with no default left, and the rule that it stands for.
_CASES = (
    ("sgd", lambda: _KERAS.SGD(0.3), lambda: optimizers.SparseSGD(0.3)),
    (
        "nesterov",
        lambda: _KERAS.SGD(0.3, momentum=0.8, nesterov=True),
        lambda: optimizers.SparseSGD(0.3, momentum=0.8, nesterov=True),
    ),
    (
        "adagrad",
        lambda: _KERAS.Adagrad(0.3, 0.2, epsilon=1e-3, weight_decay=0.01),
        lambda: optimizers.SparseAdagrad(0.3, 0.2, 1e-3, weight_decay=0.01),
    ),
    (
        "adam",
        lambda: _KERAS.Adam(0.1, 0.8, 0.95, 1e-3),
        lambda: optimizers.SparseAdam(0.1, 0.8, 0.95, 1e-3, "global"),
    ),
    (
        "adamw",
        lambda: _KERAS.AdamW(0.1, weight_decay=0.02),
        lambda: optimizers.SparseAdam(
            0.1, bias_correction="global", weight_decay=0.02
        ),
    ),
    (
        "ftrl",
        lambda: _KERAS.Ftrl(0.3, -0.6, 0.2, 0.01, 0.02, beta=0.5),
        lambda: optimizers.SparseFtrl(0.3, -0.6, 0.2, 0.01, 0.02, beta=0.5),
    ),
    (
        "rmsprop",
        lambda: _KERAS.RMSprop(0.1, 0.8, 0.5, 1e-2, centered=True),
        lambda: optimizers.SparseRMSprop(0.1, 0.8, 0.5, 1e-2, centered=True),
    ),
    (
        "lion",
        lambda: _KERAS.Lion(0.1, beta_1=0.8, beta_2=0.95),
        lambda: optimizers.SparseLion(0.1, 0.8, 0.95),
    ),
)


def _table(rule):
    return tf_ext.SparseTable("rules", 3, rule, "normal", seed=1)


class ConversionTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(*_CASES)
    def test_is_the_rule_of_the_same_formula(self, given, expected):
        converted = _table(given()).optimizer
        self.assertIs(type(converted), type(expected()))
        self.assertEqual(converted.get_config(), expected().get_config())

    @parameterized.named_parameters(*_CASES)
    def test_rows_are_those_of_a_dense_variable(self, given, _):
        rng = generator(self)
        table, dense = _table(given()), given()
        variable = tf.Variable(table.pull(_SIGNS, training=True))
        if IS_KERAS_3:
            variable = keras.Variable(variable.numpy())
        for step in range(1, 21):
            gradients = rng.normal(size=(6, 3)).astype(np.float32)
            table.push(_SIGNS, gradients, step=step)
            dense.apply_gradients([(tf.constant(gradients), variable)])
        self.assertAllClose(
            table.pull(_SIGNS), tf.convert_to_tensor(variable), 1e-5, 1e-6
        )

    def test_a_schedule_is_kept(self):
        class Halved(keras.optimizers.schedules.LearningRateSchedule):
            """A class that Keras could not load."""

            def __call__(self, step):
                return 0.5 ** tf.cast(step, tf.float32)

            def get_config(self):
                return {}

        schedule = Halved()
        rule = _table(_KERAS.SGD(schedule)).optimizer
        self.assertIs(rule.learning_rate, schedule)

    def test_a_rate_that_was_assigned_counts(self):
        dense = _KERAS.SGD(0.5)
        dense.learning_rate = 0.1
        self.assertEqual(_table(dense).optimizer.learning_rate, 0.1)

    def test_defaults_are_those_of_keras(self):
        rule = _table(_KERAS.Adam()).optimizer
        self.assertEqual(rule.learning_rate, 0.001)
        self.assertIsNone(rule.weight_decay)

    def test_of_what_keras_saved(self):
        config = keras.utils.serialize_keras_object(_KERAS.Adagrad(0.25))
        rule = _table(config).optimizer
        self.assertIsInstance(rule, optimizers.SparseAdagrad)
        self.assertEqual(rule.learning_rate, 0.25)

    def test_is_saved_as_the_rule(self):
        table = _table(_KERAS.Adagrad(0.25))
        copy = tf_ext.SparseTable.from_config(table.get_config())
        self.assertIsInstance(copy.optimizer, optimizers.SparseAdagrad)
        self.assertEqual(copy.optimizer.learning_rate, 0.25)


class RefusalTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("nadam", lambda: _KERAS.Nadam(), "Nadam"),
        ("adamax", lambda: _KERAS.Adamax(), "Adamax"),
        ("subclass", lambda: type("Mine", (_KERAS.SGD,), {})(), "Mine"),
    )
    def test_a_formula_that_tables_lack(self, given, name):
        with self.assertRaisesRegex(
            ValueError,
            r"`optimizer` of SparseTable must have a formula that tables "
            r"support: that of keras.optimizers.{Adagrad, Adam, AdamW, Ftrl, "
            rf"Lion, RMSprop, SGD}}, not of a subclass. Received: .*\.{name}$",
        ):
            _table(given())

    @parameterized.named_parameters(
        ("amsgrad", lambda: _KERAS.Adam(amsgrad=True), "amsgrad=True"),
        ("ema", lambda: _KERAS.SGD(use_ema=True), "use_ema=True"),
        ("clipnorm", lambda: _KERAS.SGD(clipnorm=1.0), "clipnorm=1.0"),
        ("clipvalue", lambda: _KERAS.SGD(clipvalue=2.0), "clipvalue=2.0"),
        (
            "global_clipnorm",
            lambda: _KERAS.SGD(global_clipnorm=3.0),
            "global_clipnorm=3.0",
        ),
    )
    def test_options(self, given, found):
        name = found.partition("=")[0]
        with self.assertRaisesRegex(
            ValueError,
            "`optimizer` of SparseTable must be a Keras optimizer without "
            f"{name}: .* Received: .* with {found}$",
        ):
            _table(given())

    def test_options_of_keras_3(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras has neither")
        for name in ("loss_scale_factor", "gradient_accumulation_steps"):
            with self.assertRaisesRegex(ValueError, f"without {name}: .*=2"):
                _table(_KERAS.SGD(**{name: 2}))

    def test_options_of_tf_keras(self):
        if IS_KERAS_3:
            self.skipTest("Keras 3 has it no more")
        with self.assertRaisesRegex(ValueError, "without adaptive_epsilon: .*"):
            _table(_KERAS.Adam(adaptive_epsilon=True))

    def test_a_rate_by_a_function(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras calls it once, when it is given")
        with self.assertRaisesRegex(
            ValueError,
            "`optimizer` of SparseTable must have a learning rate that is a "
            "number or a .*LearningRateSchedule. Received: learning_rate=<",
        ):
            _table(_KERAS.SGD(lambda: 0.1))

    def test_another_keras(self):
        # In a process of its own: tests import one Keras alone.
        module = "tf_keras" if IS_KERAS_3 else "keras"
        code = (
            "import tensorflow as tf, tf_ext, importlib\n"
            f"other = importlib.import_module({module!r})\n"
            "try:\n"
            "    tf_ext.SparseTable('a', 2, other.optimizers.SGD())\n"
            "except ValueError as error:\n"
            "    print(error)\n"
        )
        printed = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
            text=True,
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        mine = "Keras 3" if IS_KERAS_3 else "tf_keras"
        self.assertRegex(
            printed,
            "`optimizer` of SparseTable must be an optimizer of the Keras in "
            rf"use, which is {mine} .*Received: optimizer={module}\..*SGD",
        )

    def test_a_legacy_optimizer(self):
        if IS_KERAS_3:
            self.skipTest("Keras 3 has none")
        with self.assertRaisesRegex(ValueError, "and not a legacy one"):
            _table(_KERAS.legacy.SGD())


if __name__ == "__main__":
    tf.test.main()
