# SPDX-License-Identifier: Apache-2.0
"""Gradients on their way from the layer through the optimizer to the table."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from models.model_building import (
    TableNetwork,
    generator,
    id_column,
    mirrored_strategy,
    number,
)
from ops_util import named_cases

import tf_ext
from tf_ext import optimizers
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.regimes.exchange import Exchange

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "AccumulationTest::test_an_incomplete_group_waits_dense_variables_False",
        "BackwardTest::test_*",
        "LossScalingTest::test_a_step_that_is_not_finite_is_skipped_whole_dense_variables_False_value_nan",
        "LossScalingTest::test_a_step_that_is_not_finite_is_skipped_whole_dense_variables_True_value_inf",
        "PushCountTest::test_a_table_that_the_loss_does_not_reach_is_not_pushed",
        "PushCountTest::test_one_push_for_each_table_and_step",
        "SlicesTest::test_are_clipped_as_keras_does_rule_Adagrad_clipping_global_norm",
        "SlicesTest::test_are_clipped_as_keras_does_rule_Adagrad_clipping_norm",
        "SlicesTest::test_are_clipped_as_keras_does_rule_Adam_clipping_value",
    ),
]


def _bag(rows, weights, combiner):
    """One combined bag in float64, or zeros."""
    if not len(rows):
        return np.zeros(rows.shape[1])
    if combiner == "max":
        return rows.max(axis=0)
    divisor = {
        "sum": 1.0,
        "mean": weights.sum(),
        "sqrtn": np.sqrt((weights**2).sum()),
    }[combiner]
    return weights @ rows / divisor


class BackwardTest(tf.test.TestCase, parameterized.TestCase):
    """The gradient against differences of the sum, in float64."""

    @parameterized.named_parameters(
        (f"{'weighted_' * weighted}{combiner}_{mode}", combiner, weighted, run)
        for combiner in ("sum", "mean", "sqrtn", "max")
        for weighted in (False, True)
        for mode, run in (("eager", lambda f: f), ("traced", tf.function))
        if not (weighted and combiner == "max")
    )
    def test_of_(self, combiner, weighted, run):
        rng = generator(self)
        table = tf_ext.SparseTable("t", 3, "sgd", seed=7)
        column = id_column("a", combiner, weights="w" if weighted else None)
        layer = tf_ext.layers.EmbeddingFeatures([column], table)
        # An empty bag at the beginning, in between and at the end; signs that
        # repeat in a bag and over bags.
        bags = [[], [4], [-1, 4, -1], [], [0, 5, 4, 2**62], []]
        weights = [rng.uniform(0.5, 2.0, len(bag)) for bag in bags]
        inputs = {"a": tf.ragged.constant(bags, tf.int64)}
        if weighted:
            inputs["w"] = tf.ragged.constant(
                [w.tolist() for w in weights], tf.float32
            )
        else:
            weights = [np.ones(len(bag)) for bag in bags]
        upstream = rng.normal(size=(len(bags), 3))

        @run
        def gradient():
            with tf.GradientTape() as tape:
                outputs = layer(inputs, training=True)
                loss = tf.reduce_sum(outputs * upstream.astype(np.float32))
            return outputs, tape.gradient(loss, layer.trainable_variables)

        outputs, (slices,) = gradient()
        signs = slices.indices.numpy().tolist()
        self.assertCountEqual(signs, [4, -1, 0, 5, 2**62])
        self.assertAllEqual(slices.dense_shape, [1, 3])
        rows = table.pull(signs).numpy().astype(np.float64)

        def combined(rows):
            return np.stack(
                [
                    _bag(rows[[signs.index(s) for s in bag]], w, combiner)
                    for bag, w in zip(bags, weights)
                ]
            )

        # Both float32, from numbers of a few units.
        self.assertAllClose(outputs, combined(rows), 1e-5, 1e-7)
        expected = np.zeros_like(rows)
        for place in np.ndindex(rows.shape):
            step = np.zeros_like(rows)
            step[place] = 1e-6
            difference = combined(rows + step) - combined(rows - step)
            expected[place] = np.sum(difference * upstream) / 2e-6
        self.assertAllClose(slices.values, expected, 1e-5, 1e-6)

    @parameterized.named_parameters(
        (combiner, combiner) for combiner in ("sum", "mean", "sqrtn", "max")
    )
    def test_a_batch_of_empty_bags_changes_nothing(self, combiner):
        table = tf_ext.SparseTable("t", 3, "adagrad")
        table.pull([1], training=True)
        before = table.export_rows()[1]
        layer = tf_ext.layers.EmbeddingFeatures(
            [id_column("a", combiner)], table
        )
        optimizer = tf_ext.optimizers.Optimizer("sgd")
        empty = {"a": tf.ragged.constant([[], []], tf.int64, ragged_rank=1)}
        with tf.GradientTape() as tape:
            outputs = layer(empty, training=True)
            loss = tf.reduce_sum(outputs)
        self.assertAllEqual(outputs, np.zeros([2, 3]))
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables))
        for name, values in table.export_rows()[1].items():
            self.assertAllEqual(values, before[name])
        self.assertEqual(number(optimizer.iterations), 1)


class PushCountTest(tf.test.TestCase, parameterized.TestCase):
    """One push a table and step, whatever the number of layers and calls."""

    def setUp(self):
        super().setUp()
        self.tables = {
            name: tf_ext.SparseTable(name, dim, "adagrad")
            for name, dim in (("wide", 1), ("deep", 4))
        }
        wide, deep = self.tables["wide"], self.tables["deep"]
        columns = [id_column("a"), id_column("b", "mean")]
        both = tf_ext.layers.EmbeddingFeatures({wide: columns, deep: columns})
        one = tf_ext.layers.EmbeddingFeatures(columns[:1], deep)
        swap = {"a": "b", "b": "a"}
        self.model = TableNetwork([(both, {}), (both, swap), (one, {})])
        self.model.compile(
            tf_ext.optimizers.Optimizer("adam"), "mse", run_eagerly=True
        )
        rng = generator(self)
        signs = rng.integers(-4, 4, [2, 12, 3])
        features = {f"{k}_places": v for k, v in zip("ab", signs)}
        self.features = {"a": signs[0], "b": signs[1]} | features
        self.labels = rng.normal(size=[12, 1]).astype(np.float32)

    def _requests(self, call):
        """The gradients in each push of the regime."""
        pushes, push = [], Exchange.push

        def counted(exchange, gradients, *args):
            pushes.append(gradients)
            return push(exchange, gradients, *args)

        with mock.patch.object(Exchange, "push", counted):
            call()
        return pushes

    def test_one_push_for_each_table_and_step(self):
        pushes = self._requests(
            lambda: self.model.fit(
                self.features, self.labels, batch_size=4, verbose=0
            )
        )
        self.assertLen(pushes, 3)
        for requests in pushes:
            self.assertCountEqual(
                [request.table.name for request in requests], self.tables
            )
            for request in requests:
                signs = request.signs.numpy().tolist()
                self.assertLen(set(signs), len(signs))
        self.assertEqual(number(self.model.optimizer.iterations), 3)

    def test_a_traced_step_holds_one_push_for_each_table(self):
        self.model.compile(tf_ext.optimizers.Optimizer("adam"), "mse")
        pushes = self._requests(
            lambda: self.model.fit(
                self.features, self.labels, batch_size=4, verbose=0
            )
        )
        # Whether the step is traced once or twice is Keras's business.
        for requests in pushes:
            self.assertCountEqual(
                [request.table.name for request in requests], self.tables
            )
        self.assertEqual(number(self.model.optimizer.iterations), 3)

    def test_a_table_that_the_loss_does_not_reach_is_not_pushed(self):
        # With weight decay a push of zeros would show.
        one, other = (
            tf_ext.SparseTable(
                name, 2, optimizers.SparseSGD(0.1, weight_decay=0.5), "normal"
            )
            for name in ("one", "other")
        )
        layer = tf_ext.layers.EmbeddingFeatures(
            {one: [id_column("a")], other: [id_column("a")]}
        )
        optimizer = tf_ext.optimizers.Optimizer("sgd")
        self.assertEqual(number(optimizer.iterations), 0)

        def step():
            with tf.GradientTape() as tape:
                outputs = layer({"a": tf.constant([1, 2])}, training=True)
                loss = tf.reduce_sum(outputs["one"])
            variables = layer.trainable_variables
            self.assertLen(variables, 2)
            gradients = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(gradients, variables))

        initial = other.pull([1, 2])
        pushes = self._requests(step)
        self.assertEqual(
            [[request.table.name for request in r] for r in pushes], [["one"]]
        )
        self.assertAllEqual(other.pull([1, 2]), initial)
        self.assertNotAllClose(one.pull([1, 2]), initial)
        self.assertEqual(number(optimizer.iterations), 1)


class SumModel(tf_ext.Model):
    """A model without a dense variable."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs, training=None):
        output = self.layer(inputs, training=training)
        return tf.reduce_sum(output, axis=1, keepdims=True)


