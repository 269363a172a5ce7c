# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of rows run, at tiny sizes."""

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

import harness
import row_benchmarks
import run

pytestmark = pytest.mark.slow

_SMALL = ("--dtype=float16", "--slot_dtype=bfloat16")
_SIZES = {
    "_EXAMPLES": 3000,
    "_TEST_EXAMPLES": 700,
    "_TRAIN_BATCH": 128,
    "_LEARNING_RATES": (0.05,),
    "_TEST_BATCH": 512,
    "_VOCABULARIES": (1, 5, 50),
    "_EFFECTS": (0.0, 1.0, 0.5),
}
_LIFETIME_SIZES = {"_BATCH": 110, "_STREAM_BATCHES": 8, "_ROWS": 300}
_ROWS = row_benchmarks._Rows


class _RunnerTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.json = pathlib.Path(self.folder, "results")

    def _run(self, *arguments):
        """Runs in this process; returns what was printed and the results."""
        args = run.parse_arguments(
            [
                *arguments,
                *("--rows=2000", "--batch=100", "--repeats=2"),
                *(f"--json={self.json}", f"--output={self.folder}"),
            ]
        )
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for name in args.what:
                run.run(name, args, threads=2)
        return printed.getvalue(), harness.read_json(self.json)


class TypesTest(_RunnerTest, parameterized.TestCase):
    @parameterized.named_parameters(
        ("pull", "pull", "tf_ext pull"),
        ("push", "push", "tf_ext push"),
        ("insert", "insert", "tf_ext pull, training"),
    )
    def test_float32_takes_turns_in_the_same_run(self, name, case):
        printed, lines = self._run(name, *_SMALL)
        self.assertEqual(lines[0]["case"], case)
        self.assertEqual(lines[1]["case"], f"{case}, float32")
        for line in lines:
            self.assertEqual(line["dtype"], "float16")
            self.assertEqual(line["slot_dtype"], "bfloat16")
        self.assertIn("dtype=float16, slot_dtype=bfloat16", printed)

    def test_train_step(self):
        _, lines = self._run("train_step", "--dtype=bfloat16")
        self.assertStartsWith(lines[0]["case"], "tf_ext, ")
        self.assertEqual(lines[1]["case"], f"{lines[0]['case']}, float32")
        self.assertEqual(lines[0]["dtype"], "bfloat16")

    def test_snapshot(self):
        _, lines = self._run("snapshot", *_SMALL)
        self.assertEqual(
            {(line["dtype"], line["slot_dtype"]) for line in lines},
            {("float16", "bfloat16")},
        )

    def test_memory_of_each_rule(self):
        printed, lines = self._run(
            "memory",
            "--dtype=float16",
            "--rules",
            "adagrad",
            "row_wise_adagrad",
        )
        raw = {
            (line["rule"], line["case"]): line["raw_bytes_a_row"]
            for line in lines
        }
        self.assertEqual(raw["adagrad", "tf_ext"], 8 + 32 + 64)
        self.assertEqual(raw["adagrad", "tf_ext, float32"], 8 + 64 + 64)
        self.assertEqual(raw["adagrad", "DenseHashTable"], 8 + 64 + 64)
        self.assertEqual(raw["row_wise_adagrad", "tf_ext"], 8 + 32 + 4)
        self.assertEqual(raw["row_wise_adagrad", "DenseHashTable"], 8 + 64 + 4)
        self.assertEqual(
            ["float32_ratio" in line for line in lines],
            [True, False, False, False] * 2,
        )
        self.assertIn(" of float32's bytes", printed)

    def test_float32_alone_is_one_table(self):
        _, lines = self._run("push")
        self.assertEqual(
            [line["case"] for line in lines],
            ["tf_ext push", "ResourceSparseApplyAdagradV2"],
        )
        self.assertEqual(lines[0]["dtype"], "float32")

    @parameterized.named_parameters(
        ("dtype", ["pull", "--dtype=float64"], "invalid choice: 'float64'"),
        (
            "slots",
            ["pull", "--slot_dtype=float16"],
            "invalid choice: 'float16'",
        ),
        (
            "benchmark",
            ["pull", "fit", "--dtype=float16"],
            "--dtype=float16 --slot_dtype=float32: fit cannot measure small "
            "rows; allowed are pull, push, insert, train_step, memory, snapsho",
        ),
        (
            "rule",
            ["train_step", "--rules", "row_wise_adagrad"],
            "--rules=row_wise_adagrad: train_step has no reference for it",
        ),
    )
    def test_refuses(self, arguments, message):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            with self.assertRaises(SystemExit):
                run.parse_arguments(arguments)
        self.assertIn(message, errors.getvalue())


