# SPDX-License-Identifier: Apache-2.0
"""Optimizers of models, and models that are built before the first step."""

import types

import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import id_column

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.tables import shadow
from tf_ext.training import building

pytestmark = pytest.mark.both_kerases


class _Two(tf_ext.Model):
    """A table and a Dense layer, which a batch builds."""

    def __init__(self, trainable=True):
        super().__init__()
        self.table = tf_ext.SparseTable("ids", 2, "sgd", trainable=trainable)
        self.embed = tf_ext.layers.EmbeddingFeatures(
            [id_column("ids")], self.table
        )
        self.top = keras.layers.Dense(1)
        self.sizes = []

    def call(self, inputs):
        self.sizes.append(inputs["ids"].shape[0])
        return self.top(self.embed(inputs))


_SPEC = (
    {"ids": tf.TensorSpec([None], tf.int64)},
    tf.TensorSpec([None, 1]),
)


class BuildingTest(tf.test.TestCase, parameterized.TestCase):
    def test_a_batch_of_the_spec_builds(self):
        model = _Two()
        batch = building.example_of(_SPEC)
        self.assertAllEqual(batch[0]["ids"], [0, 0])
        building.build_model(model, batch)
        self.assertEqual({*model.sizes}, {2})
        self.assertEqual(tuple(model.top.kernel.shape), (2, 1))
        model.sizes.clear()
        building.build_model(model, batch)
        self.assertEqual(model.sizes, [])

    def test_losses_build_where_nothing_is_called(self):
        if IS_KERAS_3:
            self.skipTest("models of TensorFlow Recommenders are of tf_keras")

        class Retrieval(tf_ext.Model):
            def __init__(self):
                super().__init__()
                self.top = keras.layers.Dense(1)
                self.mean = keras.metrics.Mean()
                self.trains = []

            def compute_loss(self, inputs, training=True):
                self.trains.append(training)
                self.mean.update_state(5.0)
                return tf.reduce_sum(self.top(inputs[1]))

        model = Retrieval()
        building.build_model(model, building.example_of(_SPEC))
        self.assertTrue(model.built)
        self.assertEqual(model.trains, [False])
        self.assertLen(model.top.weights, 2)
        self.assertEqual(float(model.mean.result()), 0.0)

    def test_optimizers_are_built(self):
        model = _Two()
        building.build_optimizer(model)
        building.build_model(model, building.example_of(_SPEC))
        model.compile(
            tf_ext.optimizers.Optimizer(keras.optimizers.Adam()), "mse"
        )
        building.build_optimizer(model)
        slots = model.optimizer.variables
        shapes = [tuple(one.shape) for one in slots]
        # Two moments of Adam for the kernel.
        self.assertEqual(shapes.count((2, 1)), 2)

    def test_finds_what_is_wrapped(self):
        one, other = (
            tf_ext.optimizers.Optimizer(keras.optimizers.SGD())
            for _ in range(2)
        )
        for optimizer, found in (
            (None, []),
            (keras.optimizers.SGD(), []),
            (one, [one]),
            (types.SimpleNamespace(inner_optimizer=one), [one]),
            (
                types.SimpleNamespace(optimizers=[one, None, other]),
                [one, other],
            ),
        ):
            self.assertEqual(building.wrapped_optimizers(optimizer), found)

    def test_each_table_has_one_of_composed_optimizers(self):
        def check(model, *parts):
            # As TensorFlow Recommenders composes them, of functions.
            model.optimizer = types.SimpleNamespace(
                optimizers=[None] * len(parts),
                _optimizers_and_vars=[(None, lambda p=p: p) for p in parts],
            )
            building.check_composed_optimizer(model)

        def refused(model, text, *parts):
            with self.assertRaisesRegex(
                ValueError,
                f"Table 'ids' is trained by {text} of the optimizers of "
                "SimpleNamespace. Each trainable .* exactly one",
            ):
                check(model, *parts)

        def of_table(trainable):
            table = tf_ext.SparseTable("ids", 2, "sgd", trainable=trainable)
            variable = tf.Variable(tf.zeros([1, 2]))
            shadow.mark(variable, table)
            return types.SimpleNamespace(weights=[variable], table=table)

        model, frozen = of_table(True), of_table(False)
        [variable] = model.weights
        other = tf.Variable(1.0)
        check(model, [variable, other], [other])
        check(model, [], [variable])
        refused(model, "none", [other], [])
        refused(model, "none")
        refused(model, "2", [variable], [other, variable])
        check(frozen, [other])
        # It is no composed one, whatever it trains.
        model.optimizer = None
        building.check_composed_optimizer(model)

    @parameterized.parameters(False, None, "auto", True, 1)
    def test_xla(self, value):
        refused = value is True or (not IS_KERAS_3 and bool(value))
        if not refused:
            building.check_jit(value)
            return
        allowed = "'auto' or False" if IS_KERAS_3 else "False"
        with self.assertRaisesRegex(
            ValueError, f"`jit_compile` of compile must be {allowed}, as XLA"
        ):
            building.check_jit(value)


if __name__ == "__main__":
    tf.test.main()
