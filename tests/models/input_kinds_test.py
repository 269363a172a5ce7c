# SPDX-License-Identifier: Apache-2.0
"""Features of the wrong dtype: the error is one sentence that names them."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "InputKindsTest::test_right_kinds",
    ),
]


def _layer(**columns):
    table = tf_ext.SparseTable("table", dim=1)
    columns = [
        tf_ext.feature_column.category_column(key, **options)
        for key, options in columns.items()
    ]
    return tf_ext.layers.EmbeddingFeatures(columns, table)


def _functional(as_list=False):
    inputs = {
        "user": keras.Input((), dtype="string", name="user"),
        "item": keras.Input((), dtype="int64", name="item"),
    }
    outputs = _layer(user={}, item={})(inputs)
    return tf_ext.Model(list(inputs.values()) if as_list else inputs, outputs)


class Subclassed(tf_ext.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs):
        return self.layer(inputs)


class Failing(tf_ext.Model):
    def call(self, inputs):
        raise ValueError("Mine.")


class OtherFeaturesTest(tf.test.TestCase, parameterized.TestCase):
    """A batch may have features that a functional model does not read."""

    @parameterized.product(other=["age", "junk", "zip"], as_list=[False, True])
    def test_make_no_difference(self, other, as_list):
        model = _functional(as_list)
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        features = {"user": np.array(list("abcde")), "item": np.arange(5) % 3}
        labels = np.arange(5, dtype=np.float32)[:, np.newaxis]
        data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(2)
        more = data.map(lambda x, y: (x | {other: x["item"] + 100}, y))
        model.fit(data, verbose=0)
        size = model.tables[0].size()
        self.assertEqual(size, 8)
        wanted = model.predict(data, verbose=0)
        self.assertAllEqual(model.predict(more, verbose=0), wanted)
        self.assertEqual(
            model.evaluate(more, verbose=0), model.evaluate(data, verbose=0)
        )
        [(batch, _)] = more.unbatch().batch(5)
        self.assertAllEqual(model(batch), wanted)
        arrays = features | {other: np.zeros([5, 2])}
        self.assertAllEqual(model.predict(arrays, verbose=0), wanted)
        model.fit(more, verbose=0)
        self.assertEqual(model.tables[0].size(), size)

    def test_do_not_stand_for_one_of_its_own(self):
        model = _functional()
        batch = {"users": tf.constant(["a"]), "item": tf.constant([1])}
        with self.assertRaisesRegex(
            ValueError, "has the input 'user', which is not .*: users, item"
        ):
            model(batch)


_STRINGS = np.array(["a", "b", "c", "d"])
_WRONG = {
    "numbers_for_strings": (
        {"user": np.arange(4), "item": np.arange(4)},
        "The feature 'user' must be of string, the dtype of its keras.Input, "
        "but is of int64. Convert it, or make its keras.Input with "
        "dtype='int64'.",
    ),
    "strings_for_numbers": (
        {"user": _STRINGS, "item": _STRINGS},
        "The feature 'item' must be of int64, the dtype of its keras.Input, "
        "but is of string. Convert it, or make its keras.Input with "
        "dtype='string'.",
    ),
}


def _data(features):
    labels = np.ones([4, 1], np.float32)
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(2)


class InputKindsTest(parameterized.TestCase):
    def _assert_says(self, message, model, features):
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        labels = np.ones([4, 1], np.float32)
        calls = {
            "fit": lambda: model.fit(features, labels, verbose=0),
            "fit_dataset": lambda: model.fit(_data(features), verbose=0),
            "evaluate": lambda: model.evaluate(features, labels, verbose=0),
            "predict": lambda: model.predict(features, verbose=0),
            "train_on_batch": lambda: model.train_on_batch(features, labels),
        }
        for name, call in calls.items():
            with self.subTest(name):
                with self.assertRaises(ValueError) as caught:
                    call()
                self.assertEqual(str(caught.exception), message)

    @parameterized.named_parameters(
        (name, *case) for name, case in _WRONG.items()
    )
    def test_of_inputs_with_keys(self, features, message):
        self._assert_says(message, _functional(), features)
        tensors = {key: tf.constant(value) for key, value in features.items()}
        with self.assertRaisesRegex(ValueError, message):
            _functional()(tensors)

    @parameterized.named_parameters(
        (name, *case) for name, case in _WRONG.items()
    )
    def test_of_a_list_of_inputs(self, features, message):
        model = _functional(as_list=True)
        tensors = [tf.constant(value) for value in features.values()]
        with self.assertRaisesRegex(ValueError, message):
            model(tensors)

    def test_of_a_column_in_a_subclassed_model(self):
        model = Subclassed(_layer(age={"boundaries": [1.0]}))
        with self.assertRaises(ValueError) as caught:
            model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
            model.fit(_data({"age": _STRINGS}), verbose=0)
        self.assertStartsWith(str(caught.exception), "The feature 'age' ")
        self.assertNotIn("\n", str(caught.exception))

    def test_right_kinds(self):
        model = _functional()
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        features = {"user": _STRINGS, "item": np.int32([1, 2, 3, 4])}
        model.fit(_data(features), verbose=0)
        self.assertEqual(model.tables[0].size(), 8)

    def test_errors_of_others_keep_their_traces(self):
        model = Failing()
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        with self.assertRaisesRegex(ValueError, "(?s)call.*Mine"):
            model.fit(_data({"user": _STRINGS}), verbose=0)


if __name__ == "__main__":
    tf.test.main()
