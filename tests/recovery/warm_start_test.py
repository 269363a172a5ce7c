# SPDX-License-Identifier: Apache-2.0
"""Models that begin with what another one has learned."""

import functools
import json
import logging
import os
import shutil
import tempfile
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from models import small_models as small
from saving_util import TestCase, contents

import tf_ext
from tf_ext._keras import keras
from tf_ext.callbacks import TableSnapshot, warm_start
from tf_ext.recovery import files as point_files
from tf_ext.recovery.warm_start import Parts, WarmStart
from tf_ext.regimes.processes import Processes
from tf_ext.snapshot import DamagedSnapshotError
from tf_ext.snapshot.sealed_json import seal
from tf_ext.tables import row_counters

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "ReportTest::*",
        "WarmStartTest::test_a_model_alike_takes_all",
        "WarmStartTest::test_a_snapshot_of_another_point",
        "WarmStartTest::test_models_that_cannot",
        "WarmStartTest::test_more_tables_and_fewer",
        "WarmStartTest::test_processes_take_what_the_first_has_found",
        "WarmStartTest::test_snapshots_of_tables",
        "WarmStartTest::test_rows_that_move_while_they_are_absent1",
        "WarmStartTest::test_tables_of_another_shape_dim",
        "WarmStartTest::test_weights_that_ftrl_will_lose",
        "WarmStartTest::test_wrong_arguments",
    ),
]

_IDS = 30
_RULES = small.RULES | {
    "dense_adam": functools.partial(
        tf_ext.optimizers.SparseAdam, absent="decay"
    )
}


def _model(*names, dim=4, rule="adagrad", hidden=3, **kwargs):
    """A compiled model with a table for each name, whose layers have names."""
    inputs = {
        name: keras.Input((), dtype=small.DTYPE, name=name) for name in names
    }
    tables = {
        tf_ext.SparseTable(
            name, dim, _RULES[rule](0.1), "normal", seed=3, **kwargs
        ): [tf_ext.feature_column.category_column(name)]
        for name in names
    }
    found = tf_ext.layers.EmbeddingFeatures(tables, name="embed")(inputs)
    rows = keras.layers.Concatenate(name="rows")(
        [found[name] for name in names] * 2
    )
    units = keras.layers.Dense(hidden, "tanh", name="first")(rows)
    last = keras.layers.Dense(1, "sigmoid", name="last")(units)
    return small.compiled(tf_ext.Model(inputs, last))


def _data(*names):
    rng = np.random.default_rng(1)
    features = {name: rng.integers(0, _IDS, 64) for name in names}
    return features, rng.integers(0, 2, [64, 1]).astype(np.float32)


def _fit(model, *callbacks, epochs=1):
    names = [table.name for table in model.tables]
    features, labels = _data(*names)
    return model.fit(
        features,
        labels,
        batch_size=16,
        shuffle=False,
        verbose=0,
        epochs=epochs,
        callbacks=list(callbacks),
    )


def _rows(table):
    """`{field: {sign: values}}`, but for how far rows have been shrunk."""
    signs, fields = table.export_rows()
    return {
        name: dict(zip(signs.tolist(), values.tolist(), strict=True))
        for name, values in fields.items()
    }


def _tables(model):
    return {table.name: contents(table) for table in model.tables}


def _weights(model):
    # In tf_keras, names of variables end with their output.
    return {
        getattr(v, "path", v.name).split(":")[0]: v.numpy().tolist()
        for layer in ("first", "last")
        for v in model.get_layer(layer).variables
    }


def _paths(names):
    return [name.split(":")[0] for name in names]


