# SPDX-License-Identifier: Apache-2.0
"""What synchronous workers compare of their calls of `fit`."""

import json

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_ext
from tf_ext._keras import keras
from tf_ext.training.synchronous.programs import program_of

pytestmark = pytest.mark.both_kerases(slow=True)


def _half(y_true, y_pred):
    return tf.reduce_mean(tf.abs(y_true - y_pred), -1) / 2


class _Squares(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return tf.reduce_mean((y_true - y_pred) ** 2, -1)


class _Sizes:
    """What no JSON can hold."""


def _model(loss="mse"):
    inputs = keras.Input([1])
    model = tf_ext.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(tf_ext.optimizers.Optimizer("sgd"), loss)
    return model


def _program(loss="mse", **arguments):
    arguments = {"x": np.zeros([4, 1]), "validation_data": None, **arguments}
    program = program_of(_model(loss), arguments)
    json.dumps(program)
    return program


class ProgramTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("name", "mse", "mse"),
        ("function", _half, "_half"),
        ("object", _Squares(), "_Squares"),
        ("list", ["mse"], ["mse"]),
    )
    def test_losses(self, loss, found):
        self.assertEqual(_program(loss)["the loss"], found)

    @parameterized.named_parameters(
        ("none", None, None),
        ("number", 3, 3),
        ("of_numpy", np.int64(3), 3),
        ("array", np.array([1.0, 2.0]), [1.0, 2.0]),
        ("dict", {0: 1.0, 1: np.float64(2)}, {"0": 1.0, "1": 2.0}),
        ("tuple", (1, (2,)), [1, [2]]),
        ("object", _Sizes(), "_Sizes"),
    )
    def test_arguments(self, value, found):
        program = _program(class_weight=value)
        self.assertEqual(program["`class_weight` of fit"], found)

    def test_models_and_optimizers(self):
        one, other = _program(), _program()
        self.assertEqual(one, other)
        self.assertEqual(
            one["the class of the model"], _model().__class__.__name__
        )
        self.assertNotIn("name", one["the optimizer"]["config"])

    def test_data(self):
        batches = tf.data.Dataset.range(5).batch(2)
        sharing = tf.data.Options()
        sharing.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.OFF
        )
        for data, found in (
            (np.zeros([4, 1]), {"the number of samples of `x`": 4}),
            ({"a": np.zeros([3, 1])}, {"the number of samples of `x`": 3}),
            (iter([]), {"`x`": "list_iterator"}),
            (lambda context: batches, {"`x`": "a function"}),
            (
                batches,
                {
                    "the auto_shard_policy of `x`": "AUTO",
                    "the batch size of `x`": 2,
                    "the number of batches of `x`": 3,
                },
            ),
            (
                batches.repeat().filter(lambda _: True),
                {
                    "the auto_shard_policy of `x`": "AUTO",
                    "the batch size of `x`": 2,
                    "the number of batches of `x`": None,
                },
            ),
            (
                batches.with_options(sharing),
                {"the auto_shard_policy of `x`": "OFF"},
            ),
        ):
            program = _program(x=data)
            self.assertEqual(
                {k: v for k, v in program.items() if k.endswith("`x`")}, found
            )

    def test_validation_data(self):
        x, y = np.zeros([3, 1]), np.zeros([3, 1])
        program = _program(validation_data=(x, y))
        self.assertEqual(
            program["the number of samples of `validation_data`"], 3
        )
        self.assertIn("`validation_data`", _program())


if __name__ == "__main__":
    absltest.main()
