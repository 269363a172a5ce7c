# SPDX-License-Identifier: Apache-2.0
"""Models whose ids share rows while they have none are saved and serve."""

import numpy as np
import pytest
import split_lookups
import tensorflow as tf
from absl.testing import absltest, parameterized
from models import small_models as small
from models.sharded_tables import bytes_of_rows
from saving_util import FORMATS, TestCase

import tf_ext
from tf_ext import serving
from tf_ext._keras import IS_KERAS_3, keras

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow,
]


def _build(dtype="float32", cvm=False, dense=None, **kwargs):
    """A model with a table that shares three rows, and one that shares one."""
    rule = tf_ext.optimizers.SparseAdagrad
    deep = tf_ext.SparseTable(
        "deep",
        4,
        rule(0.25),
        "normal",
        dtype=dtype,
        statistics=["show", "click"],
        admission=tf_ext.admission.Count(3),
        unknown="shared",
        unknown_buckets=3,
    )
    bias = tf_ext.SparseTable(
        "bias",
        1,
        rule(0.25),
        "zeros",
        unknown="shared",
        statistics=["show", "click"],
        l2=0.1,
    )
    ids = small.inputs()
    embedded = tf_ext.layers.EmbeddingFeatures(
        {deep: small.columns(), bias: small.columns()}, cvm=cvm
    )(ids)
    joined = keras.layers.Concatenate()(list(embedded.values()))
    model = tf_ext.Model(ids, small.head()(joined))
    return small.compiled(model, dense, **kwargs)