class LifetimeTest(_RunnerTest):
    def test_stream_and_present_rows(self):
        with mock.patch.multiple(row_benchmarks, **_LIFETIME_SIZES):
            printed, lines = self._run("lifetime", "--dim=4")
        every, count, forget, plain, *_ = lines
        self.assertEqual(count["case"], "Count(2)")
        self.assertLess(count["rows"], every["rows"] / 4)
        self.assertEqual(count["rows"], forget["rows"])
        self.assertEqual(plain["case"], "no options")
        self.assertIn("of every id's", printed)


class QualityTest(_RunnerTest):
    def test_small_rows(self):
        cases = (
            _ROWS(),
            _ROWS("float16", "bfloat16"),
            _ROWS("bfloat16", rounding="nearest"),
        )
        names = ["float32", "float16, bfloat16 slots", "bfloat16, to nearest"]
        sizes = {**_SIZES, "_CASES": cases}
        with mock.patch.multiple(row_benchmarks, **sizes):
            printed, lines = self._run("small_rows", "--seeds", "3", "4")
        self.assertEqual([line["case"] for line in lines], names * 2)
        self.assertEqual([line["seed"] for line in lines], [3] * 3 + [4] * 3)
        self.assertEqual(
            [line["row_bytes"] for line in lines], [136, 72, 136] * 2
        )
        # They are trained on the same data.
        self.assertLen({line["rows"] for line in lines[:3]}, 1)
        for line in lines:
            self.assertBetween(line["auc"], 0.3, line["best_auc"] + 0.05)
        # The mean, and what it is apart from float32's of the same seed.
        found = [lines[i]["auc"] for i in (2, 5)]
        apart = [found[0] - lines[0]["auc"], found[1] - lines[3]["auc"]]
        self.assertIn(
            f"| {names[2]} | {np.mean(found):.5f} | {np.mean(apart):+.5f} | "
            f"{min(apart):+.5f} | {max(apart):+.5f} |",
            printed,
        )

    def test_all_types_are_compared(self):
        self.assertEqual(
            [rows.name for rows in row_benchmarks._CASES],
            [
                *("float32", "float16", "float16, bfloat16 slots"),
                *("bfloat16", "bfloat16, bfloat16 slots"),
                *("float16, to nearest", "bfloat16, to nearest"),
            ],
        )

    def test_rounding_to_nearest_is_imitated(self):
        with mock.patch.multiple(row_benchmarks, **_SIZES):
            train, test, _ = row_benchmarks._generate(1)
            rows = _ROWS("bfloat16", rounding="nearest")
            machine = row_benchmarks._Machine(rows, 0.05, seed=1)
            machine.train_and_evaluate(train, test)
        _, fields = machine._table.export_rows()
        weights = fields["weights"]
        nearest = tf.cast(tf.cast(weights, tf.bfloat16), tf.float32)
        self.assertAllEqual(weights, nearest)
        slots = fields["accumulator"]
        self.assertNotAllEqual(
            slots, tf.cast(tf.cast(slots, tf.bfloat16), tf.float32)
        )


if __name__ == "__main__":
    tf.test.main()
