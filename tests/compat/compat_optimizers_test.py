# SPDX-License-Identifier: Apache-2.0
"""What Keras's optimizers keep to themselves is still there."""

import gc
import weakref

import pytest
import tensorflow as tf
from absl.testing import absltest
from models.model_building import mirrored_strategy

from tf_ext._compat import optimizers
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = pytest.mark.both_kerases


def _variable():
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    layer.build([None, 1])
    return layer.kernel


def _schedule():
    return keras.optimizers.schedules.PiecewiseConstantDecay([5], [0.5, 0.25])


class KeysTest(absltest.TestCase):
    def test_tell_variables_apart(self):
        one, two = _variable(), _variable()
        optimizer = keras.optimizers.SGD()
        key = optimizers.key_of(optimizer, one)
        self.assertEqual(key, optimizers.key_of(optimizer, one))
        self.assertNotEqual(key, optimizers.key_of(optimizer, two))

    def test_are_the_same_in_all_replicas(self):
        keys = []
        strategy = mirrored_strategy()
        with strategy.scope():
            optimizer, variable = keras.optimizers.SGD(), _variable()

        def step():
            keys.append(optimizers.key_of(optimizer, variable))

        strategy.run(step)
        self.assertLen(keys, 2)
        self.assertLen(set(keys), 1)
        self.assertEqual(keys[0], optimizers.key_of(optimizer, variable))


class SlotsTest(absltest.TestCase):
    def test_have_a_variable_for_each_that_is_trained(self):
        variables = [_variable(), _variable()]
        for optimizer, names in (
            # tf_keras makes slots that it does not use.
            (keras.optimizers.SGD(), [] if IS_KERAS_3 else ["momentums"]),
            (keras.optimizers.SGD(momentum=0.5), ["momentums"]),
            (keras.optimizers.Lion(), ["momentums"]),
            (keras.optimizers.Adagrad(), ["accumulators"]),
            (keras.optimizers.Adam(), ["momentums", "velocities"]),
            (keras.optimizers.Ftrl(), ["accumulators", "linears"]),
        ):
            self.assertEmpty(optimizers.slots_of(optimizer))
            self.assertIsNone(optimizers.index_of(optimizer, variables[0]))
            optimizer.build(variables)
            slots = optimizers.slots_of(optimizer)
            self.assertCountEqual(slots, names)
            for place, variable in enumerate(variables):
                found = optimizers.index_of(optimizer, variable)
                self.assertEqual(found, place)
            for several in slots.values():
                self.assertEqual([one.shape for one in several], [(1, 1)] * 2)
            other = optimizers.index_of(optimizer, _variable())
            self.assertIsNone(other)


class CounterTest(absltest.TestCase):
    def test_counts_calls(self):
        options = [{}]
        if IS_KERAS_3:
            options.append({"gradient_accumulation_steps": 2})
        for given in options:
            optimizer = keras.optimizers.SGD(1.0, **given)
            variable = _variable()
            for _ in range(3):
                optimizer.apply_gradients([(tf.ones([1, 1]), variable)])
            counter = optimizers.counter_of(optimizer)
            self.assertEqual(int(tf.convert_to_tensor(counter)), 3)
            steps = int(tf.convert_to_tensor(optimizer.iterations))
            self.assertEqual(steps, 1 if given else 3)
            counter.assign(4)
            self.assertEqual(int(tf.convert_to_tensor(counter)), 4)


class WeightDecayTest(absltest.TestCase):
    def test_variables_without_it(self):
        make, variable = keras.optimizers.SGD, _variable()
        self.assertFalse(optimizers.excludes_from_decay(make()))
        for options in (
            {"var_list": [variable]},
            {"var_names": ["bias"]},
        ):
            optimizer = make(weight_decay=0.5)
            optimizer.exclude_from_weight_decay(**options)
            self.assertTrue(optimizers.excludes_from_decay(optimizer))
            optimizer.exclude_from_weight_decay()
            self.assertFalse(optimizers.excludes_from_decay(optimizer))


