# SPDX-License-Identifier: Apache-2.0
"""Update rules against float64 NumPy, and against Keras's optimizers."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from cases.rule_cases import CASES
from models.model_building import EDGE_SIGNS, generator, id_column
from models.small_models import RULES
from oracles import reference

import tf_ext
from tf_ext import ops, optimizers
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "DuplicateTest::test__in_a_bag",
        "DuplicateTest::test__in_bags_of_two_columns",
        "DuplicateTest::test__in_two_layers",
        "DuplicateTest::test__over_the_batch",
        "DuplicateTest::test_in_a_push",
        "KerasRuleTest::test_all_rows_touched_is_keras_on_a_dense_variable_adagrad",
        "KerasRuleTest::test_all_rows_touched_is_keras_on_a_dense_variable_adam",
        "KerasRuleTest::test_all_rows_touched_is_keras_on_a_dense_variable_ftrl",
        "KerasRuleTest::test_all_rows_touched_is_keras_on_a_dense_variable_sgd",
        "KerasRuleTest::test_slots_start_where_they_are_told_to_*",
        "LazyRuleTest::test_adam_corrects_the_bias_of_any_count",
        "LazyRuleTest::test_layer_and_optimizer_adagrad",
        "LazyRuleTest::test_layer_and_optimizer_adam",
        "LazyRuleTest::test_layer_and_optimizer_row_wise_adagrad",
        "LazyRuleTest::test_layer_and_optimizer_sgd",
        "LazyRuleTest::test_op_of_any_dim_row_wise_adagrad_all_options",
        "LazyRuleTest::test_table_push_adagrad",
        "LazyRuleTest::test_table_push_adam",
        "LazyRuleTest::test_table_push_adam_global",
        "LazyRuleTest::test_table_push_ftrl",
        "LazyRuleTest::test_table_push_ftrl_l1",
        "LazyRuleTest::test_table_push_lion",
        "LazyRuleTest::test_table_push_momentum",
        "LazyRuleTest::test_table_push_nesterov",
        "LazyRuleTest::test_table_push_rmsprop",
        "LazyRuleTest::test_table_push_rmsprop_centered",
        "LazyRuleTest::test_table_push_rmsprop_momentum",
        "LazyRuleTest::test_table_push_row_wise_adagrad",
        "LazyRuleTest::test_table_push_sgd",
    ),
]

# What Keras calls the same rules.
_KERAS = {
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "ftrl": "Ftrl",
    "rmsprop": "RMSprop",
    "lion": "Lion",
}

_WITH_AND_WITHOUT_DECAY = tuple(
    (f"{name}{suffix}", rule, options | decay)
    for name, rule, options in CASES
    for suffix, decay in (("", {}), ("_decay", {"weight_decay": 0.05}))
)


def _table(rule, options, dim=4, learning_rate=None):
    options = dict(options)
    if learning_rate is not None:
        options["learning_rate"] = learning_rate
    initializer = tf_ext.initializers.Uniform(-0.5, 0.5)
    return tf_ext.SparseTable(
        "rules", dim, RULES[rule](**options), initializer, seed=5
    )


def _reference(rule, options, dim=4):
    # A table of its own: that under test has trained rows soon.
    initial = _table(rule, options, dim).pull
    return reference.ReferenceTable(rule, initial, **options)


def _learning_rate(step):
    """Another rate each step, as a schedule or a callback gives."""
    return 0.1 + 0.05 * np.sin(step)


class _RuleTestCase(tf.test.TestCase, parameterized.TestCase):
    # Each element within 5e-6 of itself: three times what rounding to float32
    # leaves after a hundred steps. Elements that passed through zero carry the
    # rounding of the size they had, hence 5e-7 of the field's largest.
    _RELATIVE = 5e-6
    _OF_LARGEST = 5e-7

    def assert_near(self, actual, expected, what):
        scale = np.max(np.abs(expected), initial=1e-30)
        np.testing.assert_allclose(
            actual,
            expected,
            rtol=self._RELATIVE,
            atol=self._OF_LARGEST * scale,
            err_msg=what,
        )

    def assert_rows_near(self, table, expected):
        signs, fields = table.export_rows()
        self.assertCountEqual(signs.tolist(), expected.rows)
        for name, values in fields.items():
            self.assert_near(values, expected.field(name, signs), name)


class LazyRuleTest(_RuleTestCase):
    """Random subsets of the signs, against float64."""

    @parameterized.named_parameters(*_WITH_AND_WITHOUT_DECAY)
    def test_table_push(self, rule, options):
        rng = generator(self)
        table = _table(rule, options)
        expected = _reference(rule, options)
        population = np.array([*EDGE_SIGNS, *range(5, 20)], np.int64)
        for step in range(1, 121):
            # Drawn with replacement: some signs come twice or more often.
            signs = rng.choice(population, rng.integers(1, 12))
            gradients = rng.normal(size=(len(signs), 4)).astype(np.float32)
            for t in (table, expected):
                t.push(
                    signs,
                    gradients,
                    learning_rate=_learning_rate(step),
                    step=step,
                )
        self.assert_rows_near(table, expected)

    def test_adam_corrects_the_bias_of_any_count(self):
        # Powers are products of those of the bytes of a count.
        edges = [1 << 8, 1 << 16, 1 << 24, 3 << 24, 2**31 - 2]
        counts = np.array([1, *range(2, 600, 37), *edges])
        counts = np.unique(np.concatenate([counts + d for d in (-1, 0, 1)]))
        counts = counts[counts > 0]
        for beta_1, beta_2 in (0.9, 0.999), (0.999, 1 - 1e-6), (0.5, 1 - 1e-8):
            rule = optimizers.SparseAdam(0.5, beta_1, beta_2, 1e-9)
            table = tf_ext.SparseTable("counted", 1, rule)
            fields = {"weights": np.zeros([len(counts), 1], np.float32)}
            fields["step"] = (counts - 1)[:, np.newaxis].astype(np.int32)
            table.import_rows(counts, fields)
            table.push(counts, np.ones([len(counts), 1], np.float32))
            # Of the first moments of a gradient of 1.
            step = (1 - beta_1) / (np.sqrt(1 - beta_2) + 1e-9)
            bias_1, bias_2 = (
                -np.expm1(counts * np.log(beta)) for beta in (beta_1, beta_2)
            )
            wanted = -0.5 * step * np.sqrt(bias_2) / bias_1
            found = table.pull(counts).numpy()[:, 0]
            np.testing.assert_allclose(found, wanted, rtol=1e-4)

    @parameterized.named_parameters(*CASES)
    def test_op_of_any_dim(self, rule, options):
        rng = generator(self, 23)
        for dim in (1, 3, 16, 19):
            table = _table(rule, options, dim)
            expected = _reference(rule, options, dim)
            for step in range(1, 101):
                signs = rng.choice(25, rng.integers(0, 12), replace=False)
                gradients = rng.normal(size=(len(signs), dim))
                rate = _learning_rate(step)
                ops.sparse_table_push(
                    table.rows.shards[0].resource_handle,
                    signs,
                    gradients.astype(np.float32),
                    hyperparameters=table.optimizer.hyperparameters(
                        tf.constant(rate, tf.float64)
                    ),
                    step=step,
                )
                expected.push(signs, gradients.astype(np.float32), rate, step)
            self.assert_rows_near(table, expected)

    @parameterized.named_parameters(*CASES)
    def test_layer_and_optimizer(self, rule, options):
        """The same through Keras: duplicates in bags, batch and columns."""
        rng = generator(self, 29)
        table = _table(rule, options)
        expected = _reference(rule, options)
        columns = [id_column("a"), id_column("b", "mean")]
        layer = tf_ext.layers.EmbeddingFeatures(columns, table)
        optimizer = tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.1))

        @tf.function
        def train(inputs, upstream):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(inputs, training=True) * upstream)
            variables = layer.trainable_variables
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables))

        for step in range(1, 31):
            inputs = {
                "a": rng.integers(-6, 6, (5, 3)),
                "b": rng.integers(-3, 9, (5, 2)),
            }
            upstream = rng.normal(size=(5, 8)).astype(np.float32)
            train(
                {key: tf.constant(value) for key, value in inputs.items()},
                tf.constant(upstream),
            )
            expected.push(
                np.concatenate([v.reshape(-1) for v in inputs.values()]),
                np.concatenate(
                    [
                        np.repeat(upstream[:, :4], 3, axis=0),
                        np.repeat(upstream[:, 4:] / 2, 2, axis=0),
                    ]
                ),
                learning_rate=np.float32(0.1),
                step=step,
            )
        self.assertEqual(int(optimizer.iterations), 30)
        self.assert_rows_near(table, expected)


class KerasRuleTest(_RuleTestCase):
    @parameterized.named_parameters(
        *(case for case in CASES if case[1] in _KERAS)
    )
    def test_all_rows_touched_is_keras_on_a_dense_variable(self, rule, options):
        rng = generator(self, 31)
        options = options | {"weight_decay": 0.05}
        table = _table(rule, options, learning_rate=0.1)
        # Every row is updated in every step, so that both corrections agree.
        options.pop("bias_correction", None)
        optimizer = getattr(keras.optimizers, _KERAS[rule])(0.1, **options)
        signs = np.arange(12)
        variable = tf.Variable(table.pull(signs))
        optimizer.build([variable])
        apply = tf.function(
            lambda gradients: optimizer.apply_gradients([(gradients, variable)])
        )
        for step in range(1, 101):
            gradients = rng.normal(size=(12, 4)).astype(np.float32)
            apply(tf.constant(gradients))
            table.push(signs, gradients, step=step)
        # Keras's Adam subtracts a float32 power of beta_2 from 1, which leaves
        # five digits of the first step sizes.
        self._RELATIVE = self._OF_LARGEST = 1e-5
        self.assert_near(table.pull(signs), variable.numpy(), rule)

    @parameterized.named_parameters(
        ("adagrad", "adagrad", "accumulator"),
        ("ftrl", "ftrl", "accumulator"),
    )
    def test_slots_start_where_they_are_told_to(self, rule, field):
        for start in (0.0, 0.1, 3.5):
            table = _table(rule, {"initial_accumulator_value": start})
            table.pull([1], training=True)
            _, fields = table.export_rows()
            self.assertAllEqual(
                fields[field], np.full([1, 4], start, np.float32)
            )


class DuplicateTest(tf.test.TestCase, parameterized.TestCase):
    """Three gradients of 1 for one sign, which are one gradient of 3.

    Adagrad then moves a weight of 1 at rate 0.1 by 0.1 * 3 / sqrt(0.1 + 9), to
    0.9006. If each were squared by itself, as in Keras 3's sparse Adagrad, it
    would end at 1 - 0.1 * 3 / sqrt(0.1 + 3) = 0.8296.
    """

    def _table(self):
        return tf_ext.SparseTable(
            "t",
            1,
            optimizers.SparseAdagrad(0.1),
            tf_ext.initializers.Constant(1.0),
        )

    def _assert_summed(self, table):
        signs, fields = table.export_rows()
        self.assertAllEqual(signs, [7])
        self.assertAllClose(fields["accumulator"], [[9.1]], 1e-6, 0)
        self.assertAllClose(fields["weights"], [[0.9006]], 1e-4, 0)
        self.assertAllClose(fields["weights"], [[1 - 0.3 / 9.1**0.5]], 1e-6, 0)

    def test_in_a_push(self):
        table = self._table()
        self.assertEqual(table.push([7, 7, 7], np.ones([3, 1])), 1)
        self._assert_summed(table)

    @parameterized.named_parameters(
        # What each layer is called with, the layers' columns.
        ("in_a_bag", [[{"a": [[7, 7, 7]]}]], "a"),
        ("over_the_batch", [[{"a": [7, 7, 7]}]], "a"),
        ("across_columns", [[{"a": [7], "b": [7], "c": [7]}]], "abc"),
        (
            "in_bags_of_two_columns",
            [[{"a": [[7, 7]], "b": [7]}]],
            "ab",
        ),
        ("in_two_layers", [[{"a": [[7, 7]]}], [{"a": [7]}]], "a"),
        ("in_calls_of_one_layer", [[{"a": [7]}, {"a": [7]}, {"a": [7]}]], "a"),
        (
            "everywhere",
            [[{"a": [7], "b": [7]}], [{"a": [[]], "b": [7]}]],
            "ab",
        ),
    )
    def test_(self, calls, keys):
        for run in (lambda f: f, tf.function):
            table = self._table()
            columns = [id_column(key) for key in keys]
            layers = [
                tf_ext.layers.EmbeddingFeatures(columns, table) for _ in calls
            ]
            optimizer = tf_ext.optimizers.Optimizer("adam")

            @run
            def train(layers=layers, table=table, optimizer=optimizer):
                with tf.GradientTape() as tape:
                    loss = tf.add_n(
                        [
                            tf.reduce_sum(layer(_int64(inputs), training=True))
                            for layer, its_calls in zip(layers, calls)
                            for inputs in its_calls
                        ]
                    )
                gradient = tape.gradient(loss, table.trainable_variables)
                optimizer.apply_gradients(
                    zip(gradient, table.trainable_variables)
                )

            train()
            self._assert_summed(table)


def _int64(inputs):
    return {
        key: tf.ragged.constant(value, tf.int64)
        if isinstance(value[0], list)
        else tf.constant(value, tf.int64)
        for key, value in inputs.items()
    }


if __name__ == "__main__":
    tf.test.main()
