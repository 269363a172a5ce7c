# SPDX-License-Identifier: Apache-2.0
"""What `summary` and `count_params` say of models with tables."""

import io
import re
from contextlib import redirect_stdout

import pytest
import tensorflow as tf

import tf_ext
from tf_ext._keras import keras

pytestmark = pytest.mark.both_kerases(slow=True)


def _model(rows=1000, nested=False):
    table = tf_ext.SparseTable("user", dim=8)
    table.pull(range(rows), training=True)
    other = tf_ext.SparseTable("item", dim=4, optimizer="adam")
    column = tf_ext.feature_column.category_column
    inputs = {
        key: keras.Input((), dtype="int64", name=key)
        for key in ("user", "item")
    }
    embedded = tf_ext.layers.EmbeddingFeatures(
        {table: [column("user")], other: [column("item")]}
    )(inputs)
    outputs = keras.layers.Dense(1)(
        keras.layers.Concatenate()(list(embedded.values()))
    )
    model = tf_ext.Model(inputs, outputs)
    if nested:
        model = tf_ext.Model(inputs, keras.layers.Dense(1)(model(inputs)))
    model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    return model


def _printed(model, **options):
    lines = []
    model.summary(print_fn=lambda line, **_: lines.append(line), **options)
    return "\n".join(lines)


def _numbers(text):
    """The totals that were printed, by name."""
    found = re.findall(r"(\w[\w-]*) params: ([0-9,]+)", text)
    return {name: int(number.replace(",", "")) for name, number in found}


class SummaryTest(tf.test.TestCase):
    def test_tables_have_a_line_and_no_parameters(self):
        model = _model()
        text = _printed(model)
        dense = 12 + 1
        self.assertEqual(_numbers(text)["Trainable"], dense)
        self.assertEqual(_numbers(text)["Non-trainable"], 0)
        self.assertEqual(model.count_params(), dense)
        [layer] = [
            layer
            for layer in model.layers
            if isinstance(layer, tf_ext.layers.EmbeddingFeatures)
        ]
        self.assertEqual(layer.count_params(), 0)
        for line in (
            "Table 'user': 1,000 rows of dim 8, trained by SparseRowWise",
            "Table 'item': 0 rows of dim 4, trained by SparseAdam",
        ):
            self.assertIn(line, text)
        printed = io.StringIO()
        with redirect_stdout(printed):
            model.summary()
        self.assertIn("Table 'user': 1,000 rows of dim 8", printed.getvalue())

    def test_nested_models(self):
        model = _model(nested=True)
        text = _printed(model, expand_nested=True)
        self.assertEqual(_numbers(text)["Trainable"], 13 + 2)
        self.assertEqual(model.count_params(), 13 + 2)
        self.assertEqual(text.count("Table 'user'"), 1)

    def test_training_and_saving_after_it(self):
        model = _model(3)
        weights = len(model.weights), len(model.trainable_weights)
        model.summary(print_fn=lambda *_, **__: None)
        found = len(model.weights), len(model.trainable_weights)
        self.assertEqual(found, weights)
        ids = tf.constant([1, 2, 9], tf.int64)
        model.fit({"user": ids, "item": ids}, tf.ones([3, 1]), verbose=0)
        self.assertIn("Table 'user': 6 rows of dim 8", _printed(model))
        path = f"{self.get_temp_dir()}/model.keras"
        model.save(path)
        loaded = keras.models.load_model(path)
        self.assertIn("Table 'user': 6 rows of dim 8", _printed(loaded))

    def test_models_without_tables(self):
        inputs = keras.Input((3,))
        model = tf_ext.Model(inputs, keras.layers.Dense(1)(inputs))
        text = _printed(model)
        self.assertEqual(_numbers(text)["Trainable"], 4)
        self.assertEqual(model.count_params(), 4)
        self.assertNotIn("Table", text)


if __name__ == "__main__":
    tf.test.main()
