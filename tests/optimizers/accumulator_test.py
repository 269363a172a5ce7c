# SPDX-License-Identifier: Apache-2.0
"""Sums of the gradients of tables over several steps."""

import unittest

import numpy as np
import tensorflow as tf

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.optimizers.accumulator import TableAccumulators
from tf_ext.regimes import TableGradient
from tf_ext.tables.saving import keras_files


def _gradient(table, signs, values, statistics=None):
    return TableGradient(
        table,
        tf.constant(signs, tf.int64),
        tf.constant(values),
        statistics=None if statistics is None else tf.constant(statistics),
    )


class AccumulatorsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.tables = [
            tf_ext.SparseTable("a", 2, "sgd"),
            tf_ext.SparseTable("b", 1, "adam", statistics=["show", "click"]),
        ]
        self.sums = TableAccumulators()
        self.sums.build(self.tables)

    def taken(self, sums=None):
        """`{table: {sign: values and statistics}}`, whose sums are empty."""
        found = {}
        for one in (sums or self.sums).take():
            values = one.values.numpy()
            if one.table.statistics_width:
                values = np.concatenate([values, one.statistics], 1)
            else:
                self.assertIsNone(one.statistics)
            signs = one.signs.numpy().tolist()
            found[one.table.name] = dict(zip(signs, values.tolist()))
        return found

    def add(self):
        one, two = self.tables
        self.sums.add([_gradient(one, [3, 4], [[1.0, 2.0], [3.0, -4.0]])])
        self.sums.add(
            [
                _gradient(two, [3], [[0.5]], [[2.0, 1.0]]),
                _gradient(one, [4, 9], [[0.5, 0.5], [7.0, 8.0]]),
            ]
        )
        half = tf.constant([[1.5]], tf.float16)
        self.sums.add([_gradient(two, [3], half, [[1.0, 0.0]])])
        self.sums.add([])
        return {
            "a": {3: [1.0, 2.0], 4: [3.5, -3.5], 9: [7.0, 8.0]},
            "b": {3: [2.0, 3.0, 1.0]},
        }

    def test_sums_are_taken_once(self):
        expected = self.add()
        self.assertEqual(self.taken(), expected)
        self.assertEqual(self.taken(), {"a": {}, "b": {}})
        self.assertEqual(int(self.tables[0].size()), 0)

    def test_sums_of_frozen_tables_wait(self):
        expected = self.add()
        self.tables[0].trainable = False
        self.assertEqual(self.taken(), {"b": expected["b"]})
        self.tables[0].trainable = True
        self.assertEqual(self.taken(), {"a": expected["a"], "b": {}})

    def test_tables_that_are_trained_later(self):
        sums = TableAccumulators()
        sums.build(self.tables[:1])
        two = self.tables[1]

        @tf.function
        def add():
            sums.add([_gradient(two, [3], [[0.5]], [[2.0, 1.0]])])

        add()
        add()
        self.assertEqual(self.taken(sums), {"a": {}, "b": {3: [1.0, 4.0, 2.0]}})

    def test_sums_are_loaded_by_the_names_of_tables(self):
        expected = self.add()
        namesake = tf_ext.SparseTable("a", 2, "sgd")
        self.sums.add([_gradient(namesake, [5], [[1.0, 1.0]])])
        store = {}
        self.sums.save(store)
        prefix = f"{self.get_temp_dir()}/sums"
        path = tf.train.Checkpoint(sums=self.sums).save(prefix)
        for tables in (self.tables[1:], self.tables[::-1]):
            wanted = {table.name: expected[table.name] for table in tables}
            again = TableAccumulators()
            again.build(tables)
            again.load(store)
            self.assertEqual(self.taken(again), wanted)
            again = TableAccumulators()
            again.build(tables)
            tf.train.Checkpoint(sums=again).restore(path)
            self.assertEqual(self.taken(again), wanted)
        again = TableAccumulators()
        again.build([*self.tables, namesake])
        again.load(store)
        first, _, second = again.take()
        self.assertLen(first.signs, 3)
        self.assertAllEqual(second.signs, [5])

    def test_sums_that_a_file_does_not_have_are_empty(self):
        self.add()
        store = {}
        other = TableAccumulators()
        other.build(self.tables[1:])
        other.save(store)
        with keras_files.only("check"):
            self.sums.load(store)
        self.assertEqual(int(self.sums.take()[0].signs.shape[0]), 3)
        self.add()
        self.sums.load(store)
        self.assertEqual(self.taken(), {"a": {}, "b": {}})

    def test_files_that_number_the_sums(self):
        expected = self.add()
        store = {}
        self.sums.save(store)
        older = {
            key.replace("sums:a:", "sums0_").replace("sums:b:", "sums1_"): value
            for key, value in store.items()
        }
        again = TableAccumulators()
        again.build(self.tables)
        again.load(older)
        self.assertEqual(self.taken(again), expected)

    def test_sums_are_saved(self):
        expected = self.add()
        store = {"other": 5}
        self.sums.save(store)
        again = TableAccumulators()
        again.build(self.tables)
        self.assertEqual(again.load(store), {"other": 5})
        self.assertEqual(self.taken(again), expected)
        self.assertEqual(self.taken(), expected)


