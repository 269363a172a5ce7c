# SPDX-License-Identifier: Apache-2.0
"""Exports of snapshots serve what exports of the tables do."""

import pathlib
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from models import small_models as small
from models.model_building import id_column

import tf_ext
from tf_ext import serving
from tf_ext._keras import keras
from tf_ext.initializers import Constant
from tf_ext.snapshot import DamagedSnapshotError, reshard

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ExportSnapshotsTest::test_damage_leaves_no_version",
        "ExportSnapshotsTest::test_serves_what_the_table_*",
        "ExportSnapshotsTest::test_what_does_not_belong_together[245]",
    ),
]

_FEATURES = {
    # Erased, changed by a delta, never trained.
    "user": np.array([0, 1, 2, 3, 10**9]),
    "items": np.array([[-i, i] for i in range(5)]),
}


class ExportSnapshotsTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory(prefix="tf_ext_export_")
        cls.path = pathlib.Path(cls.enterClassContext(folder))
        rng = np.random.default_rng(4)
        # Slots that must not be read.
        cls.model = small.functional(small.table("adam"))
        [table] = cls.model.tables
        table.import_rows(np.arange(-8, 40), {"weights": _weights(rng, 48)})
        table.save(cls.path / "full", incremental=True, step=1)
        table.erase([0])
        table.import_rows([1, 99], {"weights": _weights(rng, 2)})
        table.save(cls.path / "delta", base=cls.path / "full", step=2)
        small.table("adam", name="wide").save(cls.path / "wide")
        reshard(cls.path / "delta", cls.path / "three", 3)
        cls.expected = cls.model(_tensors(), training=False).numpy()

    def _empty(self, **options):
        """The model in a process that holds no rows."""
        model = small.functional(small.table("adagrad", **options))
        for variable, value in zip(model.weights, self.model.get_weights()):
            if variable.shape != (1, 4):
                variable.assign(value)
        return model

    @parameterized.parameters("delta", "three")
    def test_serves_what_the_table_would(self, snapshot):
        model = self._empty()
        folder = serving.export_snapshots(
            model,
            {"deep": self.path / snapshot},
            self.path / f"served_{snapshot}",
            warmup=_FEATURES,
        )
        self.assertEqual(model.tables[0].size(), 0)
        served = _served(folder, _tensors())
        np.testing.assert_allclose(served, self.expected, rtol=0, atol=1e-6)
        [table] = serving.read_manifest(folder)["tables"]
        self.assertEqual(table["rows"], 48)
        opened = tf_ext.snapshot.open_snapshot(self.path / snapshot)
        self.assertEqual(table["snapshot"], opened.manifest.id)
        [(_, answers)] = serving.read_warmup(folder)
        [answer] = answers.values()
        np.testing.assert_allclose(answer, self.expected, rtol=0, atol=1e-6)

    def test_answers_are_of_the_rows_and_not_of_their_type(self):
        folder = serving.export_snapshots(
            self._empty(),
            {"deep": self.path / "delta"},
            self.path / "int8",
            dtype="int8",
            warmup=_FEATURES,
        )
        [(_, answers)] = serving.read_warmup(folder)
        [answer] = answers.values()
        np.testing.assert_allclose(answer, self.expected, rtol=0, atol=1e-6)
        served = _served(folder, _tensors())
        self.assertGreater(np.abs(served - self.expected).max(), 1e-6)
        np.testing.assert_allclose(served, self.expected, rtol=0, atol=0.05)

    @parameterized.parameters(
        ({}, {}, r"once: \['deep'\]. Received: \[\]"),
        ({}, {"deep": "delta", "wide": "full"}, r"Received: \['deep', 'wide'"),
        ({"seed": 4}, {"deep": "full"}, "its `seed` is '3', .*'zeros'"),
        ({"initializer": "zeros"}, {"deep": "full"}, "its `initializer`"),
        ({}, {"deep": "wide"}, "its `name` is 'wide', .* 'deep'"),
        ({"dim": 5}, {"deep": "full"}, "its `dim` is '4', .* '5'"),
    )
    def test_what_does_not_belong_together(self, options, snapshots, pattern):
        settings = {"dim": 4, "initializer": "normal", "seed": 3, **options}
        table = tf_ext.SparseTable("deep", **settings)
        model = small.functional(table)
        with self.assertRaisesRegex(ValueError, pattern):
            serving.export_snapshots(
                model,
                {name: self.path / path for name, path in snapshots.items()},
                self.path / "refused",
            )
        if "dim" in options:  # Whatever absent ids read.
            with self.assertRaisesRegex(ValueError, pattern):
                serving.export_snapshots(
                    model,
                    {"deep": self.path / "full"},
                    self.path / "refused",
                    unknown="zeros",
                )
        with self.assertRaisesRegex(ValueError, "`signature` must be a struct"):
            serving.export_snapshots(
                self._empty(),
                {"deep": self.path / "full"},
                self.path / "refused",
                signature={"user": 3},
            )
        self.assertFalse((self.path / "refused").exists())

    def test_other_initial_rows_where_absent_ids_read_zeros(self):
        table = tf_ext.SparseTable("deep", 4, "sgd", "uniform", seed=9)
        model = small.functional(table)
        absent = {k: tf.constant(v + 10**12) for k, v in _FEATURES.items()}
        read = []
        folder = serving.export_snapshots(
            model,
            {"deep": self.path / "full"},
            self.path / "zeros",
            unknown="zeros",
            version=6,
            warmup=absent,
            progress=read.append,
        )
        self.assertEqual(folder, str(self.path / "zeros" / "6"))
        self.assertEqual(sum(read), 48 * (8 + 4 * 4))
        signs = np.concatenate([v.numpy().ravel() for v in absent.values()])
        zeros = np.zeros((len(signs), 4), np.float32)
        table.import_rows(signs, {"weights": zeros})
        wanted = model(absent, training=False)
        served = _served(folder, absent)
        np.testing.assert_allclose(served, wanted, rtol=0, atol=1e-6)
        [(_, answers)] = serving.read_warmup(folder)
        [answer] = answers.values()
        np.testing.assert_allclose(answer, wanted, rtol=0, atol=1e-6)

    def test_all_rows_were_erased(self):
        table = tf_ext.SparseTable("all", 1, "sgd", Constant(0.5))
        table.pull([1, 2], training=True)
        table.save(self.path / "both", incremental=True)
        table.erase([1, 2])
        table.save(self.path / "none_left", base=self.path / "both")
        inputs = {"user": keras.Input((), dtype="int64", name="user")}
        layer = tf_ext.layers.EmbeddingFeatures([id_column("user")], table)
        folder = serving.export_snapshots(
            tf_ext.Model(inputs, layer(inputs)),
            {"all": self.path / "none_left"},
            self.path / "erased",
        )
        served = _served(folder, {"user": tf.constant([1, 7], tf.int64)})
        np.testing.assert_array_equal(served, [[0.5], [0.5]])

    def test_damage_leaves_no_version(self):
        damaged = self.path / "damaged"
        self.model.tables[0].save(damaged)
        [rows] = damaged.glob("*.chunks")
        data = bytearray(rows.read_bytes())
        data[-9] ^= 1
        rows.write_bytes(data)
        served = self.path / "of_damaged"
        with self.assertRaisesRegex(DamagedSnapshotError, rows.name):
            serving.export_snapshots(self._empty(), {"deep": damaged}, served)
        self.assertFalse(served.exists())
        with self.assertRaises(FileNotFoundError):
            serving.export_snapshots(
                self._empty(), {"deep": self.path / "none"}, served
            )


def _served(folder, batch):
    signature = tf.saved_model.load(folder).signatures["serving_default"]
    [outputs] = signature(**batch).values()
    return outputs.numpy()


def _weights(rng, count):
    return rng.normal(0, 0.5, (count, 4)).astype(np.float32)


def _tensors():
    return {key: tf.constant(value) for key, value in _FEATURES.items()}


if __name__ == "__main__":
    absltest.main()
