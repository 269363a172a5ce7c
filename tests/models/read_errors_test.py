# SPDX-License-Identifier: Apache-2.0
"""Errors of reading files, as the users of models see them."""

import gzip
import pathlib
import pickle
import tempfile

import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.model_building import mirrored_strategy

import tf_ext
from tf_ext._keras import keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "ReadErrorsTest::test_of_datasets0",
        "ReadErrorsTest::test_on_replicas",
        "ReadErrorsTest::test_pickle",
    ),
]

_SCHEMA = tf_ext.data.Schema(
    [tf_ext.data.Field("click", "float32"), tf_ext.data.Field("user")],
    label="click",
)
_GOOD = "".join(f"{i % 2},user {i * 7919}\n" for i in range(2000)).encode()
_DAMAGED, _MANY = (
    tf_ext.data.DamagedFileError,
    tf_ext.data.TooManyErrorsError,
)
_SENTENCES = {
    _DAMAGED: r"\A\S+/clicks\.csv\b[^\n]*\Z",
    _MANY: r"\A\d+ of the first \d+ records are malformed, [^\n]*"
    r"or allow a larger share\.\Z",
}


class ReadErrorsTest(tf.test.TestCase, parameterized.TestCase):
    def data(self, expected):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        path = pathlib.Path(folder, "clicks.csv")
        if expected is _DAMAGED:
            path.write_bytes(gzip.compress(_GOOD)[:-2000])
        else:
            path.write_bytes(_GOOD + b"often,eve\n" * 1000)
        return tf_ext.data.read(path, _SCHEMA, batch_size=64)

    def model(self, strategy=None):
        strategy = strategy or tf.distribute.get_strategy()
        with strategy.scope():
            inputs = {"user": keras.Input((), dtype="string", name="user")}
            column = tf_ext.feature_column.category_column("user")
            self.layer = tf_ext.layers.EmbeddingFeatures(
                [column], tf_ext.SparseTable("read_errors", 2)
            )
            outputs = keras.layers.Dense(1)(self.layer(inputs))
            model = tf_ext.Model(inputs, outputs)
            model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        return model

    def check(self, expected, call, *args, **kwargs):
        with self.assertRaises(expected) as caught:
            call(*args, verbose=0, **kwargs)
        self.assertRegex(str(caught.exception), _SENTENCES[expected])
        # Of programs that know no class of tf_ext.
        self.assertIsInstance(caught.exception, ValueError)
        self.assertIsInstance(caught.exception, tf.errors.InvalidArgumentError)

    @parameterized.product(
        expected=[_DAMAGED, _MANY],
        method=["fit", "evaluate", "predict"],
        hashed=[False, True],
    )
    def test_of_models(self, expected, method, hashed):
        model, data = self.model(), self.data(expected)
        if hashed:
            data = tf_ext.data.hash_columns(data, self.layer.columns)
        self.check(expected, getattr(model, method), data)

    @parameterized.parameters(_DAMAGED, _MANY)
    def test_of_validation(self, expected):
        good = tf.data.Dataset.from_tensors(({"user": ["ann"]}, [1.0]))
        self.check(
            expected,
            self.model().fit,
            good,
            validation_data=self.data(expected),
        )

    def test_on_replicas(self):
        model = self.model(mirrored_strategy())
        self.check(_MANY, model.fit, self.data(_MANY))

    @parameterized.parameters(_DAMAGED, _MANY)
    def test_of_datasets(self, expected):
        data = self.data(expected)
        for dataset in (data, data.map(lambda *batch: batch).prefetch(1)):
            with self.assertRaises(tf.errors.InvalidArgumentError) as caught:
                list(dataset)
            message = caught.exception.message
            self.assertIn(f"{expected.__name__}: ", message)
            self.assertLessEqual(len(message.splitlines()), 10)

    def test_other_errors_stay_as_they_are(self):
        data = tf.data.Dataset.from_tensors(({"user": ["ann"]}, [1.0])).map(
            lambda x, y: (x, tf.debugging.check_numerics(y / 0.0, "other"))
        )
        with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "other"):
            self.model().fit(data, verbose=0)

    def test_pickle(self):
        for cls in (_DAMAGED, _MANY):
            error = pickle.loads(pickle.dumps(cls("a sentence")))
            self.assertIsInstance(error, cls)
            self.assertEqual(str(error), "a sentence")


if __name__ == "__main__":
    tf.test.main()
