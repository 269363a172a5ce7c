# SPDX-License-Identifier: Apache-2.0
"""Rows that are loaded for columns which make other signs."""

import json
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from models.model_building import generator, id_column
from saving_util import FORMATS, TestCase

import tf_ext
from tf_ext._keras import keras
from tf_ext.feature_column import category_column, crossed_column

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ColumnRecordTest::test_each_way_to_make_signs_is_told_from_all_others",
        "ColumnRecordTest::test_files_*",
    ),
]

_COLUMNS = {
    "plain": category_column("user"),
    "namespace": category_column("user", namespace="users"),
    "buckets": category_column("user", bucket_size=10),
    "boundaries": category_column("user", boundaries=[1, 2]),
    "identity": id_column("user"),
    "cross": crossed_column(["user", "hour"]),
    "cross_of_buckets": crossed_column(
        [category_column("user", bucket_size=5), "hour"]
    ),
    "cross_of_boundaries": crossed_column(
        [category_column("user", boundaries=[2]), "hour"]
    ),
    "cross_in_another_order": crossed_column(["hour", "user"]),
    "cross_of_a_namespace": crossed_column(["user", "hour"], namespace="x"),
    "cross_in_buckets": crossed_column(["user", "hour"], bucket_size=7),
}
# Columns that make the same signs, whatever else is different.
_ALIKE = {
    "key": category_column("member", namespace="user"),
    "combiner": category_column("user", combiner="mean"),
    "missing": category_column("user", missing="", optional=True),
    "weights": category_column("user", weights="w"),
}


def _table(columns=(), **kwargs):
    table = tf_ext.SparseTable("deep", 4, "adagrad", **kwargs)
    if columns:
        tf_ext.layers.EmbeddingFeatures(list(columns), table)
    return table


def _model(*columns):
    inputs = {
        column.key: keras.Input((), dtype="string", name=column.key)
        for column in columns
    }
    layer = tf_ext.layers.EmbeddingFeatures(list(columns), _table())
    return small.compiled(tf_ext.Model(inputs, small.head()(layer(inputs))))


def _train(model, rng):
    features = {
        key: rng.integers(0, 9, [16]).astype(str).astype(object)
        for key in model.input
    }
    features = {k: tf.constant(v) for k, v in features.items()}
    model.train_on_batch(features, np.ones([16, 1]))


