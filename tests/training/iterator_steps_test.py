# SPDX-License-Identifier: Apache-2.0
"""Calls of the steps of `fit` and `evaluate`, beside Keras's own."""

import gc
import unittest
import weakref
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.training import iterator_steps

pytestmark = pytest.mark.both_kerases

_KEYS = [f"feature {i}" for i in range(40)]


class AsInKeras(tf_ext.Model):
    """Of the same steps, which Keras calls in its own way."""

    def make_train_function(self, force=False):
        return keras.Model.make_train_function(self, force)

    def make_test_function(self, force=False):
        return keras.Model.make_test_function(self, force)


class Counting(tf_ext.Model):
    """Counts traces."""

    traces = 0

    def train_step(self, data):
        self.traces += 1
        return super().train_step(data)


def _model(cls=tf_ext.Model, **options):
    keras.utils.set_random_seed(3)
    inputs = {
        key: keras.Input((), name=key, dtype="int64") for key in _KEYS[:2]
    }
    columns = [*map(tf_ext.feature_column.category_column, inputs)]
    table = tf_ext.SparseTable("steps", 2, optimizer="adagrad", seed=1)
    rows = tf_ext.layers.EmbeddingFeatures(columns, table)(inputs)
    model = cls(inputs, keras.layers.Dense(1)(rows))
    _compile(model, **options)
    return model


def _compile(model, loss="mse", **options):
    optimizer = tf_ext.optimizers.Optimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer, loss, metrics=["mae"], **options)


def _data(rows=50, batch=16, **options):
    ids = np.random.default_rng(0).integers(0, 9, (2, rows))
    features = dict(zip(_KEYS, ids, strict=False))
    labels = np.arange(rows, dtype=np.float32)[:, np.newaxis] / rows
    whole = tf.data.Dataset.from_tensor_slices((features, labels))
    return whole.batch(batch, **options)


class StepsTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters({}, {"steps_per_execution": 3})
    def test_numbers_are_those_of_keras(self, **options):
        found = []
        for cls in (tf_ext.Model, AsInKeras):
            model = _model(cls, **options)
            history = model.fit(
                _data(), epochs=3, verbose=0, validation_data=_data(30, 8)
            ).history
            numbers = [history[name] for name in sorted(history)]
            numbers.append(model.evaluate(_data(), verbose=0))
            numbers += [one.tolist() for one in model.get_weights()[:2]]
            # A part of an epoch, and batches of another shape.
            data = _data(batch=10, drop_remainder=True)
            again = model.fit(data, steps_per_epoch=3, epochs=2, verbose=0)
            numbers.append(again.history["loss"])
            found.append(numbers)
        self.assertEqual(*found)

    def test_steps_are_traced_once_for_a_structure(self):
        model = _model(Counting)
        model.fit(_data(), epochs=3, verbose=0)
        once = model.traces
        for _ in range(2):
            model.fit(_data(), verbose=0)
        self.assertEqual(model.traces, once)
        model.fit(_data(batch=25, drop_remainder=True), verbose=0)
        model.fit(_data(), verbose=0)
        self.assertLessEqual(model.traces, once + 1)

    def test_steps_of_many_sizes_are_traced_twice(self):
        model = _model(Counting)
        traces = []
        for batch in (10, 25, 5, 2):
            data = _data(batch=batch, drop_remainder=True)
            model.fit(data, verbose=0)
            traces.append(model.traces)
        self.assertEqual(traces[1], traces[-1])

    def test_specs_that_have_one_in_common(self):
        def vector(size, dtype="int64"):
            return {"x": tf.TensorSpec([size], dtype)}

        common = iterator_steps._common
        self.assertEqual(common(vector(2), vector(3)), vector(None))
        self.assertEqual(common(vector(None), vector(3)), vector(None))
        ragged = {"x": tf.RaggedTensorSpec([4, None], "int64")}
        other = {"x": tf.RaggedTensorSpec([5, None], "int64")}
        self.assertEqual(
            common(ragged, other),
            {"x": tf.RaggedTensorSpec([None, None], "int64")},
        )
        matrix = {"x": tf.TensorSpec([2, 2], "int64")}
        named = {"y": tf.TensorSpec([2], "int64")}
        for one in (vector(2, "int32"), ragged, matrix, named, None):
            self.assertIsNone(common(vector(2), one))

    def test_calls_do_not_look_at_each_feature(self):
        features = {key: tf.range(8, dtype=tf.int64) for key in _KEYS}
        data = tf.data.Dataset.from_tensors((features, tf.zeros([8, 1])))
        model = _model()
        model.fit(data.repeat(2), verbose=0)
        for function in (model.train_function, _tested(model)):
            iterator = iter(data.repeat())
            for _ in range(2):
                function(iterator)
            with mock.patch.object(
                *(tf.TensorSpec, "__hash__"),
                autospec=True,
                side_effect=tf.TensorSpec.__hash__,
            ) as hashed:
                function(iterator)
            self.assertLess(hashed.call_count, 10)

    def test_iterators_in_turn(self):
        model = _model()
        model.fit(_data(), verbose=0)
        weighted = _data().map(lambda x, y: (x, y, tf.zeros_like(y)))
        one, other = iter(_data()), iter(weighted)
        for _ in range(3):
            self.assertGreater(_loss(model, one), 0.0)
            self.assertEqual(_loss(model, other), 0.0)
        references = [weakref.ref(it) for it in (one, other)]
        del one, other
        gc.collect()
        self.assertEqual([it() for it in references], [None, None])

    def test_compiled_anew(self):
        model = _model(Counting)
        model.fit(_data(), verbose=0)
        once = model.traces
        _compile(model, lambda y, y_pred: 0.0 * y_pred + 7.0)
        history = model.fit(_data(), verbose=0).history
        self.assertAllClose(history["loss"], [7.0])
        self.assertGreater(model.traces, once)

    def test_made_anew(self):
        model = _model(Counting)
        model.fit(_data(), verbose=0)
        function, once = model.train_function, model.traces
        model.make_train_function()
        self.assertIs(model.train_function, function)
        model.make_train_function(force=True)
        self.assertIsNot(model.train_function, function)
        model.fit(_data(), verbose=0)
        self.assertGreater(model.traces, once)
        tested = _tested(model)
        self.assertIs(_tested(model), tested)
        model.make_test_function(force=True)
        self.assertIsNot(_tested(model), tested)

    def test_run_eagerly(self):
        model = _model(Counting, run_eagerly=True)
        model.fit(_data(), verbose=0)
        self.assertEqual(model.traces, 4)

    def test_functions_that_run_eagerly(self):
        self.addCleanup(tf.config.run_functions_eagerly, False)
        model = _model(Counting)
        tf.config.run_functions_eagerly(True)
        model.fit(_data(), verbose=0)
        self.assertEqual(model.traces, 4)

    def test_batches_without_an_iterator(self):
        model = _model()
        [(features, labels), *_] = _data()
        model.fit(_data(), verbose=0)
        expected = model.evaluate(_data().take(1), verbose=0)
        # Keras compares these in the order of its metrics.
        found = model.test_on_batch(features, labels)
        self.assertAllClose(found, expected)
        kernel = model.layers[-1].kernel
        before = kernel.numpy()
        model.train_on_batch(features, labels)
        self.assertNotAllClose(before, kernel)

    def test_the_end_of_the_data_is_no_error(self):
        ends = []
        counting = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: ends.append(batch)
        )
        data = _data().take(2)
        model = _model()
        model.fit(data, steps_per_epoch=5, verbose=0, callbacks=[counting])
        self.assertEqual(ends, [0, 1])

    def test_errors_of_steps_are_raised(self):
        def fail(y, y_pred):
            check = tf.debugging.assert_less(y, 0.5, "too much")
            with tf.control_dependencies([check]):
                return y_pred * 1.0

        model = _model()
        _compile(model, fail)
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "too much"):
            model.fit(_data(), verbose=0)


def _tested(model):
    """The function of `evaluate`."""
    model.make_test_function()
    return model.test_function


def _loss(model, iterator):
    """The loss of the next batch alone."""
    model.reset_metrics()
    return float(_tested(model)(iterator)["loss"])


@unittest.skipUnless(IS_KERAS_3, "tf_keras does not take them")
class OptionalsTest(tf.test.TestCase):
    """Elements that Keras makes None."""

    def test_are_left_to_keras(self):
        def with_optional(features, labels):
            empty = tf.experimental.Optional.empty(
                tf.TensorSpec([], tf.float32)
            )
            return features, labels, empty

        data = _data().map(with_optional)
        expected = _model().fit(_data(), verbose=0).history["loss"]
        found = _model().fit(data, verbose=0).history["loss"]
        self.assertEqual(found, expected)


if __name__ == "__main__":
    tf.test.main()
