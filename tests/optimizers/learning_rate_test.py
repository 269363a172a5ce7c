# SPDX-License-Identifier: Apache-2.0
"""Changes of the model's learning rate, and tables with rates of their own."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from models.model_building import (
    generator,
    mirrored_strategy,
    number,
    step_of_ones,
)
from ops_util import MODES
from saving_util import FORMATS, TestCase, contents

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.optimizers import Optimizer, SparseSGD
from tf_ext.recovery import beside
from tf_ext.recovery import points as recovery_points
from tf_ext.regimes import local_regime
from tf_ext.tables.saving.snapshot_save import Save

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "CallbacksTest::test_learning_rate_scheduler",
        "CallbacksTest::test_over_replicas",
        "CallbacksTest::test_reduce_on_plateau",
        "CallbacksTest::test_subclassed_*",
        "FactorTest::test_functions_are_traced_once",
        "FactorTest::test_rates_follow_in_proportion_eagerly",
        "SavingTest::test_a_loaded_model_goes_on_alike",
        "SavingTest::test_a_new_optimizer_begins_anew",
        "SavingTest::test_a_program_that_is_run_again_goes_on_alike_*",
        "SavingTest::test_recovery_points",
    ),
]

_SGD = keras.optimizers.SGD
_STEPS = 2  # of an epoch


def _halving(rate):
    return keras.optimizers.schedules.ExponentialDecay(rate, 1, 0.5)


def _table(rate, name="deep"):
    return tf_ext.SparseTable(name, 1, SparseSGD(rate), "zeros")


def _weights(*tables):
    return [float(table.pull([1])[0, 0]) for table in tables]


def _scheduler():
    """Of the rates 1, 1/4, 1/16, ..."""
    return keras.callbacks.LearningRateScheduler(lambda n: 1.0 / 4**n)


def _model(rate, dense=0.5):
    """A model with a table of this rate, and dense layers."""
    return small.compiled(
        small.functional(small.table(SparseSGD(rate))), _SGD(dense)
    )


class FactorTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.named_parameters(*MODES)
    def test_rates_follow_in_proportion(self, mode):
        own, other = _table(0.25, "own"), _table(8.0, "other")
        following = _table(None, "following")
        scheduled = _table(_halving(16.0), "scheduled")
        tables = [own, other, following, scheduled]
        optimizer = Optimizer(_SGD(2.0))
        step = mode(lambda: step_of_ones(optimizer, *tables))
        step()
        self.assertEqual(_weights(*tables), [-0.25, -8, -2, -16])
        optimizer.learning_rate = 1.0
        step()
        self.assertEqual(_weights(*tables), [-0.375, -12, -3, -24])
        optimizer.learning_rate = 8.0
        step()
        self.assertEqual(_weights(*tables), [-1.375, -44, -11, -28])
        # What is assigned to a table is its rate without the factor.
        own.optimizer.learning_rate = 0.5
        self.assertEqual(own.optimizer.learning_rate, 0.5)
        step()
        self.assertEqual(_weights(own), [-3.375])
        optimizer.learning_rate = 2.0
        step()
        self.assertEqual(_weights(own), [-3.875])
        optimizer.learning_rate = 0.0
        before = _weights(*tables[:3])
        step()
        self.assertEqual(_weights(*tables[:3]), before)

    @parameterized.named_parameters(*MODES)
    def test_a_rate_that_has_not_changed_leaves_all_bits(self, mode):
        # None of them has few binary digits.
        table = _table(0.3)
        optimizer = Optimizer(_SGD(0.1))
        mode(lambda: step_of_ones(optimizer, table))()
        expected = _table(0.3)
        expected.push([1], [[1.0]])
        self.assertEqual(_weights(table), _weights(expected))

    def test_functions_are_traced_once(self):
        table, optimizer, traces = _table(1.0), Optimizer(_SGD(1.0)), []

        @tf.function
        def step():
            traces.append(1)
            step_of_ones(optimizer, table)

        step()
        traced = len(traces)  # Twice, where variables are made.
        for rate in (0.5, 0.25, 4.0):
            optimizer.learning_rate = rate
            step()
        self.assertLen(traces, traced)
        self.assertEqual(_weights(table), [-5.75])

    def test_no_factor_for_a_schedule_of_the_model(self):
        table = _table(1.0)
        optimizer = Optimizer(_SGD(_halving(8.0)))
        for _ in range(3):
            step_of_ones(optimizer, table)
        self.assertEqual(_weights(table), [-3.0])

    def test_no_factor_for_a_model_that_began_with_a_rate_of_0(self):
        table = _table(1.0)
        optimizer = Optimizer(_SGD(0.0))
        for rate in (0.0, 0.5, 2.0):
            optimizer.learning_rate = rate
            step_of_ones(optimizer, table)
        self.assertEqual(_weights(table), [-3.0])

    def test_assigned_before_the_first_step(self):
        table = _table(1.0)
        optimizer = Optimizer(_SGD(2.0))
        optimizer.learning_rate = 1.0
        step_of_ones(optimizer, table)
        self.assertEqual(_weights(table), [-0.5])

    def test_accumulated_steps(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras accumulates nothing")
        table = _table(1.0)
        optimizer = Optimizer(_SGD(2.0, gradient_accumulation_steps=2))
        for rate in (1.0, 4.0):  # That of the last counts.
            optimizer.learning_rate = rate
            step_of_ones(optimizer, table)
        self.assertEqual(_weights(table), [-2.0])

    def test_schedules_count_accumulated_batches(self):
        """As Keras's do; Adam's bias correction counts whole steps."""
        if not IS_KERAS_3:
            self.skipTest("tf_keras accumulates nothing")

        def adam():
            decay = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.8)
            return keras.optimizers.Adam(decay, gradient_accumulation_steps=2)

        found = []
        for optimizer in (adam(), Optimizer(adam())):
            variable = keras.Variable([1.0, -1.0])
            steps = []
            for step in range(1, 8):
                gradient = tf.constant([1.0 / step, 3.0])
                optimizer.apply_gradients([(gradient, variable)])
                steps.append([*np.array(variable), optimizer.learning_rate])
            found.append(np.array(steps, np.float32))
        self.assertAllClose(*found, rtol=1e-6)
        again = Optimizer.from_config(optimizer.get_config())
        self.assertEqual(again.get_config(), optimizer.get_config())

    def test_tables_of_schedules_and_accumulated_batches(self):
        if not IS_KERAS_3:
            self.skipTest("tf_keras accumulates nothing")
        for own, rate in ((None, _halving(1.0)), (_halving(1.0), 2.0)):
            table = _table(own)
            optimizer = Optimizer(_SGD(rate, gradient_accumulation_steps=2))
            for _ in range(4):  # Steps at the second and the fourth.
                step_of_ones(optimizer, table)
            self.assertEqual(_weights(table), [-0.5 - 0.125])

    def test_a_loss_scale_around_it(self):
        if IS_KERAS_3:
            self.skipTest("Keras 3 has it inside")
        table = _table(1.0)
        optimizer = keras.mixed_precision.LossScaleOptimizer(
            Optimizer(_SGD(2.0)), dynamic=False, initial_scale=1.0
        )
        optimizer.learning_rate = 1.0
        step_of_ones(optimizer, table)
        self.assertEqual(_weights(table), [-0.5])

    def test_push_has_no_factor(self):
        table = _table(1.0)
        optimizer = Optimizer(_SGD(2.0))
        optimizer.learning_rate = 1.0
        step_of_ones(optimizer, table)
        table.push([1], [[1.0]])
        self.assertEqual(_weights(table), [-1.5])

    def test_rates_that_a_rule_cannot_have_are_told(self):
        table = tf_ext.SparseTable(
            "deep", 1, tf_ext.optimizers.SparseFtrl(0.1), "zeros"
        )
        optimizer = Optimizer(_SGD(2.0))
        optimizer.learning_rate = 0.0
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            "learning_rate of ftrl must be more than 0",
        ):
            step_of_ones(optimizer, table)


class _ByEpoch(keras.optimizers.schedules.LearningRateSchedule):
    """A rate for each epoch."""

    def __init__(self, rates):
        self._rates = rates

    def __call__(self, step):
        epoch = tf.cast(step, tf.int64) // _STEPS
        return tf.gather(tf.constant(self._rates), epoch)


class CallbacksTest(tf.test.TestCase, parameterized.TestCase):
    """Against schedules of the rates that the callback should bring."""

    def _check(self, callback, factors, make=_model, **options):
        """Compares `fit` of a table with the rate 0.25 in a model with 0.5.

        Args:
          callback: Keras callback.
          factors: list of float, that of the rates in each epoch.
          make: function of the rates of table and model.
          **options: of `fit`.
        """
        features, labels = small.batch(generator(self), 32 * _STEPS)
        model = make(0.25, 0.5)
        expected = make(
            *(_ByEpoch([rate * f for f in factors]) for rate in (0.25, 0.5))
        )
        for one, callbacks in ((model, [callback]), (expected, [])):
            one.fit(
                features,
                labels,
                batch_size=32,
                epochs=len(factors),
                shuffle=False,
                verbose=0,
                callbacks=callbacks,
                **options,
            )
        for found, wanted in zip(
            model.get_weights(), expected.get_weights(), strict=True
        ):
            self.assertAllClose(found, wanted, 1e-6, 1e-6)
        found, wanted = (m.tables[0] for m in (model, expected))
        signs = found.export_rows()[0]
        self.assertNotEmpty(signs)
        self.assertAllClose(found.pull(signs), wanted.pull(signs), 1e-6, 1e-6)
        self.assertEqual(found.optimizer.learning_rate, 0.25)

    def test_learning_rate_scheduler(self):
        self._check(_scheduler(), [2.0, 0.5, 0.125])

    def test_reduce_on_plateau(self):
        callback = keras.callbacks.ReduceLROnPlateau(
            monitor="loss", factor=0.1, patience=1, min_delta=100.0
        )
        # An epoch to compare with, and one of patience.
        self._check(callback, [1.0, 1.0, 0.1])

    @parameterized.parameters(True, False)
    def test_subclassed_models(self, eager):
        def make(rate, dense):
            model = small.Subclassed(small.table(SparseSGD(rate)))
            return small.compiled(model, _SGD(dense), run_eagerly=eager)

        self._check(_scheduler(), [2.0, 0.5], make)

    def test_over_replicas(self):
        def make(rate, dense):
            with mirrored_strategy().scope():
                return _model(rate, dense)

        self._check(_scheduler(), [2.0, 0.5], make)

    def test_train_on_batch(self):
        features, labels = small.batch(generator(self))
        model, expected = _model(0.25), _model(0.125)
        model.optimizer.learning_rate = 0.25
        small.compiled(expected, _SGD(0.25))
        for one in (model, expected):
            one.train_on_batch(features, labels)
        self.assertEqual(
            *(contents(m.tables[0])["weights"] for m in (model, expected))
        )


class SavingTest(TestCase):
    def _batch(self):
        return small.batch(generator(self))

    def _reduced(self):
        """A model whose rate is a tenth of what it began with."""
        model = _model(0.25)
        model.train_on_batch(*self._batch())
        model.optimizer.learning_rate = 0.05
        return model

    def _assert_goes_on_alike(self, model, other):
        for one in (model, other):
            one.train_on_batch(*self._batch())
        self.assertEqual(contents(other.tables[0]), contents(model.tables[0]))

    def test_a_loaded_model_goes_on_alike(self):
        path = self.path("m.keras")
        model = self._reduced()
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertAllClose(number(loaded.optimizer.learning_rate), 0.05)
        self._assert_goes_on_alike(model, loaded)
        # It knows what the rate was at first still, when it is saved again.
        loaded.optimizer.learning_rate = 0.5
        model.optimizer.learning_rate = 0.5
        loaded.save(path)
        self._assert_goes_on_alike(model, keras.models.load_model(path))

    @parameterized.named_parameters(*FORMATS)
    def test_a_program_that_is_run_again_goes_on_alike(self, name):
        write, read = self.format(name)
        model = self._reduced()
        write(model)
        again = _model(0.25)
        again.train_on_batch(*self._batch())  # It makes the variables.
        read(again)
        if number(again.optimizer.learning_rate) != number(
            model.optimizer.learning_rate
        ):
            # tf_keras keeps no rate in files of weights.
            self.assertFalse(IS_KERAS_3)
            self.assertIn(name, ("weights", "keras"))
            again.optimizer.learning_rate = 0.05
        self._assert_goes_on_alike(model, again)

    def test_recovery_points(self):
        model = self._reduced()
        point = recovery_points.Point(1, 1, 0, self.path("point-0000000001"))
        beside.run(
            recovery_points.write(
                point,
                model,
                lambda index, table, path: Save(table.rows, path),
                recovery_points.claim(self.path("points"), model),
            ),
            local_regime().processes,
            "Saving",
        )
        again = _model(0.25)
        again.train_on_batch(*self._batch())
        recovery_points.read(
            point.path, again, lambda table, path: table.load(path)
        )
        self._assert_goes_on_alike(model, again)

    def test_a_new_optimizer_begins_anew(self):
        model = self._reduced()
        small.compiled(model, _SGD(0.05))
        expected = _model(0.25)
        expected.train_on_batch(*self._batch())
        small.compiled(expected, _SGD(0.05))
        self._assert_goes_on_alike(expected, model)

    def test_a_configuration_without_the_first_rate(self):
        optimizer = Optimizer(_SGD(2.0))
        optimizer.learning_rate = 1.0
        config = optimizer.get_config()
        self.assertEqual(config["initial_learning_rate"], 2.0)
        for expected, changes in (
            (-0.5, {}),
            (-0.25, {"initial_learning_rate": 4}),
        ):
            table = _table(1.0)
            step_of_ones(Optimizer.from_config({**config, **changes}), table)
            self.assertEqual(_weights(table), [expected])
        del config["initial_learning_rate"]
        table = _table(1.0)
        step_of_ones(Optimizer.from_config(config), table)
        self.assertEqual(_weights(table), [-1.0])

    @parameterized.parameters(float("nan"), "1", True)
    def test_a_damaged_configuration(self, rate):
        config = Optimizer("sgd").get_config() | {"initial_learning_rate": rate}
        with self.assertRaisesRegex(
            ValueError,
            "`initial_learning_rate` of the configuration of a tf_ext."
            "optimizers.Optimizer must be a finite number or None. Received: "
            f"initial_learning_rate={rate!r}",
        ):
            Optimizer.from_config(config)

    def test_a_schedule_has_no_first_rate(self):
        optimizer = Optimizer(_SGD(_halving(1.0)))
        config = optimizer.get_config()
        self.assertIsNone(config["initial_learning_rate"])
        table = _table(1.0)
        step_of_ones(Optimizer.from_config(config), table)
        self.assertEqual(_weights(table), [-1.0])


if __name__ == "__main__":
    tf.test.main()