class ColumnRecordTest(TestCase):
    def _saved(self, *columns):
        table = _table(columns)
        table.pull([1, 2], training=True)
        path = self.path("deep")
        table.save(path)
        return path

    def test_each_way_to_make_signs_is_told_from_all_others(self):
        for name, column in _COLUMNS.items():
            for other_name, other in _COLUMNS.items():
                path = self._saved(other)
                table = _table([column])
                with self.subTest(f"{name}, saved {other_name}"):
                    if name == other_name:
                        with self.assertNoLogs("tf_ext"):
                            table.load(path)
                    else:
                        with self.assertLogs("tf_ext", "WARNING"):
                            table.load(path)

    @parameterized.named_parameters(*_ALIKE.items())
    def test_what_does_not_matter(self, column):
        path = self._saved(_COLUMNS["plain"])
        with self.assertNoLogs("tf_ext"):
            _table([column]).load(path)

    def test_the_words(self):
        path = self._saved(_COLUMNS["plain"], id_column("hour"))
        table = _table([_COLUMNS["namespace"]])
        with self.assertLogs("tf_ext", "WARNING") as logs:
            table.load(path)
        self.assertEqual(
            [record.getMessage() for record in logs.records],
            [
                "Column 'user' of table 'deep' hashes values to other signs "
                "than any column of the saved table and starts with untrained "
                'rows. It has {"namespace": "users"}; the saved columns were: '
                '\'hour\' {"hashing": "identity"}, \'user\' {"namespace": '
                '"user"}. To use the saved rows, its namespace, bucket_size, '
                "hashing and boundaries must be the saved ones."
            ],
        )

    def test_fewer_columns_than_were_saved(self):
        path = self._saved(_COLUMNS["plain"], id_column("hour"))
        with self.assertNoLogs("tf_ext"):
            _table([_COLUMNS["plain"]]).load(path)

    @parameterized.parameters(True, False)
    def test_weights_only(self, same):
        path = self._saved(_COLUMNS["plain"])
        table = _table([_COLUMNS["plain" if same else "namespace"]], seed=5)
        logs = self.assertNoLogs if same else self.assertLogs
        with logs("tf_ext", "WARNING"):
            table.load(path, weights_only=True)

    def test_layers_that_are_made_later(self):
        path = self._saved(_COLUMNS["plain"])
        table = _table()
        table.load(path)
        with self.assertNoLogs("tf_ext"):
            tf_ext.layers.EmbeddingFeatures([_COLUMNS["plain"]], table)
        with self.assertLogs("tf_ext", "WARNING") as logs:
            tf_ext.layers.EmbeddingFeatures([_COLUMNS["buckets"]], table)
        self.assertLen(logs.records, 1)

    def test_a_table_without_layers_hands_on_what_it_loaded(self):
        between = _table()
        between.load(self._saved(_COLUMNS["plain"]))
        path = self.path("again")
        between.save(path)
        with self.assertLogs("tf_ext", "WARNING"):
            _table([_COLUMNS["namespace"]]).load(path)

    def test_a_table_that_was_saved_without_layers(self):
        path = self._saved()
        with self.assertNoLogs("tf_ext"):
            _table([_COLUMNS["plain"]]).load(path)

    @parameterized.parameters("", "[1]", "7", "[[1]]")
    def test_damaged(self, text):
        table = _table([_COLUMNS["plain"]])
        with self.assertLogs("tf_ext", "WARNING") as logs:
            table.column_record.restore(text)
        self.assertIn(
            f"that read table 'deep' when it was saved is invalid: {text!r}",
            logs.output[0],
        )

    def test_long_ones_are_shortened(self):
        column = category_column("user", boundaries=range(1000))
        table = _table([column])
        self.assertGreater(len(table.column_record.state()), 3000)
        other = _table([category_column("user", boundaries=range(999))])
        with self.assertLogs("tf_ext", "WARNING") as logs:
            other.column_record.restore(table.column_record.state())
        self.assertLess(len(logs.output[0]), 600)

    @parameterized.named_parameters(*FORMATS)
    def test_files(self, name):
        write, read = self.format(name)
        rng = generator(self)
        model = _model(_COLUMNS["plain"])
        _train(model, rng)
        write(model)
        same, other = _model(_COLUMNS["plain"]), _model(_COLUMNS["namespace"])
        for loaded in (same, other):
            _train(loaded, rng)
        with self.assertNoLogs("tf_ext"):
            read(same)
        with self.assertLogs("tf_ext", "WARNING") as logs:
            read(other)
        self.assertIn("to other signs than any column", logs.output[0])
        self.assertLen(logs.records, 1)

    def test_a_loaded_model(self):
        path = self.path("m.keras")
        model = _model(_COLUMNS["plain"])
        model.save(path)
        with self.assertNoLogs("tf_ext"):
            loaded = keras.models.load_model(path)
        self.assertEqual(
            json.loads(loaded.tables[0].column_record.state()),
            [["user", '{"namespace": "user"}']],
        )

    @parameterized.named_parameters(*FORMATS)
    def test_files_that_do_not_know(self, name):
        """As all files before tables kept their columns."""
        write, read = self.format(name)
        rng = generator(self)
        model, other = (
            _model(_COLUMNS[name]) for name in ("plain", "namespace")
        )
        for one in (model, other):
            _train(one, rng)
        table = model.tables[0]
        state = {"optimizer": table.optimizer.state()}
        with mock.patch.object(table.rows.state, "strings", lambda: state):
            write(model)
        with self.assertNoLogs("tf_ext"):
            read(other)
        self.assertCountEqual(
            other.tables[0].export_rows()[0], table.export_rows()[0]
        )


class TrainingArgumentTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        {"arguments": {}}, {"arguments": {"training": False}}
    )
    def test_rows_are_trained_in_a_tape_whatever_it_is(self, arguments):
        features, _ = small.batch(generator(self))
        tables = []
        for given in (arguments, {"training": True}):
            table = small.table("adagrad")
            tables.append(table)
            layer = tf_ext.layers.EmbeddingFeatures(small.columns(), table)
            optimizer = tf_ext.optimizers.Optimizer("sgd")
            for _ in range(3):
                with tf.GradientTape() as tape:
                    output = layer(features, **given)
                    loss = tf.reduce_sum(tf.square(output - 1.0))
                gradients = tape.gradient(loss, [table.shadow])
                optimizer.apply_gradients(zip(gradients, [table.shadow]))
        found, expected = (
            dict(zip(signs.tolist(), fields["weights"].tolist()))
            for signs, fields in (table.export_rows() for table in tables)
        )
        self.assertNotEmpty(found)
        self.assertEqual(found, expected)

    def test_it_decides_whether_reading_makes_rows(self):
        table = small.table()
        layer = tf_ext.layers.EmbeddingFeatures(small.columns(), table)
        features, _ = small.batch(generator(self))
        for arguments in ({}, {"training": False}):
            layer(features, **arguments)
            self.assertEqual(table.size(), 0)
        layer(features, training=True)
        self.assertGreater(table.size(), 0)


if __name__ == "__main__":
    tf.test.main()