def _model(rule, dense_variables, optimizer):
    table = tf_ext.SparseTable("t", 4, rule, "normal", seed=3)
    layer = tf_ext.layers.EmbeddingFeatures([id_column("a", "mean")], table)
    model = TableNetwork([(layer, {})]) if dense_variables else SumModel(layer)
    model.compile(optimizer, "mse")
    return model, table


def _state(model, table):
    """All rows with their slots and all dense variables, as arrays."""
    signs, fields = table.export_rows()
    order = np.argsort(signs)
    rows = [signs[order]] + [fields[name][order] for name in sorted(fields)]
    dense = [v.numpy() for v in model.variables if v.shape != (1, 4)]
    return rows + dense


class SlicesTest(tf.test.TestCase, parameterized.TestCase):
    """Sparse gradients of Keras's own embeddings."""

    @parameterized.named_parameters(
        *named_cases(
            # The ones that make a dense gradient of it, and do not.
            rule=["Adam", "Adagrad"],
            clipping=[
                ("norm", {"clipnorm": 0.1}),
                ("global_norm", {"global_clipnorm": 0.1}),
                ("value", {"clipvalue": 0.01}),
            ],
        )
    )
    def test_are_clipped_as_keras_does(self, rule, clipping):
        trained = []
        for wrap in (lambda optimizer: optimizer, optimizers.Optimizer):
            layer = keras.layers.Embedding(
                6, 2, embeddings_initializer="ones", name="own"
            )
            ids = tf.constant([1, 3])
            layer(ids)
            variables = layer.trainable_variables
            optimizer = wrap(getattr(keras.optimizers, rule)(0.1, **clipping))
            for factor in (1.0, 5.0):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(
                        factor * layer(ids) * [[1.0, 2.0], [3.0, 4.0]]
                    )
                gradients = tape.gradient(loss, variables)
                self.assertIsInstance(gradients[0], tf.IndexedSlices)
                optimizer.apply_gradients(zip(gradients, variables))
            trained.append(layer.get_weights()[0])
        self.assertAllClose(trained[1], trained[0], 1e-6, 1e-6)
        self.assertNotAllClose(trained[0][[1, 3]], np.ones([2, 2]), 1e-3)