class RateTest(absltest.TestCase):
    def test_is_the_variable_that_callbacks_assign(self):
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.learning_rate = 0.25
        variable = optimizers.rate_variable(optimizer)
        self.assertEqual(float(tf.convert_to_tensor(variable)), 0.25)
        variable.assign(0.125)
        self.assertEqual(
            float(tf.convert_to_tensor(optimizer.learning_rate)), 0.125
        )

    def test_is_none_of_a_schedule(self):
        optimizer = keras.optimizers.SGD(_schedule())
        self.assertIsNone(optimizers.rate_variable(optimizer))
        # The public one is a value like any other.
        self.assertEqual(
            float(tf.convert_to_tensor(optimizer.learning_rate)), 0.5
        )

    def test_is_given_back(self):
        schedule = _schedule()
        optimizer = keras.optimizers.SGD(schedule)
        self.assertIs(optimizers.given_rate(optimizer), schedule)
        # The public one is a value like any other.
        self.assertIsNot(optimizer.learning_rate, schedule)

    @absltest.skipIf(not IS_KERAS_3, "tf_keras accumulates nothing")
    def test_is_replaced_for_a_step(self):
        variable, schedule = _variable(), _schedule()
        optimizer = keras.optimizers.SGD(schedule)
        with optimizers.with_rate(optimizer, tf.constant(2.0)):
            optimizer.apply([tf.ones([1, 1])], [variable])
        optimizer.apply([tf.ones([1, 1])], [variable])
        self.assertEqual(variable.numpy().tolist(), [[-2.5]])
        with self.assertRaises(KeyboardInterrupt):
            with optimizers.with_rate(optimizer, tf.constant(1.0)):
                raise KeyboardInterrupt
        self.assertIs(optimizers.given_rate(optimizer), schedule)

    @absltest.skipIf(IS_KERAS_3, "Keras 3 computes it where it is read")
    def test_of_a_schedule_is_old_until_it_is_refreshed(self):
        optimizer = keras.optimizers.SGD(_schedule())
        optimizer.build([_variable()])
        optimizer.iterations.assign(9)
        self.assertEqual(float(optimizer.learning_rate), 0.5)
        optimizers.refresh_rate(optimizer)
        self.assertEqual(float(optimizer.learning_rate), 0.25)


class LossScaleTest(absltest.TestCase):
    def test_is_what_steps_change(self):
        scaled = keras.mixed_precision.LossScaleOptimizer
        optimizer = scaled(keras.optimizers.SGD(1.0))
        found = optimizers.loss_scale_variables(optimizer)
        if IS_KERAS_3:
            # It is among the optimizer's variables.
            self.assertEmpty(found)
            return
        before, variable = float(found["scale"]), _variable()
        for gradient in (1.0, float("inf"), 1.0):
            optimizer.apply_gradients([(tf.fill([1, 1], gradient), variable)])
        self.assertEqual(float(found["scale"]), before / 2)
        self.assertEqual(int(found["good_steps"]), 1)
        for other in (
            scaled(keras.optimizers.SGD(), False, 8),
            optimizer.inner_optimizer,
        ):
            self.assertEmpty(optimizers.loss_scale_variables(other))


@absltest.skipUnless(IS_KERAS_3, "tf_keras has an argument for it")
class SumOverReplicasTest(absltest.TestCase):
    def _keeps_graph(self, summed):
        """Whether a step's graph outlives all that used it."""
        optimizer, variable = keras.optimizers.SGD(), _variable()
        if not summed:
            optimizers.without_replica_sum(optimizer)

        @tf.function
        def step():
            optimizer.apply([tf.ones([1, 1])], [variable])

        step()
        graph = weakref.ref(step.get_concrete_function().graph)
        del step
        gc.collect()
        return graph() is not None

    def test_graphs_are_freed_without_it(self):
        self.assertFalse(self._keeps_graph(summed=False))

    def test_keras_keeps_graphs_for_it(self):
        self.assertTrue(self._keeps_graph(summed=True))

    def test_keras_calls_no_other(self):
        summed = []

        class Recording(keras.optimizers.SGD):
            def _all_reduce_sum_gradients(self, grads_and_vars):
                summed.append(len(grads_and_vars))
                return super()._all_reduce_sum_gradients(grads_and_vars)

        for without, calls in ((False, [1]), (True, [])):
            summed.clear()
            optimizer, variable = Recording(1.0), _variable()
            if without:
                optimizers.without_replica_sum(optimizer)
            optimizer.apply([tf.ones([1, 1])], [variable])
            self.assertEqual(summed, calls)
            self.assertEqual(float(variable.numpy()[0, 0]), -1.0)


class PartsTest(absltest.TestCase):
    def test_of_an_optimizer_alone(self):
        optimizer, variables = keras.optimizers.SGD(), [_variable()]
        parts = optimizers.parts_of(optimizer, variables)
        self.assertEqual(parts, [(optimizer, variables)])

    def test_of_a_composed_optimizer(self):
        if IS_KERAS_3:
            self.skipTest("TensorFlow Recommenders refuses Keras 3")
        import tensorflow_recommenders as tfrs

        one, two = keras.optimizers.SGD(), keras.optimizers.SGD()
        variables = [_variable(), _variable()]
        composed = tfrs.experimental.optimizers.CompositeOptimizer(
            [(one, lambda: variables[:1]), (two, lambda: variables[1:])]
        )
        parts = optimizers.parts_of(composed, variables)
        self.assertEqual([part for part, _ in parts], composed.optimizers)
        for (_, trained), variable in zip(parts, variables, strict=True):
            self.assertLen(trained, 1)
            self.assertIs(trained[0], variable)


if __name__ == "__main__":
    absltest.main()
