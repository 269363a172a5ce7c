# SPDX-License-Identifier: Apache-2.0
"""Optimizers that do not know of tables still stop before they train one."""

import inspect

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from models.model_building import mirrored_strategy

from tf_ext._compat import counters, variables
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = pytest.mark.both_kerases

_OPTIMIZERS = {
    name: getattr(keras.optimizers, name)
    for name in (
        "SGD",
        "Adam",
        "AdamW",
        "Adagrad",
        "Adadelta",
        "Ftrl",
        "Lion",
        "Nadam",
        "RMSprop",
    )
    if hasattr(keras.optimizers, name)
}
# None in Keras 3: both Kerases have tests of the same names.
_OPTIMIZERS |= {
    f"legacy_{name}": None
    if IS_KERAS_3
    else getattr(keras.optimizers.legacy, name)
    for name in ("SGD", "Adam", "Adagrad", "Ftrl", "RMSprop")
}


class _RefusedError(Exception):
    pass


def _refuse():
    raise _RefusedError


def _variable():
    layer = keras.layers.Dense(2, use_bias=False, kernel_initializer="ones")
    layer.build([None, 1])
    return layer.kernel


def _tensorflow_variable(variable):
    return variable.value if IS_KERAS_3 else variable


def _train(optimizer, *trained):
    slices = tf.IndexedSlices(
        tf.ones([1, 2]), tf.constant([0], tf.int64), tf.constant([1, 2])
    )
    optimizer.apply_gradients([(slices, variable) for variable in trained])


class RefuseUpdatesTest(parameterized.TestCase):
    @parameterized.named_parameters(_OPTIMIZERS.items())
    def test_optimizers_are_refused_before_they_change_anything(self, make):
        if make is None:
            self.skipTest("Keras 3 has no such optimizer")
        optimizer, variable = make(0.5), _variable()
        variables.refuse_updates(variable, _refuse)
        if IS_KERAS_3:
            variables.refuse_updates(variable.value, _refuse)
        with self.assertRaises(_RefusedError):
            _train(optimizer, variable)
        np.testing.assert_array_equal(variable.numpy(), np.ones([1, 2]))
        self.assertEqual(int(optimizer.iterations), 0)

    @absltest.skipUnless(IS_KERAS_3, "the flag is that of Keras 3")
    def test_mirrored_variables_before_it_are_not_trained(self):
        # They have no `_unique_id` to refuse by.
        strategy = mirrored_strategy()
        with strategy.scope():
            optimizer = keras.optimizers.Adam()
            first, refused = _variable(), _variable()
        variables.refuse_updates(refused, _refuse)
        variables.refuse_updates(refused.value, _refuse)
        with self.assertRaises(_RefusedError):
            strategy.run(_train, (optimizer, first, refused))
        np.testing.assert_array_equal(first.numpy(), np.ones([1, 2]))

    @parameterized.named_parameters(_OPTIMIZERS.items())
    def test_keras_would_train_it(self, make):
        if make is None:
            self.skipTest("Keras 3 has no such optimizer")
        optimizer, variable = make(0.5), _variable()
        _train(optimizer, variable)
        self.assertNotEqual(variable.numpy().tolist(), [[1.0, 1.0]])

    @parameterized.parameters("assign", "assign_add", "assign_sub")
    def test_assignments_are_refused(self, name):
        variable = _variable()
        variables.refuse_updates(variable, _refuse)
        with self.assertRaises(_RefusedError):
            getattr(variable, name)([[0.0, 0.0]])

    def test_slots_are_refused_without_the_other_two(self):
        # Of a loop that builds an optimizer first.
        variable = _tensorflow_variable(_variable())
        variables.refuse_updates(variable, _refuse)
        with self.assertRaises(_RefusedError):
            keras.optimizers.Adam().build([variable])
            keras.optimizers.Adam()._var_key(variable)

    def test_it_goes_on_being_a_variable(self):
        variable = _variable()
        base = type(variable)
        variables.refuse_updates(variable, _refuse)
        self.assertIsInstance(variable, base)
        self.assertEqual(type(variable).__name__, base.__name__)
        np.testing.assert_array_equal(
            tf.convert_to_tensor(variable), np.ones([1, 2])
        )