@absltest.skipIf(not IS_KERAS_3, "tf_keras has no gradient_accumulation_steps.")
class AccumulationTest(tf.test.TestCase, parameterized.TestCase):
    """Four micro-steps of batch B are one step of batch 4B."""

    _STEPS, _BATCH_SIZE, _GROUPS = 4, 4, 8

    def _features(self, signs, micro_batches):
        rng = generator(self)
        shape = [micro_batches * self._BATCH_SIZE, 2]
        if signs == "repeated":
            a = rng.integers(-5, 5, shape)
        else:
            # A sign comes once in a group, and again in the next.
            group = self._STEPS * self._BATCH_SIZE * 2
            a = np.arange(np.prod(shape)).reshape(shape) % group
        labels = rng.normal(size=[len(a), 1]).astype(np.float32)
        return {"a": a, "a_places": a}, labels

    def _train(self, model, data, batch_size):
        model.fit(
            *data, batch_size=batch_size, epochs=1, shuffle=False, verbose=0
        )

    @parameterized.named_parameters(
        *named_cases(
            rule=["adagrad", "adam"],
            signs=["repeated", "disjoint"],
            dense_variables=[True, False],
            clipping=[("none", {}), ("global_norm", {"global_clipnorm": 0.2})],
        )
    )
    def test_with_(self, rule, signs, dense_variables, clipping):
        features, labels = self._features(signs, self._STEPS * self._GROUPS)
        models = []
        for steps in (self._STEPS, None):
            dense = keras.optimizers.Adam(
                0.05, gradient_accumulation_steps=steps, **clipping
            )
            models.append(
                _model(rule, dense_variables, optimizers.Optimizer(dense))
            )
            model = models[-1][0]
            self._train(
                model,
                (features, labels),
                self._BATCH_SIZE * (1 if steps else self._STEPS),
            )
            self.assertEqual(number(model.optimizer.iterations), self._GROUPS)
        for actual, expected in zip(*(_state(*m) for m in models)):
            # The sum of four means rounds otherwise than the mean of all.
            self.assertAllClose(actual, expected, 1e-5, 1e-5)

    @parameterized.named_parameters(*named_cases(dense_variables=[True, False]))
    def test_an_incomplete_group_waits(self, dense_variables):
        features, labels = self._features("repeated", self._STEPS * 2)
        dense = keras.optimizers.SGD(
            0.05, gradient_accumulation_steps=self._STEPS
        )
        model, table = _model(
            "adagrad", dense_variables, optimizers.Optimizer(dense)
        )

        def train(begin, end):
            part = slice(begin * self._BATCH_SIZE, end * self._BATCH_SIZE)
            its_features = {k: v[part] for k, v in features.items()}
            self._train(model, (its_features, labels[part]), self._BATCH_SIZE)
            return table.pull(range(-5, 5)).numpy()

        after_four = train(0, 4)
        self.assertAllEqual(train(4, 6), after_four)
        self.assertEqual(number(model.optimizer.iterations), 1)
        # Over the end of fit(), too.
        self.assertNotAllClose(train(6, 8), after_four)
        self.assertEqual(number(model.optimizer.iterations), 2)

        whole, its_table = _model(
            "adagrad",
            dense_variables,
            optimizers.Optimizer(keras.optimizers.SGD(0.05)),
        )
        self._train(whole, (features, labels), self._BATCH_SIZE * self._STEPS)
        self.assertAllClose(
            table.pull(range(-5, 5)), its_table.pull(range(-5, 5)), 1e-5, 1e-6
        )


