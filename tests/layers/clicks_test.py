# SPDX-License-Identifier: Apache-2.0
"""The feature that counts as clicks."""

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import counted_rows
from models.model_building import id_column

import tf_ext
from tf_ext._keras import keras
from tf_ext.layers import clicks

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ClickTest::test_of_a_functional_model",
    ),
]


def _layer(click="bought", **kwargs):
    return tf_ext.layers.EmbeddingFeatures(
        [id_column("user")], counted_rows.table(), click=click, **kwargs
    )


def _train(layer, inputs, **kwargs):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(inputs, **kwargs))
    gradients = tape.gradient(loss, layer.trainable_variables)
    counted_rows.apply(
        tf_ext.optimizers.Optimizer("sgd"), gradients, layer.trainable_variables
    )
    return counted_rows.rows(layer.tables[0])


class ClickTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(
        (tf.constant([1, 0, 2], tf.int64),),
        (tf.constant([[1], [0], [2]], tf.uint8),),
        (tf.constant([1.0, 0.0, 2.0], tf.float16),),
        (tf.constant([1.0, 0.0, 2.0]),),
    )
    def test_types_and_shapes(self, bought):
        rows = _train(
            _layer(), {"user": tf.constant([7, 7, 8]), "bought": bought}
        )
        self.assertEqual(rows, {7: (2.0, 1.0), 8: (1.0, 2.0)})

    def test_booleans_of_a_batch_of_unknown_size(self):
        layer = _layer()
        spec = {
            "user": tf.TensorSpec([None], tf.int64),
            "bought": tf.TensorSpec(None, tf.bool),
        }
        bought = tf.constant([[True], [False], [True]])

        @tf.function(input_signature=[spec])
        def call(inputs):
            bought = tf.ensure_shape(inputs["bought"], [None, None])
            return layer(inputs | {"bought": bought}, training=True)

        call({"user": tf.constant([7, 7, 8], tf.int64), "bought": bought})
        rows = _train(layer, {"user": tf.constant([7, 7, 8]), "bought": bought})
        self.assertEqual(rows, {7: (2.0, 1.0), 8: (1.0, 1.0)})

    def test_may_be_missing_unless_rows_are_trained(self):
        layer = _layer()
        inputs = {"user": tf.constant([7, 8])}
        self.assertEqual(layer(inputs).shape, [2, 3])
        self.assertEqual(layer(inputs, training=False).shape, [2, 3])
        with self.assertRaisesRegex(
            ValueError, "'bought', the `click` .* missing .* 'user'"
        ):
            layer(inputs, training=True)
        rows = _train(layer, inputs)
        self.assertEqual(rows, {7: (1.0, 0.0), 8: (1.0, 0.0)})
        frozen = _layer(trainable=False)
        self.assertEqual(frozen(inputs, training=True).shape, [2, 3])

    @parameterized.parameters(
        (tf.constant([1.0, 2.0]), "batch size of the other features"),
        (tf.constant([[1.0, 2.0, 3.0]] * 3), r"dense tensor.*\(3, 3\)"),
        (tf.constant(1.0), "dense tensor"),
        (tf.constant(["1", "2", "3"]), "numbers or booleans.*string"),
        (tf.ragged.constant([[1], [2], [3]]), "dense tensor.*RaggedTensor"),
        (tf.constant([1.0, -1.0, 1.0]), "'bought'.*finite and not negative"),
        (tf.constant([1.0, np.nan, 1.0]), "finite and not negative"),
        (tf.constant([1.0, np.inf, 1.0]), "finite and not negative"),
    )
    def test_bad_ones_are_refused(self, bought, message):
        layer = _layer()
        with self.assertRaisesRegex(
            (ValueError, tf.errors.InvalidArgumentError), message
        ):
            _train(
                layer,
                {"user": tf.constant([1, 2, 3]), "bought": bought},
                training=True,
            )
        self.assertEqual(layer.tables[0].size(), 0)

    def test_errors_wait_for_those_of_other_workers(self):
        for bought, message in (
            ([1.0, -1.0], "not negative"),
            ([1.0, 2.0, 3.0], "batch size"),
            ([1.0], "batch size"),
            ([1.0, 2.0], ""),
        ):
            for earlier in ("", "earlier"):
                found, error = clicks.of_batch(
                    "bought",
                    {"bought": tf.constant(bought)},
                    tf.constant(2, tf.int64),
                    required=True,
                    error=tf.constant(earlier),
                )
                self.assertEqual(found.shape, [2])
                self.assertAllGreaterEqual(found, 0.0)
                error = error.numpy().decode()
                if earlier:
                    self.assertEqual(error, earlier)
                elif message:
                    self.assertIn(message, error)
                else:
                    self.assertEqual(error, "")

    @parameterized.parameters(
        (3, "a string or None"), ("bought", "None unless a table has")
    )
    def test_the_argument_is_checked(self, click, message):
        table = counted_rows.table("shows", ["show"])
        with self.assertRaisesRegex(
            ValueError, f"`click` of EmbeddingFeatures must be {message}"
        ):
            tf_ext.layers.EmbeddingFeatures(
                [id_column("user")], table, click=click
            )

    def test_is_in_the_config(self):
        layer = _layer()
        copy = type(layer).from_config(layer.get_config())
        self.assertEqual(copy.click, "bought")
        older = layer.get_config()
        del older["click"]
        self.assertIsNone(type(layer).from_config(older).click)

    def test_of_a_functional_model(self):
        inputs = {
            "user": keras.Input((), dtype="int64", name="user"),
            "bought": keras.Input((1,), name="bought"),
        }
        layer = _layer()
        model = tf_ext.Model(inputs, layer(inputs))
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        batch = {
            "user": np.array([7, 7, 8]),
            "bought": np.array([[1.0], [0.0], [2.0]], np.float32),
        }
        model.fit(batch, np.zeros([3, 3]), verbose=0)
        model.evaluate(batch, np.zeros([3, 3]), verbose=0)
        self.assertEqual(
            counted_rows.rows(layer.tables[0]), {7: (2.0, 1.0), 8: (1.0, 2.0)}
        )


if __name__ == "__main__":
    tf.test.main()
