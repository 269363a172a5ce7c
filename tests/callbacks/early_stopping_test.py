# SPDX-License-Identifier: Apache-2.0
import os
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import generator, id_column, mirrored_strategy
from models.small_models import batch, compiled, functional, head, inputs, table

import tf_ext
from tf_ext._keras import keras
from tf_ext.callbacks import EarlyStopping

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "EarlyStoppingTest::test_leaves_no_files_behind",
        "EarlyStoppingTest::test_restores_rows_slots_and_variables_adam",
        "EarlyStoppingTest::test_restores_rows_slots_and_variables_in_a_plain_model",
        "EarlyStoppingTest::test_several_tables_one_of_them_shared",
    ),
]

# What the callback monitors: best in epoch 1, and training stops after 3.
_VALUES = (3.0, 1.0, 2.0, 2.5, 0.5, 0.25)
_BEST, _STOPPED = 1, 3


class _Script(keras.callbacks.Callback):
    """Reports _VALUES, adds a row each epoch, and copies all state."""

    def __init__(self, tables, values=_VALUES):
        super().__init__()
        self.tables = tables
        self.values = values
        self.copies = []

    def on_epoch_end(self, epoch, logs=None):
        for one in self.tables:
            one.pull([1000 + epoch], training=True)
        self.copies.append(_state(self.model, self.tables))
        logs["watched"] = self.values[epoch]


def _state(model, tables):
    """All rows by sign, slots among them, and all variables."""
    state = [value.numpy() for value in model.weights]
    for one in tables:
        signs, fields = one.export_rows()
        order = np.argsort(signs)
        state.append(signs[order])
        state += [values[order] for values in fields.values()]
    return state


class EarlyStoppingTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.data = batch(generator(self))
        # Where the callback keeps its copies.
        self.directory = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.enter_context(
            mock.patch.object(tempfile, "tempdir", self.directory)
        )

    def assert_state(self, model, tables, expected):
        found = _state(model, tables)
        self.assertLen(found, len(expected))
        for one, two in zip(found, expected):
            self.assertAllEqual(one, two)

    def fit(self, model, script):
        stop = EarlyStopping(
            "watched", mode="min", patience=2, restore_best_weights=True
        )
        # Keras calls callbacks in their order.
        history = model.fit(
            *self.data,
            epochs=len(_VALUES),
            verbose=0,
            callbacks=[script, stop],
        )
        return stop, len(history.epoch)

    @parameterized.named_parameters(
        ("adagrad", "adagrad", tf_ext.Model),
        ("adam", "adam", tf_ext.Model),
        ("in_a_plain_model", "ftrl", keras.Model),
    )
    def test_restores_rows_slots_and_variables(self, rule, cls):
        deep = table(rule)
        model = compiled(functional(deep, cls))
        script = _Script([deep])
        stop, epochs = self.fit(model, script)
        self.assertEqual(epochs, _STOPPED + 1)
        self.assertEqual((stop.best, stop.stopped_epoch), (1.0, _STOPPED))
        self.assert_state(model, [deep], script.copies[_BEST])
        # The row that came with each epoch since is gone.
        signs = deep.export_rows()[0]
        self.assertContainsSubset([1000, 1001], signs)
        self.assertNoCommonElements([1002, 1003], signs)
        # And training made a difference.
        last = script.copies[-1]
        rows = len(model.weights) + 1
        self.assertNotAllEqual(last[rows][:3], script.copies[_BEST][rows][:3])

    def test_several_tables_one_of_them_shared(self):
        shared, other = table("adagrad"), table("sgd", name="other")
        ids = inputs()
        layers = [
            tf_ext.layers.EmbeddingFeatures([id_column("user")], shared),
            tf_ext.layers.EmbeddingFeatures(
                {other: [id_column("items")], shared: [id_column("items")]}
            ),
        ]
        first, second = layers[0](ids), layers[1](ids)
        joined = keras.layers.Concatenate()([first, *second.values()])
        model = compiled(tf_ext.Model(ids, head()(joined)))
        script = _Script([shared, other])
        self.fit(model, script)
        self.assert_state(model, [shared, other], script.copies[_BEST])

    def test_variables_that_are_not_trained(self):
        deep, ids = table(), inputs()
        layer = tf_ext.layers.EmbeddingFeatures([id_column("user")], deep)
        normal = keras.layers.BatchNormalization()
        model = compiled(tf_ext.Model(ids, head()(normal(layer(ids)))))
        script = _Script([deep])
        self.fit(model, script)
        self.assertLen(model.non_trainable_weights, 2)
        self.assert_state(model, [deep], script.copies[_BEST])

    def test_a_model_without_tables(self):
        x = keras.Input((2,))
        model = compiled(tf_ext.Model(x, head()(x)))
        self.data = (np.float32(self.data[0]["items"]), self.data[1])
        script = _Script([])
        self.fit(model, script)
        self.assert_state(model, [], script.copies[_BEST])

    @pytest.mark.slow
    def test_under_a_strategy(self):
        with mirrored_strategy().scope():
            deep = table("adagrad")
            model = compiled(functional(deep))
        script = _Script([deep])
        self.fit(model, script)
        self.assert_state(model, [deep], script.copies[_BEST])

    def test_leaves_no_files_behind(self):
        deep = table()
        model = compiled(functional(deep))
        script = _Script([deep])
        seen = []
        script.on_epoch_begin = lambda *_: seen.append(
            len(os.listdir(self.directory))
        )
        stop, _ = self.fit(model, script)
        # Only the best so far is kept.
        self.assertEqual(seen, [0, 1, 1, 1])
        self.assertEmpty(os.listdir(self.directory))
        self.assertIsNone(stop.best_weights)

    def test_without_restoring_nothing_is_kept(self):
        deep = table()
        model = compiled(functional(deep))
        script = _Script([deep])
        stop = EarlyStopping("watched", mode="min", patience=2)
        with mock.patch.object(
            tempfile, "TemporaryDirectory", side_effect=AssertionError
        ):
            model.fit(*self.data, epochs=6, verbose=0, callbacks=[script, stop])
        self.assertEqual(stop.stopped_epoch, _STOPPED)
        self.assert_state(model, [deep], script.copies[_STOPPED])

    def test_fits_twice(self):
        deep = table()
        model = compiled(functional(deep))
        stop = EarlyStopping(
            "watched", mode="min", patience=1, restore_best_weights=True
        )
        for _ in range(2):
            script = _Script([deep])
            model.fit(*self.data, epochs=6, verbose=0, callbacks=[script, stop])
            self.assertLen(script.copies, 3)
            self.assert_state(model, [deep], script.copies[_BEST])


if __name__ == "__main__":
    tf.test.main()
