# SPDX-License-Identifier: Apache-2.0
"""Models with small rows serve as they were trained, in every way."""

import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from models.small_rows import stored_bytes
from pyarrow import parquet
from saving_util import TestCase

import tf_ext
from tf_ext import hashing, serving

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "SmallRowsServingTest::test_exports_of_stock_ops1",
        "SmallRowsServingTest::test_split_exports0",
    ),
]

_DTYPES = (("float16", "bfloat16"), ("bfloat16", "float32"))


def _build(dtypes, **kwargs):
    dtype, slot_dtype = dtypes
    table = small.table(
        "adam",
        dtype=dtype,
        slot_dtype=slot_dtype,
        **kwargs,
    )
    return small.compiled(small.functional(table))


class SmallRowsServingTest(TestCase):
    def _trained(self, dtypes, **kwargs):
        model = _build(dtypes, **kwargs)
        self.features, labels = small.batch(np.random.default_rng(1))
        self.labelled = (self.features, labels)
        model.fit(*self.labelled, epochs=2, verbose=0)
        # Ids without a row, too: their initial weights are rounded.
        self.asked = {
            key: np.concatenate([ids, ids + 99])
            for key, ids in self.features.items()
        }
        return model

    def _assert_serves(self, folder, model, **tolerance):
        loaded = tf.saved_model.load(folder)
        served = loaded.signatures["serving_default"]
        found = served(**{k: tf.constant(v) for k, v in self.asked.items()})
        [values] = found.values()
        expected = model.predict(self.asked, verbose=0)
        self.assertAllClose(values, expected, rtol=1e-6, atol=1e-6, **tolerance)

    @parameterized.parameters(*_DTYPES)
    def test_exports_of_stock_ops(self, *dtypes):
        model = self._trained(dtypes)
        path, sizes = self.path("served"), {}
        # Both hold the rows exactly.
        for dtype in ("float32", dtypes[0]):
            folder = serving.export(model, path, dtype=dtype)
            self._assert_serves(folder, model)
            [about] = serving.read_manifest(folder)["tables"]
            sizes[dtype] = about["bytes"]
        rows = model.tables[0].size()
        self.assertEqual(sizes, {"float32": rows * 24, dtypes[0]: rows * 16})

    @parameterized.parameters(*_DTYPES)
    def test_exports_of_snapshots(self, *dtypes):
        model = self._trained(dtypes)
        [table] = model.tables
        base, delta = self.path("0"), self.path("1")
        table.save(base, incremental=True)
        model.fit(*self.labelled, epochs=1, verbose=0)
        table.save(delta, base=base)
        folder = serving.export_snapshots(
            model, {table.name: delta}, self.path("served")
        )
        self._assert_serves(folder, model)
        other = _build(("float32", "float32"))
        with self.assertRaisesRegex(
            ValueError, f"its `dtype` is '{dtypes[0]}', that of the table is"
        ):
            serving.export_snapshots(
                other, {table.name: delta}, self.path("other")
            )

    @parameterized.parameters(*_DTYPES)
    def test_split_exports(self, *dtypes):
        model = self._trained(dtypes)
        [table] = model.tables
        snapshot = self.path("rows")
        table.save(snapshot)
        signs, fields = table.export_rows()
        expected = dict(zip(signs.tolist(), fields["weights"].tolist()))
        for snapshots in (None, {table.name: snapshot}):
            version = serving.export_split(
                model, self.path("split"), snapshots=snapshots
            )
            file = pathlib.Path(version, f"{table.name}.parquet")
            read = parquet.read_table(file)
            self.assertEqual(str(read["vector"].type.value_type), "float")
            self.assertEqual(
                dict(zip(read["sign"].to_pylist(), read["vector"].to_pylist())),
                expected,
            )
            config = read.schema.metadata[b"tf_ext.config"].decode()
            absent = np.arange(5000, 5100)
            self.assertAllEqual(
                hashing.initial_rows(config, absent), table.pull(absent)
            )

    @parameterized.parameters(*_DTYPES)
    def test_follows_deltas(self, *dtypes):
        model = self._trained(dtypes)
        points = self.path("points")
        snapshot = tf_ext.callbacks.TableSnapshot(points, incremental=True)
        model.fit(*self.labelled, callbacks=[snapshot], verbose=0)
        with serving.weights_only():
            served = _build(dtypes)
        self.assertEqual(served.tables[0].stats()["row_bytes"], 16)
        with serving.follow(served, points, every=None) as follower:
            for _ in range(2):
                self.assertAllEqual(
                    served.predict(self.asked, verbose=0),
                    model.predict(self.asked, verbose=0),
                )
                model.tables[0].erase([3])
                model.fit(*self.labelled, callbacks=[snapshot], verbose=0)
                follower.update()
        self.assertEqual(
            {
                sign: row["weights"]
                for sign, row in stored_bytes(served.tables[0]).items()
            },
            {
                sign: row["weights"]
                for sign, row in stored_bytes(model.tables[0]).items()
            },
        )

    def test_recovery_points_hold_small_rows(self):
        model = self._trained(_DTYPES[0])
        points = self.path("points")
        snapshot = tf_ext.callbacks.TableSnapshot(points)
        model.fit(*self.labelled, callbacks=[snapshot], verbose=0)
        again = _build(_DTYPES[0])
        again.fit(
            *self.labelled,
            initial_epoch=1,
            callbacks=[tf_ext.callbacks.TableSnapshot(points)],
            verbose=0,
        )
        self.assertEqual(
            stored_bytes(again.tables[0]), stored_bytes(model.tables[0])
        )

    def test_statistics_that_layers_read_are_beside_small_weights(self):
        ids = small.inputs()
        table = small.table(
            "adam",
            statistics=["show", "click"],
            dtype="bfloat16",
            slot_dtype="bfloat16",
        )
        layer = tf_ext.layers.EmbeddingFeatures(
            small.columns(), table, cvm=True
        )
        model = small.compiled(tf_ext.Model(ids, small.head()(layer(ids))))
        self.features, labels = small.batch(np.random.default_rng(1))
        self.asked = self.features
        model.fit(self.features, labels, verbose=0)
        folder = serving.export(model, self.path("served"), dtype="bfloat16")
        self._assert_serves(folder, model)

    def test_keras_export_with_the_ops_of_tf_ext(self):
        model = self._trained(_DTYPES[0])
        path = self.path("exported")
        model.export(path) if hasattr(model, "export") else model.save(path)
        served = tf.saved_model.load(path)
        found = served.serve({k: tf.constant(v) for k, v in self.asked.items()})
        self.assertAllClose(
            found, model.predict(self.asked, verbose=0), rtol=1e-6, atol=1e-6
        )
        data = os.path.join(path, "variables", "variables.data-00000-of-00001")
        reader = tf.train.load_checkpoint(
            os.path.join(path, "variables/variables")
        )
        types = reader.get_variable_to_dtype_map().values()
        self.assertIn(tf.float16, types)
        self.assertTrue(os.path.exists(data))


if __name__ == "__main__":
    tf.test.main()
