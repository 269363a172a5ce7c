# SPDX-License-Identifier: Apache-2.0
"""Recovery points that are written and read by several processes."""

import os
import tempfile
import types
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.small_models import table

import tf_ext
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.recovery import beside, files, points
from tf_ext.regimes import local_regime
from tf_ext.snapshot import SnapshotConflictError
from tf_ext.tables.saving.snapshot_save import Save


class WriteTest(tf.test.TestCase):
    """What a process still writes once another has claimed the directory.

    The other one does so between two steps of the write, where no timing of
    real processes would meet it each time.
    """

    def setUp(self):
        super().setUp()
        self.root = self.enterContext(tempfile.TemporaryDirectory())
        self.path = os.path.join(self.root, "point-0000000001")
        self.model = types.SimpleNamespace(
            tables=[table(name="deep"), table(name="wide")]
        )
        self.claim = points.claim(self.root, self.model)
        self.saved = []

    def claim_by_another(self):
        points.claim(self.root, self.model)

    def write(self, taken_in=None):
        """Writes a point, whose directory is taken as a table is saved."""

        def save_of(index, table, path):
            self.saved.append(index)
            if index == taken_in:
                self.claim_by_another()
            return Save(table.rows, path)

        point = points.Point(1, 0, 1, self.path)
        with (
            mock.patch.object(points, "_State"),
            self.assertRaises(SnapshotConflictError),
        ):
            beside.run(
                points.write(point, self.model, save_of, self.claim),
                local_regime().processes,
                "Saving",
            )

    def test_nothing_if_it_is_taken_before(self):
        self.claim_by_another()
        self.write()
        self.assertEmpty(self.saved)
        self.assertFalse(os.path.exists(self.path))

    def test_no_further_table(self):
        self.write(taken_in=0)
        self.assertEqual(self.saved, [0])

    def test_no_point(self):
        self.write(taken_in=1)
        self.assertEqual(self.saved, [0, 1])
        self.assertCountEqual(os.listdir(self.path), ["table-000", "table-001"])


class ReadTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.enterContext(tempfile.TemporaryDirectory())

    def fit(self, names="ab", callbacks=(), **options):
        ids = [
            tf_ext.feature_column.category_column("id", hashing="identity"),
        ]
        inputs = {"id": keras.Input([1], dtype="int64", name="id")}
        tables = [tf_ext.SparseTable(name, 1, "sgd") for name in names]
        parts = [
            tf_ext.layers.EmbeddingFeatures(ids, one)(inputs) for one in tables
        ]
        outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(parts))
        model = tf_ext.Model(inputs, outputs)
        model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
        features = {"id": np.arange(12)[:, np.newaxis]}
        callback = tf_ext.callbacks.TableSnapshot(self.root, **options)
        model.fit(
            *(features, np.ones(12)),
            batch_size=2,
            shuffle=False,
            verbose=0,
            callbacks=[callback, *callbacks],
        )
        return model

    def steps(self):
        return [
            files.read_point(path).step for path in files.list_points(self.root)
        ]

    def test_tables_of_another_order_are_refused(self):
        self.fit()
        with self.assertRaisesRegex(
            ValueError, r"has 2 tables, \['b', 'a'\], .* with 2, \['a', 'b'\]"
        ):
            self.fit("ba")

    @parameterized.parameters(False, True)
    def test_a_point_of_a_later_step_that_cannot_be_read(self, incremental):
        """Training goes on behind an older one, and its points stay."""
        self.fit(steps=2, keep=2, incremental=incremental)
        newest = files.list_points(self.root)[-1]
        name = files.read_point(newest).variables_file
        with open(os.path.join(newest, name), "r+b") as file:
            file.write(b"#")

        def end(batch, logs):
            raise KeyboardInterrupt

        ended = keras.callbacks.LambdaCallback(on_train_batch_end=end)
        options = {"steps": 1, "keep": 1, "incremental": incremental}
        with self.assertRaises(KeyboardInterrupt):
            self.fit(callbacks=[ended], **options)
        with self.assertLogs("tf_ext", "WARNING") as logs:
            self.fit(**options)
        self.assertIn("epoch 1 of 1, after 4 of its steps", logs.output[0])
        self.assertEqual(self.steps()[-1:], [6])


@pytest.mark.both_kerases
class LossScaleTest(tf.test.TestCase):
    def fit(self, root, epochs):
        scaled, ours = (
            keras.mixed_precision.LossScaleOptimizer,
            tf_ext.optimizers.Optimizer,
        )
        if IS_KERAS_3:
            optimizer = ours(scaled(keras.optimizers.SGD()))
        else:
            optimizer = scaled(ours("sgd"))
        inputs = keras.Input([1])
        model = tf_ext.Model(inputs, keras.layers.Dense(1)(inputs))
        model.compile(optimizer, "mse")
        samples = np.float32([[1], [np.inf], [1], [1]])
        callback = tf_ext.callbacks.TableSnapshot(root)
        model.fit(
            *(samples, np.ones([4, 1])),
            batch_size=1,
            epochs=epochs,
            verbose=0,
            shuffle=False,
            callbacks=[callback],
        )
        if IS_KERAS_3:
            return float(optimizer.dynamic_scale)
        return float(optimizer.loss_scale)

    def test_goes_on(self):
        root = self.enterContext(tempfile.TemporaryDirectory())
        one = self.fit(root, 1)
        self.assertEqual(one, 2**14)
        self.assertEqual(self.fit(root, 1), one)
        self.assertEqual(self.fit(root, 2), one / 2)

    def test_of_points_without_it_begins_anew(self):
        root = self.enterContext(tempfile.TemporaryDirectory())
        with mock.patch.object(points, "loss_scale_variables", return_value={}):
            self.fit(root, 1)
        self.assertEqual(self.fit(root, 2), 2**14 / (2 if IS_KERAS_3 else 1))


class VariablesTest(tf.test.TestCase):
    def check(self, **saved):
        variables = {
            # As some of tf_keras.
            "any": tf.Variable([1.0, 2.0], shape=[None]),
            "bias": tf.Variable([1.0, 2.0]),
        }
        described = points.described(variables)
        points.check_variables(variables, described | saved, "/points/1")

    def test_those_that_a_point_has(self):
        self.check()
        self.check(any=(np.dtype("float32"), [7]))

    def test_others_are_refused(self):
        for name, saved, words in (
            (
                "any",
                (np.dtype("float32"), [7, 1]),
                r"shape \[None\] .*\[7, 1\]",
            ),
            ("bias", (np.dtype("float32"), [3]), r"shape \[2\] .* \[3\] there"),
            ("bias", (np.dtype("int32"), [2]), "dtype float32 .* int32 there"),
            ("new", (np.dtype("int32"), [2]), r"shape None .* \[2\] there"),
        ):
            with self.assertRaisesRegex(
                ValueError, f"/points/1: variable {name} has the {words}"
            ):
                self.check(**{name: saved})
        with self.assertRaisesRegex(ValueError, r"shape \[2\] .* None there"):
            variables = {"bias": tf.Variable([1.0, 2.0])}
            points.check_variables(variables, {}, "/points/1")


if __name__ == "__main__":
    tf.test.main()
