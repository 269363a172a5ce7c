# SPDX-License-Identifier: Apache-2.0
"""Models whose rows change while they are absent train, are saved and serve."""

import contextlib
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from models import small_models as small
from models.sharded_tables import bytes_of_rows
from pyarrow import parquet
from saving_util import FORMATS, TestCase

import tf_ext
from tf_ext import serving
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.ops.table import clock_ops

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "RegularizedModelsTest::test_left_out_steps_are_none",
    ),
]

_UNITS = 2.0**47  # of the clock in 1
_RATE = 0.25


def _build(dtype="float32", dense=None, rate=_RATE, **kwargs):
    """A model with a table, and one of dim 1 with its own l2."""
    rule = tf_ext.optimizers.SparseAdagrad
    deep = tf_ext.SparseTable(
        "deep", 4, rule(rate), "normal", dtype=dtype, l2=0.04, l1=0.001
    )
    bias = tf_ext.SparseTable("bias", 1, rule(rate), "zeros", l2=0.5)
    ids = small.inputs()
    embedded = tf_ext.layers.EmbeddingFeatures(
        {deep: small.columns(), bias: small.columns()}
    )(ids)
    joined = keras.layers.Concatenate()(list(embedded.values()))
    model = tf_ext.Model(ids, small.head()(joined))
    return small.compiled(model, dense, **kwargs)


def _clock(table):
    return int(
        clock_ops.sparse_table_shrinkage_clock(table.rows.resource_handle)
    )


def _steps(table, rates):
    """The clock after pushes with these learning rates."""
    return sum(
        round(-np.log1p(-rate * table.l2) / np.log(2) * _UNITS)
        for rate in rates
    )


def _build_dense_adam(dtype="float32", **kwargs):
    """A model with tables that dense Adam trains, one with l2."""
    deep, bias = (
        tf_ext.SparseTable(
            name,
            dim,
            tf_ext.optimizers.SparseAdam(0.1, epsilon=1e-3, absent="decay"),
            "normal",
            dtype=dtype if name == "deep" else "float32",
            l2=l2,
        )
        for name, dim, l2 in (("deep", 4, 0.04), ("bias", 1, 0))
    )
    ids = small.inputs()
    embedded = tf_ext.layers.EmbeddingFeatures(
        {deep: small.columns(), bias: small.columns()}
    )(ids)
    joined = keras.layers.Concatenate()(list(embedded.values()))
    model = tf_ext.Model(ids, small.head()(joined))
    return small.compiled(model, **kwargs)


