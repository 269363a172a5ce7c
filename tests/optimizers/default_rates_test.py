# SPDX-License-Identifier: Apache-2.0
"""What a rule given by name stands for, and that it learns."""

import sys

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from paths import FIXTURES, ROOT

import tf_ext
from tf_ext import optimizers
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "LearningTest::test_generated_wide_and_deep",
    ),
]

_DATA = ROOT.parent / "shared" / "data"
# Rows of a table with no optimizer named, when that was SparseAdagrad().
_SNAPSHOT = FIXTURES / "rows_of_first_default"

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "benchmarks"))

import default_rates  # noqa: E402

# How Keras wrote that table into its files.
_CONFIG = {
    "name": "deep",
    "dim": 2,
    "optimizer": {
        "module": "tf_ext.tables.rules",
        "class_name": "SparseAdagrad",
        "config": {
            "learning_rate": None,
            "weight_decay": None,
            "initial_accumulator_value": 0.1,
            "epsilon": 1e-07,
        },
        "registered_name": "tf_ext>SparseAdagrad",
    },
    "initializer": {
        "module": "tf_ext.initializers",
        "class_name": "Uniform",
        "config": {"minval": -0.05, "maxval": 0.05},
        "registered_name": "tf_ext>Uniform",
    },
    "seed": 0,
    "trainable": True,
    "uid": "deep/29157bd2d470/0",
}


class NameTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(
        ("sgd", "sgd", optimizers.SparseSGD(10.0), optimizers.SparseSGD(10.0)),
        (
            "adagrad",
            "adagrad",
            optimizers.SparseAdagrad(0.1, 3e-10, epsilon=0.0),
            optimizers.SparseAdagrad(0.07, 1e-6, epsilon=0.0),
        ),
        (
            "row_wise_adagrad",
            "row_wise_adagrad",
            optimizers.SparseRowWiseAdagrad(0.1, 3e-10, epsilon=0.0),
            optimizers.SparseRowWiseAdagrad(0.07, 1e-6, epsilon=0.0),
        ),
        (
            "adam",
            "adam",
            optimizers.SparseAdam(0.2),
            optimizers.SparseAdam(0.01),
        ),
        (
            "ftrl",
            "ftrl",
            optimizers.SparseFtrl(0.1, initial_accumulator_value=3e-10),
            optimizers.SparseFtrl(0.07, initial_accumulator_value=1e-6),
        ),
        (
            "rmsprop",
            "rmsprop",
            optimizers.SparseRMSprop(0.1, epsilon=1e-15),
            optimizers.SparseRMSprop(0.005, epsilon=1e-15),
        ),
        (
            "lion",
            "lion",
            optimizers.SparseLion(0.08),
            optimizers.SparseLion(0.004),
        ),
    )
    def test_stands_for(self, name, of_dim_4, of_dim_1):
        for dim, expected in ((4, of_dim_4), (1, of_dim_1)):
            rule = tf_ext.SparseTable("t", dim, name).optimizer
            self.assertIs(type(rule), type(expected))
            self.assertEqual(rule.get_config(), expected.get_config())

    def test_no_name_is_row_wise_adagrad(self):
        for dim in (1, 2, 16):
            default = tf_ext.SparseTable("t", dim).optimizer
            named = tf_ext.SparseTable("t", dim, "row_wise_adagrad").optimizer
            self.assertIs(type(default), optimizers.SparseRowWiseAdagrad)
            self.assertEqual(default.get_config(), named.get_config())

    def test_tables_do_not_share_a_rule(self):
        first, second = (tf_ext.SparseTable("t", 4) for _ in range(2))
        first.optimizer.learning_rate = 0.5
        self.assertEqual(second.optimizer.learning_rate, 0.1)

    def test_is_saved_with_its_hyperparameters(self):
        table = tf_ext.SparseTable("t", 4)
        self.assertIsInstance(table.get_config()["optimizer"], dict)
        again = tf_ext.SparseTable.from_config(table.get_config())
        self.assertEqual(
            again.optimizer.get_config(), table.optimizer.get_config()
        )
        self.assertEqual(again.config, table.config)

    @parameterized.parameters(
        optimizers.SparseSGD,
        optimizers.SparseAdagrad,
        optimizers.SparseRowWiseAdagrad,
        optimizers.SparseAdam,
        optimizers.SparseFtrl,
        optimizers.SparseRMSprop,
        optimizers.SparseLion,
    )
    def test_an_object_without_a_rate_follows_the_model(self, rule):
        table = tf_ext.SparseTable("t", 4, rule())
        self.assertIsNone(table.optimizer.learning_rate)
        again = tf_ext.SparseTable.from_config(table.get_config())
        self.assertIsNone(again.optimizer.learning_rate)
        self.assertEqual(again.config, table.config)


