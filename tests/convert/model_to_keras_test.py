# SPDX-License-Identifier: Apache-2.0
"""Models with tables as Keras models, and those that cannot become one."""

import numpy as np
import pytest
import tensorflow as tf
from saving_util import TestCase

import tf_ext
from tf_ext._keras import keras
from tf_ext.convert.slots import index_of, slots_of

pytestmark = pytest.mark.both_kerases(slow=True)


class FrozenTest(TestCase):
    def test_rows_of_a_frozen_table_have_no_slots(self):
        inputs = {"x": keras.Input((1,), dtype="int64", name="x")}
        tables = [tf_ext.SparseTable(name, 2, "adagrad") for name in "ab"]
        [column] = [tf_ext.feature_column.category_column("x")]
        for table in tables:
            table.push(column.signs([1, 2]), np.ones([2, 2]), step=1)
        tables[0].trainable = False
        layer = tf_ext.layers.EmbeddingFeatures({t: [column] for t in tables})
        outputs = keras.layers.Add()(list(layer(inputs).values()))
        model = tf_ext.Model(inputs, outputs)
        ids = {"x": tf.constant([[1], [2]])}
        for compiled in (False, True):
            if compiled:
                adagrad = keras.optimizers.Adagrad(0.1)
                model.compile(tf_ext.optimizers.Optimizer(adagrad), "mse")
            done = tf_ext.convert.model_to_keras(model, {"x": [1, 2]})
            self.assertEqual(done.left, {"a": 0, "b": 0})
            self.assertAllClose(done.model(ids), model(ids))
            self.assertLen(done.model.trainable_variables, 1)


class OptimizersTest(TestCase):
    def _accumulator(self, model, optimizer):
        """Of the kernel of the last layer."""
        [slots] = slots_of(optimizer).values()
        return slots[index_of(optimizer, model.layers[-1].kernel)]

    def test_slots_of_other_layers_go_along(self):
        inputs = keras.Input((1,), dtype="int64", name="x")
        rows = keras.layers.Flatten()(keras.layers.Embedding(3, 2)(inputs))
        before = keras.Model(inputs, keras.layers.Dense(1)(rows))
        before.compile(keras.optimizers.Adagrad(0.1), "mse")
        before.optimizer.build(before.trainable_variables)
        expected = [[2.0], [3.0]]
        self._accumulator(before, before.optimizer).assign(expected)
        model = tf_ext.convert.model_from_keras(before).model
        inner = model.optimizer.inner_optimizer
        self.assertAllEqual(self._accumulator(model, inner), expected)
        after = tf_ext.convert.model_to_keras(model, {"x": [0, 1, 2]}).model
        self.assertAllEqual(self._accumulator(after, after.optimizer), expected)


class CombinersTest(TestCase):
    def test_zero_can_be_the_missing_value(self):
        column = tf_ext.feature_column.category_column(
            "x", combiner="sqrtn", missing=0
        )
        inputs = {"x": keras.Input((3,), dtype="int64", name="x")}
        layer = tf_ext.layers.EmbeddingFeatures(
            [column], tf_ext.SparseTable("rows", 2)
        )
        model = tf_ext.Model(inputs, layer(inputs))
        features = {
            "x": tf.constant([[1, 2, 0], [3, 0, 0], [0, 0, 0]], tf.int64)
        }
        model(features, training=True)
        back = tf_ext.convert.model_to_keras(model, {"x": [1, 2, 3]})
        self.assertAllClose(back.model(features), model(features), 1e-6, 1e-6)


class IdentityTest(TestCase):
    def test_namespaces_of_one_table_share_rows(self):
        columns = [
            tf_ext.feature_column.category_column(key, hashing="identity")
            for key in ("user", "friend")
        ]
        table = tf_ext.SparseTable("people", 2)
        rows = np.arange(8, dtype=np.float32).reshape(4, 2)
        table.import_rows([1, 2, 3, 4], {"weights": rows + 1})
        inputs = {
            key: keras.Input((), dtype="int64", name=key)
            for key in ("user", "friend")
        }
        layer = tf_ext.layers.EmbeddingFeatures(columns, table)
        model = tf_ext.Model(inputs, layer(inputs))
        done = tf_ext.convert.model_to_keras(
            model, {"user": [1, 2], "friend": [2, 3, 4]}
        )
        self.assertEqual(done.left, {"people": 0})
        self.assertEmpty(done.notes)
        ids = {"user": tf.constant([1, 2]), "friend": tf.constant([3, 4])}
        ids = {key: tf.cast(value, tf.int64) for key, value in ids.items()}
        self.assertAllEqual(done.model(ids), model(ids))
        self.assertLen(done.model.trainable_variables, 1)


class RefusalsTest(TestCase):
    def test_a_feature_that_is_no_input(self):
        make = tf_ext.feature_column.category_column
        columns = [make("x"), make("y", optional=True)]
        inputs = {"x": keras.Input((), dtype="int64", name="x")}
        table = tf_ext.SparseTable("rows", 2)
        layer = tf_ext.layers.EmbeddingFeatures(columns, table)
        model = tf_ext.Model(inputs, layer(inputs))
        with self.assertRaisesRegex(ValueError, "'y' of .* an input of the"):
            tf_ext.convert.model_to_keras(model, {"x": [1], "y": [1]})

    def test_columns_that_layers_cannot_express(self):
        make = tf_ext.feature_column.category_column
        sequence = tf_ext.feature_column.sequence_category_column
        for column, words in (
            (make("x", bucket_size=5), "without buckets and boundaries"),
            (make("x", boundaries=[2]), "without buckets and boundaries"),
            (make("x", combiner="max"), "combines by sum, mean or sqrtn"),
            (make("x", weights="w"), "has no weights"),
            (sequence(make("x"), max_length=2), "max_length=None"),
        ):
            inputs = {
                "x": keras.Input((2,), dtype="int64", name="x"),
                "w": keras.Input((2,), name="w"),
            }
            layer = tf_ext.layers.EmbeddingFeatures(
                [column],
                tf_ext.SparseTable("rows", 2),
                concatenate=False,
                name="features",
            )
            model = tf_ext.Model(inputs, layer(inputs))
            with self.subTest(words):
                with self.assertRaisesRegex(
                    ValueError, f"'x' of layer 'features' must be .*{words}"
                ):
                    tf_ext.convert.model_to_keras(model, {"x": [1]})

    def test_other_vocabularies(self):
        inputs = keras.Input((1,), dtype="int64", name="x")
        rows = keras.layers.Embedding(7, 2)
        before = keras.Model(inputs, keras.layers.Flatten()(rows(inputs)))
        model = tf_ext.convert.model_from_keras(before).model
        for vocabularies, words in (
            ([], "`vocabularies` of model_to_keras must be a dict"),
            ({"y": [1]}, "Received: none of 'x', that of column 'x'"),
            ({"x": ["a"]}, "strings for column 'x', whose feature is of"),
            ({"x": [1, 1]}, "`vocabulary` of model_to_keras must not have"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                tf_ext.convert.model_to_keras(model, vocabularies)
        with self.assertRaisesRegex(ValueError, "must have a layer tf_ext"):
            tf_ext.convert.model_to_keras(before, {"x": [1]})


if __name__ == "__main__":
    tf.test.main()
