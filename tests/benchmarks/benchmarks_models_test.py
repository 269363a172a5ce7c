# SPDX-License-Identifier: Apache-2.0
"""The benchmark of models that combine embeddings, at tiny sizes."""

import contextlib
import io
import pathlib
import sys
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from paths import ROOT

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "benchmarks"))

import ctr_models
import dense_twins
import harness
import run

pytestmark = pytest.mark.slow_tests(
    "CtrModelsTest::test_fm_is_the_mean_of_all_dot_products",
)


_DATA = ROOT.parent / "shared" / "data"
_COLUMNS = [f"I{i}" for i in range(1, 14)] + [f"C{i}" for i in range(1, 27)]


def _write_criteo(folder, count):
    """Examples with missing numbers, as Criteo's CSV files have them."""
    rng = np.random.default_rng(1)
    path = pathlib.Path(folder, "criteo_kaggle_20k")
    path.mkdir()
    lines = [",".join(["Id", "Label", *_COLUMNS])]
    for row in range(count):
        values = rng.integers(0, 9, len(_COLUMNS)).astype(str)
        values[rng.integers(0, 13)] = ""
        lines.append(",".join([str(row), str(row % 2), *values]))
    pathlib.Path(path, "part_1.csv").write_text("\n".join(lines) + "\n")
    return path.parent


class CtrModelsTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.folder = _write_criteo(folder, 200)

    def test_folds_are_in_the_order_of_time(self):
        data = ctr_models.Criteo(self.folder)
        whole = data.fold(4)[0].signs
        for number in range(5):
            train, validation, test = data.fold(number)
            begin = 100 + 20 * number
            self.assertLen(train.labels, begin - begin // 10)
            self.assertLen(validation.labels, begin // 10)
            self.assertLen(test.labels, 20)
            self.assertEqual(test.labels[0], begin % 2)
            # Those of numbers depend on the fold's training part.
            self.assertAllEqual(
                train.signs[:, :26], whole[: len(train.labels), :26]
            )
            self.assertAllClose(train.numbers.mean(0), np.zeros(13), 0, 1e-4)

    def test_fm_is_the_mean_of_all_dot_products(self):
        example = ctr_models.Criteo(self.folder).fold(0)[0][:3]
        network = ctr_models.Network("fm", 39, 13, seed=1)
        found = network(ctr_models._features(example))
        signs = example.signs.reshape(-1)
        linear, vectors = (
            table.pull(signs).numpy().reshape(3, 39, table.dim)
            for table in sorted(network.embed.tables, key=lambda t: t.dim)
        )
        expected = [
            np.mean(
                [one @ other for i, one in enumerate(row) for other in row[:i]]
            )
            for row in vectors
        ]
        self.assertAllClose(found, linear.sum((1, 2)) + expected, 1e-4, 1e-5)

    @pytest.mark.slow
    def test_runs(self):
        json = pathlib.Path(self.folder, "results")
        args = run.parse_arguments(
            ["ctr_models", f"--data={self.folder}", f"--json={json}"]
            + ["--seeds", "1"]
        )
        printed = io.StringIO()
        models = ("linear", "wide & deep", "dcn", "dlrm", "deepfm")
        sizes = {
            "_MODELS": models,
            "_RULES": ("adagrad",),
            "_RATES": (0.1,),
            "_BATCH_SIZES": (64,),
            "_MAX_EPOCHS": 1,
        }
        with (
            contextlib.redirect_stdout(printed),
            mock.patch.multiple(ctr_models, **sizes),
        ):
            run.run("ctr_models", args, threads=2)
        lines = harness.read_json(json)
        cases = [(line["model"], line["case"]) for line in lines]
        expected = ["searched", "default", "best"]
        self.assertEqual(cases, [(m, c) for m in models for c in expected])
        for line in lines:
            self.assertBetween(line["auc"], 0.0, 1.0)
            rate = 0.1
            if line["case"] == "default":
                rate = 0.07 if line["model"] == "linear" else 0.05
            self.assertEqual(line["rate"], rate)
        for model in models:
            self.assertIn(f"| {model} | 64 |", printed.getvalue())

    @pytest.mark.slow
    def test_regularization_runs(self):
        args = run.parse_arguments(
            ["regularization", f"--data={self.folder}", "--seeds", "1"]
        )
        printed = io.StringIO()
        sizes = {
            "_MODELS": ("dlrm",),
            "_REGULARIZERS": {"activity_l2": (1e6,), "dropout": (0.5,)},
            "_MAX_EPOCHS": 1,
        }
        with (
            contextlib.redirect_stdout(printed),
            mock.patch.multiple(ctr_models, **sizes),
        ):
            run.run("regularization", args, threads=2)
        [row] = [
            line
            for line in printed.getvalue().splitlines()
            if line.startswith("| dlrm")
        ]
        cells = [cell.split(" ")[1] for cell in row.split("|")[2:-1]]
        # Each of the three trains otherwise.
        self.assertLen(set(cells), 3)
        self.assertIn("(1e+06) |", row)

    def test_a_column_is_dropped_as_a_whole(self):
        example = ctr_models.Criteo(self.folder).fold(0)[0][:3]
        network = ctr_models.Network("deep", 39, 13, seed=1, dropout=0.5)
        joined = []
        network.dense[0].call = lambda x, **_: joined.append(x) or x[:, :64]
        for training in (False, True):
            network(ctr_models._features(example), training=training)
        whole, dropped = (x.numpy().reshape(3, 39, -1) for x in joined[-2:])
        zeros = (dropped == 0).all(2)
        self.assertBetween(zeros.mean(), 0.2, 0.8)
        kept = np.where(zeros[..., np.newaxis], 0, 2 * whole)
        self.assertAllClose(dropped, kept, 1e-6, 1e-6)

    def test_logistic_regression_sums_weights(self):
        example = ctr_models.Criteo(self.folder).fold(0)[0][:3]
        network = ctr_models.Network("linear", 39, 13, seed=1)
        network.table.push(example.signs[:2].reshape(-1), np.ones([78, 1]))
        found = network(ctr_models._features(example))
        weights = network.table.pull(example.signs).numpy()
        self.assertNotAllClose(found, np.zeros(3))
        self.assertAllClose(found, weights.sum((1, 2)), 1e-5, 1e-6)

    @parameterized.parameters(
        ([0.7, 0.8, 0.75, 0.9], 0.8, 3),
        # It begins anywhere, and may fall before it learns.
        ([0.5, 0.4, 0.3, 0.65, 0.64, 0.9], 0.65, 5),
    )
    def test_training_stops_after_it_has_begun_to_learn(
        self, aucs, best, epochs
    ):
        fold = ctr_models.Criteo(self.folder).fold(0)
        study = ctr_models.Study("linear", fold[0], seed=1)
        with mock.patch.object(study, "_auc", side_effect=aucs) as auc:
            found, _ = study.run(fold, 0.1, batch_size=64)
        self.assertEqual((found, auc.call_count), (best, epochs))

    @parameterized.named_parameters(
        ("deepfm", "deepfm", 0.75), ("fm", "fm", 0.75), ("dlrm", "dlrm", 0.73)
    )
    @pytest.mark.slow
    def test_the_default_learns(self, model, bound):
        if not _DATA.exists():
            self.skipTest(f"there is no {_DATA}")
        fold = ctr_models.Criteo(_DATA).fold(4)
        study = ctr_models.Study(model, fold[0], seed=3)
        _, auc = study.run(fold, study.own_rate, batch_size=2048)
        print(f"{self.id()}: AUC {auc:.4f}")
        self.assertGreater(auc, bound)


class TwinsTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_dense_adam_equals_the_matrix(self):
        args = run.parse_arguments(["twins", "--seeds", "3"])
        printed = io.StringIO()
        tasks = {"ratings": dense_twins.ratings}
        sizes = {"TASKS": tasks, "_RATES": (0.01,), "_MAX_EPOCHS": 2}
        with (
            contextlib.redirect_stdout(printed),
            mock.patch.multiple(dense_twins, **sizes),
        ):
            run.run("twins", args, threads=2)
        table = [
            [cell.split(" ")[0] for cell in line[2:-2].split(" | ")]
            for line in printed.getvalue().splitlines()
            if line.startswith("| ")
        ]
        self.assertLen(table, 2 + 2)
        for task, l2, rate, *found in table[2:]:
            dense, decay, lazy, default = map(float, found)
            self.assertLess(abs(dense - decay), 4e-4, (task, l2, rate))
            self.assertNotEqual(lazy, default)


if __name__ == "__main__":
    tf.test.main()