class SharedRowsModelsTest(TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(1)
        self.features, labels = small.batch(rng, 96, 60)
        self.labelled = (self.features, labels)
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
            self._fit(found)
            self._fit(model)

    def _assert_serves(self, folder, model, tolerance=1e-6):
        loaded = tf.saved_model.load(folder)
        served = loaded.signatures["serving_default"]
        found = served(**{k: tf.constant(v) for k, v in self.asked.items()})
        [values] = found.values()
        expected = model.predict(self.asked, verbose=0)
        self.assertAllClose(values, expected, tolerance, tolerance)

    def test_ids_without_a_row_share_those_that_learn(self):
        model = self._fit(_build())
        deep, bias = model.tables
        self.assertGreater(deep.stats()["waiting"], 20)
        signs, fields = deep.export_rows()
        show = dict(zip(signs.tolist(), fields["show"][:, 0]))
        for sign in deep.unknown_ids.tolist():
            self.assertGreater(show[sign], 10)
        rows = deep.pull(deep.unknown_ids)
        self.assertAllEqual(
            deep.pull([1000, 1001, 1002]), [rows[i % 3] for i in (1, 2, 0)]
        )
        self.assertNotAllClose(rows, _build().tables[0].pull(deep.unknown_ids))
        self.assertAllEqual(bias.pull([1000]), bias.pull(bias.unknown_ids))
        # Without admission, an id reads the shared row in its first batch.
        known, reads = set(), 0
        for begin in range(0, 96, 16):
            ids = [v[begin : begin + 16] for v in self.features.values()]
            ids = np.concatenate([one.ravel() for one in ids]).tolist()
            reads += sum(one not in known for one in ids)
            known.update(ids)
        signs, fields = bias.export_rows()
        show = dict(zip(signs.tolist(), fields["show"][:, 0]))
        self.assertEqual(show[bias.unknown_ids[0]], reads)

    @absltest.skipIf(not IS_KERAS_3, "tf_keras has no accumulation.")
    def test_accumulated_steps(self):
        dense = keras.optimizers.SGD(0.5, gradient_accumulation_steps=3)
        model = self._fit(_build(dense=dense))
        whole = _build()
        whole.fit(*self.labelled, batch_size=48, shuffle=False, verbose=0)
        for table, other in zip(model.tables, whole.tables, strict=True):
            self.assertAllClose(
                table.pull(np.arange(-60, 60)),
                other.pull(np.arange(-60, 60)),
                1e-5,
                1e-5,
            )

    @parameterized.named_parameters(*FORMATS)
    def test_training_goes_on_from(self, name):
        write, read = self.format(name)
        model = self._fit(_build())
        write(model)
        copy = _build()
        copy.predict(self.features, verbose=0)
        read(copy)
        for table, other in zip(copy.tables, model.tables, strict=True):
            self.assertEqual(bytes_of_rows(table), bytes_of_rows(other))

    def test_training_goes_on_from_a_whole_model(self):
        path = self.path("x.keras")
        model = self._fit(_build(dtype="float16"))
        model.save(path)
        self._assert_same(keras.models.load_model(path), model)

    @parameterized.parameters("float32", "float16", "int8")
    def test_exports_of_stock_ops(self, dtype):
        model = self._fit(_build(cvm=True))
        tolerance = {"float32": 1e-6, "float16": 1e-3, "int8": 0.02}[dtype]
        folder = serving.export(
            model, self.path("served"), dtype=dtype, warmup=self.asked
        )
        self._assert_serves(folder, model, tolerance)
        snapshots = {}
        for table in model.tables:
            snapshots[table.name] = self.path(table.name)
            table.save(snapshots[table.name])
        folder = serving.export_snapshots(
            model,
            snapshots,
            self.path("served"),
            dtype=dtype,
            warmup=self.asked,
        )
        self._assert_serves(folder, model, tolerance)
        expected = model.predict(self.asked, verbose=0)
        [(_, answers)] = serving.read_warmup(folder)
        [values] = answers.values()
        self.assertAllClose(values, expected, tolerance, tolerance)
        folder = serving.export(model, self.path("zeros"), unknown="zeros")
        loaded = tf.saved_model.load(folder)
        [values] = loaded.signatures["serving_default"](
            **{k: tf.constant(v) for k, v in self.asked.items()}
        ).values()
        self.assertNotAllClose(values, expected, 1e-3, 1e-3)

    def test_exports_of_tables_without_rows(self):
        model = _build()
        self._assert_serves(serving.export(model, self.path("served")), model)

    def test_split_exports(self):
        model = self._fit(_build())
        version = serving.export_split(model, self.path("split"))
        batch = {
            "user": self.asked["user"][:, np.newaxis].tolist(),
            "items": self.asked["items"].tolist(),
        }
        inputs = split_lookups.looked_up(self.directory(), version, batch)
        dense = tf.saved_model.load(f"{version}/dense")
        [values] = dense.signatures["serving_default"](**inputs).values()
        self.assertAllClose(
            values, model.predict(self.asked, verbose=0), 1e-6, 1e-6
        )

    def test_export_with_the_ops_of_tf_ext(self):
        model = self._fit(_build())
        path = self.path("exported")
        model.export(path) if hasattr(model, "export") else model.save(path)
        served = tf.saved_model.load(path)
        found = served.serve({k: tf.constant(v) for k, v in self.asked.items()})
        self.assertAllClose(
            found, model.predict(self.asked, verbose=0), 1e-6, 1e-6
        )

    def test_follows_deltas(self):
        model = _build(dtype="bfloat16")
        points = self.path("points")
        snapshot = tf_ext.callbacks.TableSnapshot(points, incremental=True)
        self._fit(model, callbacks=[snapshot])
        with serving.weights_only():
            served = _build(dtype="bfloat16")
        with serving.follow(served, points, every=None) as follower:
            for _ in range(2):
                self.assertAllEqual(
                    served.predict(self.asked, verbose=0),
                    model.predict(self.asked, verbose=0),
                )
                model.tables[0].erase([3])
                self._fit(model, callbacks=[snapshot])
                follower.update()
        folder = serving.export(served, self.path("served"))
        self._assert_serves(folder, model, 1e-6)


if __name__ == "__main__":
    tf.test.main()