class _ModelsTest(TestCase):
    """What is true of all such models."""

    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(1)
        # Some ids occur in the first batches alone.
        parts = [small.batch(rng, 16, ids) for ids in (60, 60, 20, 20, 10, 10)]
        features, labels = zip(*parts)
        self.features = {
            name: np.concatenate([each[name] for each in features])
            for name in features[0]
        }
        self.labelled = (self.features, np.concatenate(labels))
        # Ids without a row, too.
        self.asked = {
            key: np.concatenate([ids, ids + 99])
            for key, ids in self.features.items()
        }

    def _fit(self, model, **kwargs):
        model.fit(
            *self.labelled, batch_size=16, shuffle=False, verbose=0, **kwargs
        )
        return model

    def _assert_same(self, found, model):
        """Checks bits, now and after more training."""
        for _ in range(2):
            for table, other in zip(found.tables, model.tables, strict=True):
                self.assertEqual(bytes_of_rows(table), bytes_of_rows(other))
                self.assertEqual(_clock(table), _clock(other))
            self._fit(found)
            self._fit(model)

    def _assert_serves(self, folder, model, tolerance=1e-6):
        loaded = tf.saved_model.load(folder)
        served = loaded.signatures["serving_default"]
        found = served(**{k: tf.constant(v) for k, v in self.asked.items()})
        [values] = found.values()
        expected = model.predict(self.asked, verbose=0)
        self.assertAllClose(values, expected, tolerance, tolerance)

    @parameterized.named_parameters(*FORMATS)
    def test_training_goes_on_from(self, name):
        write, read = self.format(name)
        model = self._fit(self._build())
        write(model)
        copy = self._build()
        copy.predict(self.features, verbose=0)
        read(copy)
        if name != "checkpoint":  # of TensorFlow, not of Keras's optimizer
            copy.optimizer.build(copy.trainable_variables)
        for table, other in zip(copy.tables, model.tables, strict=True):
            self.assertEqual(bytes_of_rows(table), bytes_of_rows(other))
            self.assertEqual(_clock(table), _clock(other))

    def test_training_goes_on_from_a_whole_model(self):
        path = self.path("x.keras")
        model = self._fit(self._build(dtype="float16"))
        model.save(path)
        self._assert_same(keras.models.load_model(path), model)

    def test_training_goes_on_from_a_recovery_point(self):
        points = self.path("points")
        model = self._build()

        def snapshot():
            return tf_ext.callbacks.TableSnapshot(points, incremental=True)

        for epochs in (1, 2):
            self._fit(
                model,
                callbacks=[snapshot()],
                initial_epoch=epochs - 1,
                epochs=epochs,
            )
        again = self._fit(
            self._build(), callbacks=[snapshot()], initial_epoch=2, epochs=2
        )
        self._assert_same(again, model)

    @parameterized.parameters("float32", "bfloat16")
    def test_exports_of_stock_ops(self, dtype):
        model = self._fit(self._build())
        folder = serving.export(model, self.path("served"))
        self._assert_serves(folder, model)
        small_rows = self._fit(self._build(dtype=dtype))
        [deep, _] = small_rows.tables
        base, delta = self.path("0"), self.path("1")
        bias = self.path("bias")
        deep.save(base, incremental=True)
        self._fit(small_rows)
        deep.save(delta, base=base)
        small_rows.tables[1].save(bias)
        folder = serving.export_snapshots(
            small_rows, {"deep": delta, "bias": bias}, self.path("served")
        )
        self._assert_serves(
            folder, small_rows, 1e-6 if dtype == "float32" else 1e-3
        )

    def test_split_exports(self):
        model = self._fit(self._build())
        [deep, bias] = model.tables
        snapshots = {}
        for table in (deep, bias):
            snapshots[table.name] = self.path(table.name)
            table.save(snapshots[table.name])
        signs, fields = deep.export_rows()
        expected = dict(zip(signs.tolist(), fields["weights"].tolist()))
        for given in (None, snapshots):
            version = serving.export_split(
                model, self.path("split"), snapshots=given
            )
            read = parquet.read_table(pathlib.Path(version, "deep.parquet"))
            self.assertEqual(
                dict(zip(read["sign"].to_pylist(), read["vector"].to_pylist())),
                expected,
            )

    def test_export_with_the_ops_of_tf_ext(self):
        model = self._fit(self._build())
        path = self.path("exported")
        model.export(path) if hasattr(model, "export") else model.save(path)
        served = tf.saved_model.load(path)
        found = served.serve({k: tf.constant(v) for k, v in self.asked.items()})
        self.assertAllClose(
            found, model.predict(self.asked, verbose=0), 1e-6, 1e-6
        )

    @parameterized.parameters("float32", "bfloat16")
    def test_follows_deltas(self, dtype):
        model = self._build(dtype=dtype)
        points = self.path("points")
        snapshot = tf_ext.callbacks.TableSnapshot(points, incremental=True)
        self._fit(model, callbacks=[snapshot])
        with self._served():
            served = self._build(dtype=dtype)
        with serving.follow(served, points, every=None) as follower:
            for _ in range(3):
                self.assertAllEqual(
                    served.predict(self.asked, verbose=0),
                    model.predict(self.asked, verbose=0),
                )
                model.tables[0].erase([3])
                self._fit(model, callbacks=[snapshot])
                follower.update()
        folder = serving.export(served, self.path("served"))
        # Exports hold small rows, rounded after they were shrunk.
        self._assert_serves(folder, model, 1e-6 if dtype == "float32" else 1e-3)