class SavedBeforeTest(tf.test.TestCase):
    """Files of the time when no name meant SparseAdagrad()."""

    def test_a_config_follows_the_model_as_it_did(self):
        table = tf_ext.SparseTable.from_config(_CONFIG)
        # Keras writes down the module, too, but finds the class by its name.
        again = table.get_config()["optimizer"]
        saved = _CONFIG["optimizer"]
        self.assertEqual(again | {"module": saved["module"]}, saved)
        self.assertIs(type(table.optimizer), optimizers.SparseAdagrad)
        before = table.pull([5])
        column = tf_ext.feature_column.category_column("id", hashing="identity")
        layer = tf_ext.layers.EmbeddingFeatures([column], table)
        optimizer = tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.5))
        with tf.GradientTape() as tape:
            features = {"id": tf.constant([5], tf.int64)}
            loss = tf.reduce_sum(layer(features, training=True))
        optimizer.apply_gradients(
            [(tape.gradient(loss, table.shadow), table.shadow)]
        )
        # Adagrad's step at the model's rate, from an accumulator of 0.1.
        self.assertAllClose(
            before - table.pull([5]), np.full([1, 2], 0.5 / np.sqrt(1.1))
        )

    def test_a_snapshot_loads_into_the_rule_it_was_made_with(self):
        table = tf_ext.SparseTable("deep", 2, optimizers.SparseAdagrad())
        table.load(_SNAPSHOT)
        signs, fields = table.export_rows()
        self.assertCountEqual(signs, range(4))
        self.assertAllGreater(fields["accumulator"], 0.1)
        self.assertIsNone(table.optimizer.learning_rate)

    def test_a_snapshot_is_refused_by_what_is_now_the_default(self):
        table = tf_ext.SparseTable("deep", 2)
        with self.assertRaisesRegex(
            ValueError,
            "its `optimizer` is 'row_wise_adagrad', that of the saved rows is "
            "'adagrad'",
        ):
            table.load(_SNAPSHOT)
        table.load(_SNAPSHOT, weights_only=True)
        self.assertEqual(table.size(), 4)

    def test_a_snapshot_goes_on_with_what_the_name_means_now_and_says_so(self):
        table = tf_ext.SparseTable("deep", 2, "adagrad")
        rate = table.optimizer.learning_rate
        with self.assertLogs("tf_ext", "WARNING") as logs:
            table.load(_SNAPSHOT)
        self.assertEqual(table.optimizer.learning_rate, rate)
        [line] = [line for line in logs.output if "learning_rate" in line]
        self.assertIn(
            f"Table 'deep' continues with learning_rate={rate}; the saved rows "
            "were trained with None.",
            line,
        )


class LearningTest(tf.test.TestCase, parameterized.TestCase):
    """One epoch, with Adam at 0.001 for the dense part."""

    def _fit(self, name, wide, batch_size, seed=3, examples=30_000, **options):
        if name != "generated" and not _DATA.exists():
            self.skipTest(f"there is no {_DATA}")
        data = default_rates.load(name, _DATA, examples)
        auc = default_rates.fit(data, 16, wide, batch_size, seed, **options)
        print(f"{self.id()}: seed {seed}, AUC {auc:.4f}")
        return auc

    def test_generated_wide_and_deep(self):
        self.assertGreater(self._fit("generated", True, 2048), 0.77)

    @parameterized.named_parameters(("small", 256), ("large", 2048))
    @pytest.mark.slow
    def test_generated_batches(self, batch_size):
        self.assertGreater(self._fit("generated", False, batch_size), 0.77)

    @parameterized.named_parameters(
        ("adagrad", "adagrad", 0.77),
        ("adam", "adam", 0.76),
        ("ftrl", "ftrl", 0.77),
        ("rmsprop", "rmsprop", 0.77),
        ("lion", "lion", 0.76),
        ("sgd", "sgd", 0.74),
    )
    @pytest.mark.slow
    def test_by_name(self, rule, bound):
        auc = self._fit("generated", False, 1024, optimizer=rule)
        self.assertGreater(auc, bound)

    @parameterized.named_parameters(
        ("adult", "adult", False, 0.90),
        ("adult_wide_and_deep", "adult", True, 0.90),
        ("criteo", "criteo", False, 0.74),
        ("criteo_wide_and_deep", "criteo", True, 0.74),
    )
    @pytest.mark.slow
    def test_real(self, name, wide, bound):
        self.assertGreater(self._fit(name, wide, 2048), bound)


if __name__ == "__main__":
    tf.test.main()