class ReportTest(absltest.TestCase):
    """What a `WarmStart` says of itself."""

    def report(self, rows, changes):
        return str(
            WarmStart(
                "/point",
                Parts(tuple(rows), ("new",), ()),
                Parts((), ("out/bias",), ("old/bias",)),
                rows,
                changes,
            )
        )

    def test_rows_and_changes(self):
        self.assertEqual(
            self.report({"a": 1234, "b": 5}, {"a": ["x=1", "y=2"], "b": []}),
            "Tables taken: 'a', 'b'; initial: 'new'; left out: none "
            "('a' 1,234 rows, 'b' 5 rows). "
            "Variables taken: none; initial: 'out/bias'; left out: 'old/bias'. "
            "Table 'a' has x=1, y=2.",
        )

    def test_nothing_changed(self):
        report = self.report({"a": 1}, {"a": []})
        self.assertTrue(report.endswith("left out: 'old/bias'."), report)

    def test_no_table_takes_rows(self):
        self.assertIn("left out: none (no rows). ", self.report({}, {}))

    def test_of_many_names_some_are_listed(self):
        names = [f"t{index}" for index in range(12)]
        report = self.report(dict.fromkeys(names, 1), {})
        self.assertIn("'t8', 't9' and 2 more; initial", report)
        report = self.report(dict.fromkeys(names[:10], 1), {})
        self.assertIn("'t8', 't9'; initial", report)