class RegularizedModelsTest(_ModelsTest):
    _build = staticmethod(_build)
    _served = staticmethod(serving.weights_only)

    def test_rows_that_serve_are_small(self):
        for dtype, size in (("float32", 32), ("bfloat16", 24)):
            with serving.weights_only():
                deep, _ = _build(dtype=dtype).tables
            self.assertEqual(deep.stats()["row_bytes"], size)

    def test_shrinks_what_is_absent(self):
        model = self._fit(_build())
        deep, bias = model.tables
        self.assertNotEqual(_clock(deep), _clock(bias))
        for table in (deep, bias):
            # A matrix of all rows, of which some have no gradient.
            self.assertNear(_clock(table), _steps(table, [_RATE] * 6), 8)
        absent = np.setdiff1d(
            self.features["user"][:16], self.features["user"][16:]
        )
        self.assertNotEmpty(absent)
        one = _build()
        one.fit(
            {name: ids[:16] for name, ids in self.features.items()},
            self.labelled[1][:16],
            verbose=0,
        )
        expected = one.tables[0].pull(absent).numpy().astype(np.float64)
        for _ in range(5):
            left = (1 - _RATE * 0.04) * np.abs(expected) - _RATE * 0.001
            expected = np.copysign(np.maximum(left, 0), expected)
        self.assertAllClose(deep.pull(absent), expected, 1e-6, 1e-6)

    def test_schedules(self):
        for schedule in ("rule", "model"):
            decay = keras.optimizers.schedules.ExponentialDecay(
                0.5, decay_steps=2, decay_rate=0.5
            )
            model = self._fit(
                _build(rate=decay)
                if schedule == "rule"
                else _build(rate=None, dense=keras.optimizers.SGD(decay))
            )
            rates = [0.5 * 0.5 ** (step / 2) for step in range(6)]
            for table in model.tables:
                self.assertNear(
                    _clock(table) / _steps(table, rates), 1, 1e-6, schedule
                )

    def test_left_out_steps_are_none(self):
        optimizer = tf_ext.optimizers.Optimizer(
            keras.optimizers.SGD(0.5), on_nonfinite="skip"
        )
        model = _build()
        model.compile(optimizer, "binary_crossentropy")
        labels = self.labelled[1].copy()
        labels[20] = np.nan
        model.fit(
            self.features, labels, batch_size=16, shuffle=False, verbose=0
        )
        for table in model.tables:
            self.assertNear(_clock(table), _steps(table, [_RATE] * 5), 8)

    @absltest.skipIf(not IS_KERAS_3, "tf_keras has no accumulation.")
    def test_accumulated_steps_are_one(self):
        dense = keras.optimizers.SGD(0.5, gradient_accumulation_steps=3)
        model = self._fit(_build(dense=dense))
        for table in model.tables:
            self.assertNear(_clock(table), _steps(table, [_RATE] * 2), 8)


class DenseAdamModelsTest(_ModelsTest):
    _build = staticmethod(_build_dense_adam)
    # Rows that only serve cannot be moved.
    _served = staticmethod(contextlib.nullcontext)

    def test_training_goes_on_where_keras_does(self):
        """Rows are those of an Embedding that Keras's Adam trains."""
        dense = keras.optimizers.Adam(0.01)
        table = tf_ext.SparseTable(
            "rows",
            2,
            tf_ext.optimizers.SparseAdam(0.01, absent="decay"),
            "zeros",
        )
        column = tf_ext.feature_column.category_column(
            "user", hashing="identity"
        )
        ids = keras.Input((), dtype="int64", name="user")
        head = keras.layers.Dense(1, kernel_initializer="ones")
        rows = tf_ext.layers.EmbeddingFeatures([column], table)({"user": ids})
        model = tf_ext.Model({"user": ids}, head(rows))
        model.compile(tf_ext.optimizers.Optimizer(dense), "mse")
        embedding = keras.layers.Embedding(60, 2, "zeros")
        twin = keras.Model(
            ids,
            keras.layers.Dense(1, kernel_initializer="ones")(embedding(ids)),
        )
        twin.compile(keras.optimizers.Adam(0.01), "mse")
        rng = np.random.default_rng(2)
        for step in range(100):
            # Distinct, as Keras 3 squares the gradients of an id one by one.
            some = rng.permutation(60 if step < 20 else 20)[:8]
            labels = np.sin(some)[:, np.newaxis].astype(np.float32)
            losses = [
                one.train_on_batch(features, labels)
                for one, features in ((model, {"user": some}), (twin, some))
            ]
            self.assertNear(
                np.ravel(losses[0])[0], np.ravel(losses[1])[0], 1e-5
            )
        self.assertAllClose(
            table.pull(range(60)), embedding.embeddings, 1e-5, 1e-5
        )


del _ModelsTest

if __name__ == "__main__":
    tf.test.main()