@unittest.skipUnless(IS_KERAS_3, "tf_keras does not accumulate")
class FilesTest(tf.test.TestCase):
    def _model(self, frozen=False, steps=2):
        keras.utils.set_random_seed(4)
        item = tf_ext.feature_column.category_column("item", hashing="identity")
        inputs = {"item": keras.Input([1], dtype="int64", name="item")}
        tables = [tf_ext.SparseTable(name, 2, "sgd") for name in "ab"]
        tables[0].trainable = not frozen
        parts = [
            tf_ext.layers.EmbeddingFeatures([item], table)(inputs)
            for table in tables
        ]
        hidden = keras.layers.Concatenate()(parts)
        model = tf_ext.Model(inputs, keras.layers.Dense(1)(hidden))
        dense = keras.optimizers.SGD(0.5, gradient_accumulation_steps=steps)
        model.compile(tf_ext.optimizers.Optimizer(dense), "mse")
        return model

    def _step(self, model):
        model.train_on_batch({"item": np.arange(4)[:, np.newaxis]}, np.ones(4))
        found = {}
        for table in model.tables:
            signs, fields = table.export_rows()
            order = np.argsort(signs)
            found[table.name] = fields["weights"][order]
        return found

    def test_sums_are_those_of_the_table(self):
        """Also if another table is frozen where the file is loaded."""
        whole = self._model()
        before = self._step(whole)
        folder = self.get_temp_dir()
        whole.save_weights(f"{folder}/model.weights.h5")
        whole.save(f"{folder}/model.keras")
        model = self._model(frozen=True)
        model.load_weights(f"{folder}/model.weights.h5")
        loaded = keras.models.load_model(f"{folder}/model.keras")
        loaded.tables[0].trainable = False
        loaded.compile(loaded.optimizer, "mse")
        after = self._step(whole)
        for one in (model, loaded):
            found = self._step(one)
            self.assertAllClose(found["b"], after["b"], 1e-6)
            self.assertNotAllClose(found["a"], after["a"], 1e-6)
            self.assertAllEqual(found["a"], before["a"])

    def test_more_steps_are_loaded_than_are_added_up(self):
        model = self._model(steps=4)
        path = f"{self.get_temp_dir()}/model.weights.h5"
        for _ in range(3):
            before = self._step(model)
        model.save_weights(path)
        other = self._model(steps=2)
        self._step(other)
        other.load_weights(path)
        after = self._step(other)
        self.assertNotAllClose(after["a"], before["a"], 1e-6)
        self.assertAllEqual(self._step(other)["a"], after["a"])
        self.assertNotAllEqual(self._step(other)["a"], after["a"])


if __name__ == "__main__":
    tf.test.main()
