# SPDX-License-Identifier: Apache-2.0
"""Models that read the statistics of ids serve as they were trained."""

import os

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models import small_models as small
from oracles.snapshot_forging import MANIFEST, seal
from saving_util import FORMATS, TestCase, contents

import tf_ext
from tf_ext import serving
from tf_ext._keras import keras
from tf_ext.snapshot import DamagedSnapshotError

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "CvmServingTest::test_follows_deltas",
        "CvmServingTest::test_loads_a_saved_model_inside_of_it",
        "CvmServingTest::test_takes_statistics_from_*",
        "CvmServingTest::test_weights_alone_have_statistics_of_0",
    ),
]

_NAMES = ["show", "click"]
_FIELDS = ["weights", *_NAMES]


def _build(cvm=True):
    """A model that reads statistics of one of two tables that count."""
    ids = small.inputs()
    first = small.table("adam", statistics=_NAMES)
    second = small.table("adam", name="plain", statistics=_NAMES)
    parts = [
        tf_ext.layers.EmbeddingFeatures(small.columns(), table, cvm=read)(ids)
        for table, read in ((first, cvm), (second, False))
    ]
    joined = keras.layers.Concatenate()(parts)
    return small.compiled(tf_ext.Model(ids, small.head()(joined)))


def _served():
    with serving.weights_only():
        return _build()


def _bytes_of_rows(model):
    return [table.stats()["row_bytes"] for table in model.tables]