class OwnClassTest(absltest.TestCase):
    def test_other_objects_keep_theirs(self):
        one, two = _variable(), _variable()
        variables.give_own_class(one, {"tf_ext_test": 1})
        self.assertEqual(one.tf_ext_test, 1)
        self.assertFalse(hasattr(two, "tf_ext_test"))


def _ops_of(function):
    graph = tf.function(function).get_concrete_function().graph
    return {operation.type for operation in graph.get_operations()}


@absltest.skipUnless(IS_KERAS_3, "tf_keras adds in one operation")
class CountersTest(parameterized.TestCase):
    def test_adding_is_one_operation(self):
        variable = keras.Variable(1.0)
        self.assertNotIn(
            "AssignAddVariableOp", _ops_of(lambda: variable.assign_add(2.0))
        )
        counters.make_exact(variable)
        found = _ops_of(lambda: variable.assign_add(2.0))
        self.assertIn("AssignAddVariableOp", found)
        self.assertNotIn("AssignVariableOp", found)

    def test_metrics_add_in_one_operation(self):
        metric, exact = keras.metrics.Mean(), keras.metrics.Mean()
        update = lambda of: lambda: of.update_state([1.0, 4.0])  # noqa: E731
        self.assertIn("AssignVariableOp", _ops_of(update(metric)))
        counters.make_metric_exact(exact)
        step = tf.function(update(exact))
        found = _ops_of(update(exact))
        self.assertIn("AssignAddVariableOp", found)
        self.assertNotIn("AssignVariableOp", found)
        step()
        step()
        self.assertEqual(float(exact.result()), 2.5)
        self.assertEqual(float(exact.count), 4.0)

    def test_metrics_of_metrics_are_found(self):
        class Both(keras.metrics.Metric):
            def __init__(self):
                super().__init__()
                self.mean = keras.metrics.Mean()

            def update_state(self, *args):
                self.mean.update_state([1.0])

            def result(self):
                return self.mean.result()

        metric = Both()
        counters.make_metric_exact(metric)
        found = _ops_of(lambda: metric.update_state())
        self.assertIn("AssignAddVariableOp", found)

    @parameterized.named_parameters(
        ("sum", lambda kept, new: new + tf.identity(kept)),
        ("of_several", lambda kept, new: tf.add_n([new, kept, new])),
        ("less", lambda kept, new: tf.reshape(kept, []) - new),
    )
    def test_what_metrics_may_add(self, update):
        exact, plain = _Keeping(update), _Keeping(update)
        counters.make_metric_exact(exact)
        step = _graph(exact.update_state)
        for number in (2.0, 5.0):
            step(tf.constant(number))
            plain.update_state(tf.constant(number))
        self.assertEqual(float(exact.value), float(plain.value))

    @parameterized.named_parameters(
        ("maximum", tf.maximum),
        ("product", lambda kept, new: kept * new),
        ("difference", lambda kept, new: new - kept),
        ("half", lambda kept, new: 0.5 * tf.identity(kept) + new),
        ("twice", lambda kept, new: kept + kept + new),
        ("last", lambda kept, new: new),
        (
            "if_larger",
            lambda kept, new: tf.cond(new > kept, lambda: new, lambda: kept),
        ),
        ("of_another", lambda kept, new, other: kept + new * (other + 1.0)),
    )
    def test_metrics_that_do_not_add_are_refused(self, update):
        metric = _Keeping(update)
        counters.make_metric_exact(metric)
        with self.assertRaisesRegex(
            ValueError,
            r"Metric 'kept' \(_Keeping\) does not add to its variable 'value'",
        ):
            _graph(metric.update_state)(tf.constant(2.0))
        # Outside of graphs it may: nothing else runs there.
        metric.update_state(tf.constant(2.0))


def _graph(function):
    return tf.function(function, autograph=False)


class _Keeping(keras.metrics.Metric):
    """Assigns a function of what it keeps, and of another variable."""

    def __init__(self, update):
        super().__init__(name="kept")
        self._update = update
        self.value, self.other = (
            self.add_weight(shape=(), initializer="zeros", name=name)
            for name in ("value", "other")
        )

    def update_state(self, new):
        kept = [tf.convert_to_tensor(v) for v in (self.value, self.other)]
        arguments = inspect.signature(self._update).parameters
        others = kept[1:] if "other" in arguments else []
        self.value.assign(self._update(kept[0], new, *others))

    def result(self):
        return self.value + 0.0


if __name__ == "__main__":
    absltest.main()
