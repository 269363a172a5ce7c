# SPDX-License-Identifier: Apache-2.0
"""Strings and lists as the data of a model."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.models.arrays import bind_data, to_arrays

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ModelTest::test_*",
    ),
]

_TEXTS = [["ann"], ["bob"], ["ann"], ["ü"]]
_RAGGED = [[], ["a", "b"], ["c"], []]
_OBJECTS = np.empty([4], object)
_OBJECTS[:] = _RAGGED
_LABELS = np.ones([4, 1], np.float32)
_NUMBERS = np.arange(4, dtype=np.float32)[:, np.newaxis]

_USERS = {
    "texts": np.array(_TEXTS),
    "bytes": np.char.encode(np.array(_TEXTS), "utf-8"),
    "objects": np.array(_TEXTS, object),
    "lists": _TEXTS,
    "ragged_lists": _RAGGED,
    "ragged_objects": _OBJECTS,
}


def _model(ragged):
    inputs = {
        "user": keras.Input(
            [None] if ragged else [1], dtype="string", name="user"
        ),
        "age": keras.Input([1], name="age"),
    }
    user = tf_ext.feature_column.category_column("user")
    layer = tf_ext.layers.EmbeddingFeatures(
        [user], tf_ext.SparseTable("deep", 2)
    )
    hidden = keras.layers.Concatenate()([layer(inputs), inputs["age"]])
    model = tf_ext.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    return model


class ModelTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(*_USERS)
    def test_all_methods(self, name):
        users = _USERS[name]
        ragged = name.startswith("ragged")
        texts = _RAGGED if ragged else _TEXTS
        model = _model(ragged)
        for age, labels in (
            (_NUMBERS, _LABELS),
            (_NUMBERS.tolist(), _LABELS.tolist()),
        ):
            x = {"user": users, "age": age}
            model.fit(
                x, labels, verbose=0, validation_data=(x, labels), epochs=2
            )
            model.train_on_batch(x, labels)
            self.assertCountEqual(
                model.tables[0].export_rows()[0],
                tf_ext.hashing.hash_category(
                    sorted({text for bag in texts for text in bag}), "user"
                ),
            )
            model.evaluate(x, labels, verbose=0)
            model.test_on_batch(x, labels)
            self.assertAllClose(
                model.predict_on_batch(x), model.predict(x, verbose=0)
            )

    def test_a_validation_split(self):
        model = _model(False)
        x = {"user": _USERS["texts"], "age": _NUMBERS}
        history = model.fit(x, _LABELS, validation_split=0.5, verbose=0)
        self.assertIn("val_loss", history.history)


class SequenceTest(tf.test.TestCase):
    def test_is_read_as_it_asks_for(self):
        if not IS_KERAS_3:
            self.skipTest("In tf_keras these are arguments of fit.")

        class Batches(keras.utils.PyDataset):
            num_batches = None

            def __getitem__(self, index):
                return {"user": _TEXTS, "age": _NUMBERS}, _LABELS

        batches = Batches(workers=3, max_queue_size=5)
        model = _model(False)
        fit = functools.partial(keras.Model.fit, model)
        given = bind_data(model, fit, (batches,), {}).arguments["x"]
        self.assertEqual(given.workers, 3)
        self.assertFalse(given.use_multiprocessing)
        self.assertEqual(given.max_queue_size, 5)
        self.assertIsNone(given.num_batches)
        self.assertEqual(repr(given), repr(batches))
        batches.num_batches = 2
        self.assertEqual(given.num_batches, 2)


class ToArraysTest(tf.test.TestCase, parameterized.TestCase):
    def test_what_keras_takes_is_handed_on(self):
        dataset = tf.data.Dataset.range(3)
        for data in (
            None,
            dataset,
            tf.constant(["a"]),
            tf.ragged.constant([["a"], []]),
            np.arange(3),
            np.array([True]),
        ):
            self.assertIs(to_arrays(data), data)
        array = np.arange(3)
        found = to_arrays({"a": [array, array], "b": (array, None)})
        self.assertIsInstance(found["a"], list)
        self.assertIsInstance(found["b"], tuple)
        for one in (*found["a"], found["b"][0]):
            self.assertIs(one, array)

    @parameterized.named_parameters(
        ("integers", [1, 2], tf.int64, [2]),
        ("floats", [[1.5], [2.0]], tf.float64, [2, 1]),
        ("booleans", [True], tf.bool, [1]),
        ("texts", ["a", "b"], tf.string, [2]),
        ("empty_bags", [[], []], tf.float64, [2, 0]),
        ("of_objects", np.array([[1], [2]], object), tf.int64, [2, 1]),
    )
    def test_lists_become_one_array(self, data, dtype, shape):
        found = to_arrays(data)
        self.assertEqual(tf.as_dtype(found.dtype), dtype)
        self.assertEqual(list(found.shape), shape)

    def test_lists_of_different_lengths_become_ragged(self):
        for data in (_RAGGED, _OBJECTS):
            found = to_arrays(data)
            self.assertIsInstance(found, tf.RaggedTensor)
            self.assertEqual(
                found.to_list(),
                [[text.encode() for text in bag] for bag in _RAGGED],
            )

    def test_what_cannot_be_converted_is_refused(self):
        for data in (np.array([None, "a"], object), ["a", None]):
            with self.assertRaisesRegex(ValueError, "'u' must have a value"):
                to_arrays({"u": data})
            with self.assertRaisesRegex(
                ValueError, "^The array 'u' of `y` must have a value"
            ):
                to_arrays({"u": data}, "y")
        with self.assertRaisesRegex(
            ValueError, r"str \(row 0\), float \(row 1"
        ):
            to_arrays({"u": ["a", 1.5]})

    def test_texts_of_different_lengths(self):
        array = np.array(["a", "bcd"], np.dtypes.StringDType())
        self.assertAllEqual(to_arrays(array), [b"a", b"bcd"])


if __name__ == "__main__":
    tf.test.main()