class CvmServingTest(TestCase):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(1)
        self.features, self.labels = small.batch(rng)
        self.model = _build()
        self._train()

    def _train(self):
        """Two epochs, after which ids have clicks."""
        self.model.fit(self.features, self.labels, epochs=2, verbose=0)
        for table in self.model.tables:
            signs, fields = table.export_rows()
            clicks = fields["show"] * (signs % 3 == 0)[:, np.newaxis] / 4
            table.import_rows(signs, {"click": clicks})

    def _assert_serves(self, served):
        # Ids without a row, too.
        features = {
            key: np.concatenate([ids, ids + 99])
            for key, ids in self.features.items()
        }
        found = served.predict(features, verbose=0)
        self.assertAllEqual(found, self.model.predict(features, verbose=0))
        self.assertEqual(_bytes_of_rows(served), [8 + 16 + 8, 8 + 16])
        mine, theirs = served.tables[0], self.model.tables[0]
        fields = contents(theirs)
        self.assertEqual(contents(mine), {k: fields[k] for k in _FIELDS})
        self.assertGreater(max(fields["click"].values()), [1])

    @parameterized.named_parameters(*FORMATS)
    def test_takes_statistics_from(self, name):
        write, read = self.format(name)
        write(self.model)
        served = _served()
        read(served)
        self._assert_serves(served)

    def test_loads_a_saved_model_inside_of_it(self):
        path = self.path("model.keras")
        self.model.save(path)
        with serving.weights_only():
            self._assert_serves(keras.models.load_model(path))
        loaded = keras.models.load_model(path)
        self.assertEqual(
            contents(loaded.tables[0]), contents(self.model.tables[0])
        )
        self.assertAllEqual(
            loaded.predict(self.features, verbose=0),
            self.model.predict(self.features, verbose=0),
        )

    def test_follows_deltas(self):
        points = self.path("points")
        snapshot = tf_ext.callbacks.TableSnapshot(points, incremental=True)
        labelled = (self.features, self.labels)
        self.model.fit(*labelled, epochs=1, callbacks=[snapshot], verbose=0)
        served = _served()
        with serving.follow(served, points, every=None) as follower:
            self._assert_serves(served)
            self.model.tables[0].decay_statistics(0.5)
            self.model.tables[0].erase([3])
            self.model.fit(
                *labelled,
                epochs=2,
                initial_epoch=1,
                callbacks=[snapshot],
                verbose=0,
            )
            self.assertTrue(follower.update())
            self._assert_serves(served)
            kinds = [
                tf_ext.snapshot.open_snapshot(
                    os.path.join(points, name, "table-000")
                ).manifest.kind
                for name in sorted(os.listdir(points))
            ]
        self.assertEqual(kinds, ["full", "delta"])

    @pytest.mark.slow
    def test_exports_of_the_model_and_of_its_snapshots(self):
        features = {k: tf.constant(v) for k, v in self.features.items()}
        expected = self.model(features, training=False).numpy()
        first, second = self.model.tables
        snapshots = {name: self.path(name) for name in ("deep", "plain")}
        full = self.path("full")
        first.save(full, incremental=True)
        first.decay_statistics(0.25)
        changed = self.model(features, training=False).numpy()
        self.assertGreater(np.abs(changed - expected).max(), 1e-3)
        first.save(snapshots["deep"], base=full)
        second.save(snapshots["plain"])
        empty = _build()
        for one, other in zip(empty.weights, self.model.weights):
            if one.shape != (1, 4):
                one.assign(other)
        of_snapshots = serving.export_snapshots(
            empty, snapshots, self.path("of_snapshots"), warmup=self.features
        )
        folders = [of_snapshots]
        for dtype in ("float32", "bfloat16", "int8"):
            folders.append(
                serving.export(self.model, self.path(dtype), dtype=dtype)
            )
        for folder in folders:
            dtype = serving.read_manifest(folder)["dtype"]
            loaded = tf.saved_model.load(folder)
            served = loaded.serve(features)
            atol = 1e-6 if dtype == "float32" else 1e-2
            self.assertAllClose(served, changed, rtol=0, atol=atol)
            about = serving.read_manifest(folder)["tables"]
            self.assertEqual(about[0]["statistics"], _NAMES)
            self.assertNotIn("statistics", about[1])
            sizes = [one["bytes"] // one["rows"] for one in about]
            self.assertEqual(sizes[0], sizes[1] + 8)
        [(_, answers)] = serving.read_warmup(of_snapshots)
        [answer] = answers.values()
        self.assertAllClose(answer, changed, rtol=0, atol=1e-6)

    def test_weights_alone_have_statistics_of_0(self):
        first = self.model.tables[0]
        paths = [self.path("full"), self.path("delta")]
        first.save(paths[0], incremental=True)
        first.decay_statistics(0.5)
        first.save(paths[1], base=paths[0])
        for model in (_build(), _served()):
            table = model.tables[0]
            table.load(paths[0], weights_only=True)
            _, fields = table.export_rows()
            self.assertGreater(len(fields["show"]), 20)
            self.assertAllEqual(fields["show"], np.zeros_like(fields["show"]))
            self.assertAllEqual(fields["click"], np.zeros_like(fields["show"]))
            # A delta has no row that did not change.
            with self.assertRaisesRegex(ValueError, "does not hold the rows"):
                table.apply_delta(paths[1])
            table.load(paths[0])
            table.apply_delta(paths[1])
            self.assertEqual(contents(table)["show"], contents(first)["show"])

    @pytest.mark.slow
    def test_a_layer_that_is_added_later(self):
        second = self.model.tables[1]
        folder = self.path("before")
        serving.export(self.model, folder)
        self.assertEqual(second.rows.served.names, ["weights"])
        layer = tf_ext.layers.EmbeddingFeatures(
            small.columns(), second, cvm=True
        )
        ids = small.inputs()
        model = tf_ext.Model(ids, layer(ids))
        folder = serving.export(model, self.path("after"))
        features = {k: tf.constant(v) for k, v in self.features.items()}
        loaded = tf.saved_model.load(folder)
        self.assertAllClose(
            loaded.serve(features), model(features), rtol=0, atol=1e-5
        )

    def test_cannot_be_split(self):
        with self.assertRaisesRegex(
            ValueError, "cvm=True, and cannot be split .*serving.export"
        ):
            serving.export_split(self.model, self.path("split"))

    def test_rows_are_there_before_the_layer(self):
        with serving.weights_only():
            table = small.table(statistics=_NAMES)
        table.import_rows([1], {"weights": tf.ones([1, 4])})
        with self.assertRaisesRegex(
            ValueError, "'deep' holds rows without the statistics"
        ):
            tf_ext.layers.EmbeddingFeatures(small.columns(), table, cvm=True)

    def test_snapshots_without_statistics(self):
        plain = small.table("adam")
        plain.pull([1, 2], training=True)
        path = self.path("plain")
        plain.save(path)
        with self.assertRaisesRegex(ValueError, "its `statistics` is 'show,cl"):
            _served().tables[0].load(path)

    def test_forged_snapshots(self):
        path, plain = self.path("forged"), self.path("plain")
        self.model.tables[0].save(path)
        self.model.tables[1].save(plain)
        with open(os.path.join(path, MANIFEST), "rb") as file:
            text = file.read()
        for name, other in ((b'"show"', b'"m_"'), (b'"click"', b'"last_seen"')):
            forged = text[: text.rindex(b",\n")].replace(
                b'"name": ' + name, b'"name": ' + other
            )
            with open(os.path.join(path, MANIFEST), "wb") as file:
                file.write(seal(forged))
            model = _served()
            with self.assertRaisesRegex(DamagedSnapshotError, "row.fields"):
                model.tables[0].load(path)
            self.assertEqual(model.tables[0].size(), 0)
            with self.assertRaisesRegex(DamagedSnapshotError, "row.fields"):
                serving.export_snapshots(
                    self.model,
                    {"deep": path, "plain": plain},
                    self.path("served"),
                )


if __name__ == "__main__":
    tf.test.main()