def _scaled(dynamic, initial_scale):
    """The optimizer with loss scaling, as each Keras has it."""
    if dynamic:
        wrapper = keras.mixed_precision.LossScaleOptimizer
        if IS_KERAS_3:
            return optimizers.Optimizer(
                wrapper(keras.optimizers.Adam(0.05), initial_scale)
            )
        return wrapper(
            optimizers.Optimizer(keras.optimizers.Adam(0.05)),
            initial_scale=initial_scale,
        )
    if IS_KERAS_3:
        return optimizers.Optimizer(
            keras.optimizers.Adam(0.05, loss_scale_factor=initial_scale)
        )
    return keras.mixed_precision.LossScaleOptimizer(
        optimizers.Optimizer(keras.optimizers.Adam(0.05)),
        dynamic=False,
        initial_scale=initial_scale,
    )


def _scale_of(optimizer):
    return number(
        optimizer.dynamic_scale if IS_KERAS_3 else optimizer.loss_scale
    )


class LossScalingTest(tf.test.TestCase, parameterized.TestCase):
    def _data(self):
        rng = generator(self)
        a = rng.integers(-5, 5, [64, 2])
        labels = rng.normal(size=[64, 1]).astype(np.float32)
        return {"a": a, "a_places": a}, labels

    def _train(self, model, features, labels):
        model.fit(features, labels, batch_size=16, shuffle=False, verbose=0)

    @parameterized.named_parameters(
        *named_cases(dynamic=[True, False], dense_variables=[True, False])
    )
    def test_a_finite_scale_changes_nothing(self, dynamic, dense_variables):
        states = []
        for optimizer in (
            _scaled(dynamic, 1024.0),
            optimizers.Optimizer(keras.optimizers.Adam(0.05)),
        ):
            model, table = _model("adagrad", dense_variables, optimizer)
            self._train(model, *self._data())
            states.append(_state(model, table))
        for actual, expected in zip(*states):
            # A power of two scales exactly.
            self.assertAllClose(actual, expected, 1e-6, 1e-7)

    @parameterized.named_parameters(
        *named_cases(dense_variables=[True, False], value=[np.inf, np.nan])
    )
    def test_a_step_that_is_not_finite_is_skipped_whole(
        self, dense_variables, value
    ):
        self._assert_is_skipped("none", dense_variables, value)

    def test_a_step_that_is_not_finite_is_skipped_by_two_replicas(self):
        self._assert_is_skipped("mirrored", True, np.inf)

    def _assert_is_skipped(self, strategy, dense_variables, value):
        scope = tf.distribute.get_strategy()
        if strategy == "mirrored":
            scope = mirrored_strategy()
        with scope.scope():
            model, table = _model(
                "adam", dense_variables, _scaled(True, 1024.0)
            )
        features, labels = self._data()
        self._train(model, features, labels)
        before = _state(model, table)
        self.assertEqual(_scale_of(model.optimizer), 1024.0)
        # One example, hence one replica's: the others must skip as well.
        bad = labels[:16].copy()
        bad[3] = value
        first = {key: feature[:16] for key, feature in features.items()}
        self._train(model, first, bad)
        for actual, expected in zip(_state(model, table), before):
            self.assertAllEqual(actual, expected)
        self.assertEqual(_scale_of(model.optimizer), 512.0)
        # tf_keras counts a skipped step, Keras 3 does not.
        steps = 4 if IS_KERAS_3 else 5
        self.assertEqual(number(model.optimizer.iterations), steps)
        # And training goes on.
        self._train(model, first, labels[:16])
        self.assertEqual(number(model.optimizer.iterations), steps + 1)
        self.assertNotAllClose(_state(model, table)[-1], before[-1])

    def test_without_scaling_the_table_refuses_what_is_not_finite(self):
        model, table = _model(
            "adam", False, optimizers.Optimizer(keras.optimizers.SGD(0.1))
        )
        features, labels = self._data()
        self._train(model, features, labels)
        before = _state(model, table)
        labels[3] = np.nan
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            r"is -?nan; gradients must be finite. Table \"t\" was not",
        ):
            self._train(model, features, labels)
        for actual, expected in zip(_state(model, table), before):
            self.assertAllEqual(actual, expected)


if __name__ == "__main__":
    tf.test.main()