class WarmStartTest(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        directory = tempfile.TemporaryDirectory(prefix="tf_ext_warm_start_")
        cls.addClassCleanup(directory.cleanup)
        cls.root = directory.name
        old = _model("a", "b")
        _fit(old, TableSnapshot(cls.root))
        cls.tables, cls.weights = _tables(old), _weights(old)
        cls.point = tf_ext.callbacks.latest_point(cls.root)

    def _copied(self):
        """A copy of the points, which may be changed, and its point."""
        root = os.path.join(self.directory(), "points")
        shutil.copytree(self.root, root)
        return root, tf_ext.callbacks.latest_point(root)

    def test_a_model_alike_takes_all(self):
        for source in (self.root, self.point):
            model = _model("a", "b")
            found = warm_start(model, source)
            self.assertEqual(found.path, self.point)
            self.assertEqual(found.tables, (("a", "b"), (), ()))
            self.assertLen(found.variables.taken, 4)
            self.assertEqual(found.variables[1:], ((), ()))
            self.assertEqual(found.changes, {"a": [], "b": []})
            self.assertEqual(_tables(model), self.tables)
            self.assertEqual(_weights(model), self.weights)
            self.assertEqual(int(model.optimizer.iterations), 0)

    def test_more_tables_and_fewer(self):
        model = _model("b", "c")
        before = _weights(model)
        with self.assertRaisesRegex(
            ValueError,
            r"has the tables 'c', which are not in .*: it has 'a', 'b'\. .*"
            "pass missing='initial'",
        ):
            warm_start(model, self.root)
        self.assertEqual(_tables(model)["b"], _tables(_model("b"))["b"])
        with self.assertLogs("tf_ext", logging.WARNING) as logs:
            found = warm_start(model, self.root, missing="initial")
        self.assertEqual(found.tables, (("b",), ("c",), ("a",)))
        self.assertEqual(found.rows, {"b": len(self.tables["b"]["weights"])})
        self.assertIn("taken: 'b'; initial: 'c'; left out: 'a'", str(logs))
        self.assertEqual(_tables(model)["b"], self.tables["b"])
        self.assertEqual(model.tables[1].size(), 0)
        # The model has the shapes of the old one, and so all of its weights.
        self.assertEqual(_weights(model), self.weights)
        self.assertNotEqual(before, self.weights)
        self.assertEqual(warm_start(_model("b"), self.root).tables[2], ("a",))

    def test_layers_of_another_shape(self):
        model = _model("a", "b", "c")
        before = _weights(model)
        found = warm_start(model, self.root, missing="initial")
        self.assertEqual(_paths(found.variables.made), ["first/kernel"])
        self.assertEqual(_paths(found.variables.left), ["first/kernel"])
        self.assertSameElements(
            _paths(found.variables.taken),
            ["first/bias", "last/kernel", "last/bias"],
        )
        wanted = self.weights | {"first/kernel": before["first/kernel"]}
        self.assertEqual(_weights(model), wanted)

    @parameterized.named_parameters(
        ("dim", {"dim": 6}, ["dim=6 instead of 4"]),
        ("types", {"dtype": "float16"}, ["dtype=float16 instead of float32"]),
        (
            "rule",
            {"rule": "adam"},
            [
                "optimizer=adam instead of adagrad",
                "optimizer.bias_correction=row instead of none",
                "optimizer.initial_accumulator_value=none instead of 0.1",
                *("new m", "new v", "new step"),
            ],
        ),
        ("statistics", {"statistics": ["show"]}, None),
        ("l2", {"l2": 0.1}, ["l2=0.1 instead of none"]),
    )
    def test_tables_of_another_shape(self, changes, said):
        model = _model("a", "b", **changes)
        fresh = _model("a", "b", **changes)
        signs = np.array(list(self.tables["a"]["weights"]))
        fresh.tables[0].pull(signs, training=True)
        wanted = _rows(fresh.tables[0])
        found = warm_start(model, self.root)
        if said is not None:
            self.assertSameElements(found.changes["a"], said)
        self.assertEqual(found.rows["a"], len(signs))
        for name, rows in _rows(model.tables[0]).items():
            for sign, row in rows.items():
                old = self.tables["a"].get(name, {}).get(sign, [])
                if "dtype" in changes and name == "weights":
                    old = np.float16(old).tolist()
                self.assertEqual(row[: len(old)], old)
                rest = wanted[name][sign][len(old) :]
                self.assertEqual(row[len(old) :], rest)

    def test_weights_that_ftrl_will_lose(self):
        with self.assertLogs("tf_ext", "WARNING") as log:
            warm_start(_model("a", "b", rule="ftrl"), self.root)
        lost = [one for one in log.output if "'linear'" in one]
        self.assertLen(lost, 2)
        self.assertRegex(lost[0], "Table 'a' gets weights without")

    def test_snapshots_of_tables(self):
        model = _model("b")
        path = os.path.join(self.point, "table-000")
        with self.assertLogs("tf_ext", logging.WARNING) as logs:
            found = warm_start(model, {"b": path})
        self.assertIn("Warm start from snapshots: ", logs.output[-1])
        self.assertEqual((found.path, found.tables[0]), ("", ("b",)))
        self.assertEqual(_tables(model)["b"], self.tables["a"])
        self.assertEqual(found.variables.taken, ())

    def test_processes_take_what_the_first_has_found(self):
        def from_first(_, value, encode=None, decode=None):
            if encode is None:
                return value
            return decode(json.loads(json.dumps(encode(value))))

        path = os.path.join(self.point, "table-001")
        with mock.patch.object(Processes, "from_first", from_first):
            for source in (self.root, {"b": path}):
                model = _model("b")
                found = warm_start(model, source)
                self.assertEqual(found.tables[0], ("b",))
                self.assertEqual(_tables(model)["b"], self.tables["b"])

    def test_rows_that_there_are(self):
        for dim in (4, 5):
            model = _model("a", "b", dim=dim)
            model.tables[0].pull([12345], training=True)
            warm_start(model, self.root)
            signs = contents(model.tables[0])["weights"]
            self.assertSameElements(signs, self.tables["a"]["weights"])

    def test_counters_wait_on(self):
        policy = {"admission": tf_ext.admission.Count(200)}
        root = self.directory()
        _fit(_model("a", **policy), TableSnapshot(root))
        for dim in (4, 5):
            model = _model("a", dim=dim, **policy)
            warm_start(model, root)
            again = _model("a", dim=dim, **policy)
            for one, wait in (
                (model.tables[0], True),
                (again.tables[0], False),
            ):
                counters = row_counters.chunks(one.rows, 0)
                found = sum(len(signs) for signs, _ in counters)
                self.assertEqual(found > 0, wait)

    def test_times_of_another_unit_are_not_taken(self):
        root = self.directory()
        steps = tf_ext.eviction.Unseen(steps=9)
        _fit(_model("a", eviction=steps), TableSnapshot(root))
        for policy, taken in (
            (steps, True),
            (tf_ext.eviction.Unseen(seconds=9), False),
        ):
            model = _model("a", dim=5, eviction=policy)
            found = warm_start(model, root)
            self.assertEqual("new last_seen" in found.changes["a"], not taken)
            times = _rows(model.tables[0])["last_seen"].values()
            self.assertEqual(max(times) > [0], taken)

    def test_the_learning_rate_is_that_of_the_program(self):
        root = self.directory()
        old = _model("a")
        old.tables[0].optimizer.learning_rate = 0.01
        _fit(old, TableSnapshot(root))
        for dim in (4, 5):
            model = _model("a", dim=dim)
            warm_start(model, root)
            self.assertEqual(model.tables[0].optimizer.learning_rate, 0.1)

    @parameterized.parameters("adagrad", "dense_adam")
    def test_rows_that_move_while_they_are_absent(self, rule):
        root = self.directory()
        old = _model("a", l2=0.5, rule=rule)
        _fit(old, TableSnapshot(root))
        [of_old] = old.tables
        signs = list(_rows(of_old)["weights"])
        warm = []
        for dim in (4, 5):
            model = _model("a", dim=dim, l2=0.5, rule=rule)
            _fit(model, epochs=3)
            warm_start(model, root)
            warm += model.tables
            self.assertAllEqual(warm[-1].pull(signs)[:, :4], of_old.pull(signs))
        before = of_old.pull(signs)
        for table in (of_old, *warm):
            # They also have the step of their bias correction.
            for step in range(9, 12):
                ones = np.ones([2, table.dim])
                table.push([777, signs[0]], ones, step=step)
        moved = of_old.pull(signs)
        self.assertNotAllClose(moved, before)
        for table in warm:
            self.assertAllClose(table.pull(signs)[:, :4], moved, 1e-5, 1e-7)

    @parameterized.parameters(4, 5)
    def test_columns_that_will_not_find_their_rows(self, dim):
        table = tf_ext.SparseTable(
            "a", dim, small.RULES["adagrad"](0.1), "normal", seed=3
        )
        column = tf_ext.feature_column.category_column("a", bucket_size=3)
        ids = {"a": keras.Input((), dtype=small.DTYPE, name="a")}
        rows = tf_ext.layers.EmbeddingFeatures([column], table)(ids)
        model = tf_ext.Model(ids, rows)
        with self.assertLogs("tf_ext", logging.WARNING) as logs:
            warm_start(model, self.root)
        self.assertIn("column", str(logs.output[:-1]))

    def test_a_snapshot_of_another_point(self):
        root, point = self._copied()
        _model("a").tables[0].save(point_files.table_path(point, 0))
        model = _model("a", "b")
        with self.assertRaisesRegex(DamagedSnapshotError, "must be the snapsh"):
            warm_start(model, root)
        self.assertEqual([int(t.size()) for t in model.tables], [0, 0])

    def test_models_that_cannot(self):
        unbuilt = small.compiled(small.Subclassed(small.table()))
        with self.assertRaisesRegex(ValueError, "is not built"):
            warm_start(unbuilt, self.root)
        ids = small.inputs()
        rows = [
            tf_ext.layers.EmbeddingFeatures(
                small.columns(), small.table(name="a")
            )(ids)
            for _ in range(2)
        ]
        model = tf_ext.Model(ids, keras.layers.Concatenate()(rows))
        with self.assertRaisesRegex(ValueError, "has several tables 'a'"):
            warm_start(model, self.root)

    def test_points_of_earlier_versions(self):
        root, point = self._copied()
        file = os.path.join(point, "point.json")
        with open(file) as opened:
            members = json.load(opened)
        del members["crc32c"]
        for each in members["variables"]:
            each.pop("path", None)
        with open(file, "wb") as opened:
            opened.write(seal(members))
        model = _model("a", "b")
        self.assertLen(warm_start(model, root).variables.taken, 4)
        self.assertEqual(_weights(model), self.weights)
        model = _model("a", "b", dim=5)
        found = warm_start(model, root)
        self.assertEqual(found.variables.taken, ())
        self.assertLen(found.variables.left, 4)

    def test_wrong_arguments(self):
        model = _model("a", "b")
        for source, missing, error, message in (
            (self.root, "skip", ValueError, "`missing` of warm_start must be"),
            (3, "error", TypeError, "`source` of warm_start must be"),
            (
                "/none",
                "error",
                FileNotFoundError,
                "no recovery point in '/none",
            ),
            ({"a": "/none"}, "error", ValueError, "has the tables 'b'"),
            (
                {"a": "/none"},
                "initial",
                FileNotFoundError,
                "no snapshot in '/none'",
            ),
            ({"x": "/none"}, "initial", ValueError, "None of the tables"),
        ):
            with self.assertRaisesRegex(error, message):
                warm_start(model, source, missing=missing)
        self.assertEqual(_tables(model)["a"], _tables(_model("a"))["a"])

    @parameterized.parameters(4, 5)
    def test_damage(self, dim):
        model = _model("a", "b", dim=dim)
        root, point = self._copied()
        path = point_files.table_path(point, 1)
        [file] = [f for f in os.listdir(path) if f.endswith(".chunks")]
        with open(os.path.join(path, file), "r+b") as opened:
            opened.seek(100)
            byte = opened.read(1)
            opened.seek(100)
            opened.write(bytes([byte[0] ^ 1]))
        before = _weights(model)
        with self.assertRaisesRegex(DamagedSnapshotError, f"{file} is damaged"):
            warm_start(model, root)
        self.assertEqual([int(t.size()) for t in model.tables], [0, 0])
        self.assertEqual(_weights(model), before)


class FitTest(TestCase):
    def setUp(self):
        super().setUp()
        self.old, self.new = self.directory(), self.directory()
        model = _model("a", "b")
        _fit(model, TableSnapshot(self.old), epochs=2)
        self.tables = _tables(model)

    def _snapshot(self):
        return TableSnapshot(self.new, warm_start=self.old)

    def test_fit_begins_there_and_goes_on_from_its_own_points(self):
        wanted, model = (_model("a", "b", "c", dim=5) for _ in range(2))
        # Which is no part of the point: its shape is another.
        kernels = [m.get_layer("first").kernel for m in (model, wanted)]
        kernels[0].assign(kernels[1])
        warm_start(wanted, self.old, missing="initial")
        _fit(wanted, epochs=3)
        with self.assertLogs("tf_ext", logging.WARNING) as logs:
            history = _fit(model, self._snapshot(), epochs=2)
        self.assertEqual(history.epoch, [0, 1])
        self.assertIn("Warm start from", str(logs))
        self.assertNotIn("continues from", str(logs))
        # Another process: its own points come first.
        other = _model("a", "b", "c", dim=5)
        with self.assertLogs("tf_ext", logging.WARNING) as logs:
            history = _fit(other, self._snapshot(), epochs=3)
        self.assertEqual(history.epoch, [2])
        self.assertNotIn("Warm start", str(logs))
        self.assertEqual(_tables(other), _tables(wanted))

    def test_later_fits_of_the_callback_continue_with_the_model(self):
        model, snapshot = _model("a", "b"), self._snapshot()
        _fit(model, snapshot)
        with self.assertNoLogs("tf_ext", logging.WARNING):
            history = _fit(model, snapshot)
        self.assertEqual(history.epoch, [0])


if __name__ == "__main__":
    absltest.main()
