# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run, at tiny sizes: their figures are not looked at."""

import contextlib
import io
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from paths import ROOT

_BENCHMARKS = ROOT / "benchmarks"
_TIMEOUT_SECONDS = 300

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(_BENCHMARKS))

import batches  # noqa: E402
import core_benchmarks  # noqa: E402
import harness  # noqa: E402
import run  # noqa: E402

import tf_ext  # noqa: E402

pytestmark = pytest.mark.slow


def _results(test):
    """A file of results in a new folder."""
    return pathlib.Path(tempfile.mkdtemp(dir=test.get_temp_dir()), "results")


class RunnerTest(tf.test.TestCase, parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.json = _results(self)

    def _run(self, *arguments):
        """Runs in this process; returns what was printed and the results."""
        args = run.parse_arguments(
            [
                *arguments,
                "--rows=1000",
                "--dim=4",
                "--batch=100",
                "--repeats=2",
                f"--json={self.json}",
            ]
        )
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for name in args.what:
                run.run(name, args, threads=2)
        return printed.getvalue(), harness.read_json(self.json)

    @parameterized.named_parameters(
        ("pull", "pull", 7),
        ("push", "push", 2),
        ("fit", "fit", 1),
        ("fit_columns", "fit_columns", 3),
        ("insert", "insert", 3),
        ("unique", "unique", 2),
        ("hash", "hash", 3),
    )
    def test_ops(self, name, cases):
        printed, lines = self._run(name)
        self.assertLen(lines, cases)
        for line in lines:
            self.assertEqual(line["benchmark"], name)
            self.assertIn(line["case"], printed)
            self.assertGreater(line["wall_ms"], 0.0)
            self.assertGreater(line["million_items_per_cpu_s"], 0.0)
            self.assertEqual(line["threads"], 2)
            self.assertEqual(line["machine"], harness.machine())
        self.assertIn(f", machine={harness.machine()}\n", printed)
        self.assertEqual(lines[0]["cpu_ratio"], 1.0)
        self.assertEqual(lines[0]["wall_ratio"], 1.0)

    def test_fit_files(self):
        _, lines = self._run("fit_files")
        slopes = [line for line in lines if "cpu_us" in line]
        cases = [line["case"] for line in lines if line not in slopes]
        self.assertEqual(cases[:2], ["tf_ext, hashed", "tf_ext"])
        for name in ("StringLookup", "StringLookup and adapt", "Hashing"):
            self.assertIn(f"{name}, tf_keras", cases)
        for line in slopes:
            self.assertEqual(line["items"], [50, 1000])
        names = {line["case"] for line in slopes}
        self.assertIn("StringLookup, tf_keras", names)
        self.assertNotIn("StringLookup and adapt, tf_keras", names)

    def test_a_slope(self):
        def result(name, items, cpu, wall):
            milliseconds = {"cpu_ms": cpu, "wall_ms": wall}
            return {"case": name, "items": items, **milliseconds}

        short = [result("b", 10, 120.0, 60.0), result("a", 10, 110.0, 60.0)]
        long = [result("a", 30, 130.0, 100.0), result("b", 30, 160.0, 160.0)]
        folder = self.enterContext(tempfile.TemporaryDirectory())
        path = os.path.join(folder, "lines")
        settings, printed = {"unit": "events"}, io.StringIO()
        with contextlib.redirect_stdout(printed):
            harness.report_slopes("x", short, long, settings, path)
        self.assertIn("the slope of an event", printed.getvalue())
        found = harness.read_json(path)
        self.assertEqual([line["case"] for line in found], ["a", "b"])
        self.assertEqual([line["cpu_us"] for line in found], [1000, 2000])
        self.assertEqual([line["cpu_start_ms"] for line in found], [100, 100])
        self.assertEqual([line["wall_ratio"] for line in found], [1, 2.5])

    def test_options_are_as_before_for_what_comes_next(self):
        get_options = tf.config.optimizer.get_experimental_options
        name = "disable_meta_optimizer"
        before = get_options().get(name, False)
        self._run("pull", "hash")
        self.assertEqual(get_options().get(name, False), before)

    def test_train_step(self):
        _, lines = self._run("train_step", "--rules", "adagrad", "adam", "ftrl")
        rules = [line["rule"] for line in lines]
        self.assertEqual(
            list(dict.fromkeys(rules)), ["adagrad", "adam", "ftrl"]
        )
        for _, group in itertools.groupby(lines, lambda line: line["rule"]):
            names = [line["case"] for line in group]
            self.assertStartsWith(names[0], "tf_ext, ")
            self.assertStartsWith(names[-1], "dense Embedding, ")

    def test_memory(self):
        printed, (ours, theirs, touched) = self._run("memory")
        self.assertEqual(ours["raw_bytes_a_row"], 8 + 2 * 4 * 4)
        self.assertEqual(theirs["case"], "DenseHashTable")
        self.assertEqual(touched["case"], "first touch of the raw bytes")
        self.assertBetween(ours["load"], 0.01, 1.0)
        self.assertIn("worst batch, ms", printed)
        self.assertIn(f", machine={harness.machine()}\n", printed)

    def test_read(self):
        _, lines = self._run("read")
        cases = {}
        for line in lines:
            cases.setdefault(line["format"], []).append(line["case"])
        ours = ["tf_ext.data.read", "tf_ext.data.read, hashed"]
        text = ["make_csv_dataset", "TextLineDataset, decode_csv"]
        pyarrow = ["pyarrow alone, no tensors"]
        self.assertEqual(
            cases,
            {
                "csv": ours + text + pyarrow,
                "tsv": ours + text + pyarrow,
                "jsonl": ours + pyarrow,
                "tfrecord": [*ours, "TFRecordDataset, parse_example"],
                "parquet": ours + pyarrow,
            },
        )

    def test_snapshot(self):
        _, lines = self._run("snapshot", f"--output={self.get_temp_dir()}")
        self.assertEqual(
            [line["case"] for line in lines],
            [
                *("save, with fsync", "dd conv=fsync"),
                "Checkpoint.write of a variable",
                *("load", "cold read", "insertion"),
                "Checkpoint.read of a variable",
                *("push", "push while saving"),
                *("changes marked", "not marked"),
            ],
        )
        self.assertGreater(lines[8]["wall_ratio"], 0.0)


class CoreTest(tf.test.TestCase, parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.program = str(core_benchmarks.build())

    def _run(self, *arguments):
        return subprocess.run(
            [self.program, *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )

    def test_all_parts_run(self):
        done = self._run("--rows=1000", "--batch=100", "--dim=4", "--repeats=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        titles = [part.split()[0] for part in done.stdout.split("\n\n")]
        self.assertEqual(
            [title.strip(",") for title in titles],
            [
                *("memory", "pull", "push", "lines", "insert"),
                *("stalls", "unique", "hash", "probe"),
            ],
        )

    def test_lines_of_a_row(self):
        # A row of dim 14 with Adagrad's slot has 120 bytes and starts at any
        # multiple of 8: a push touches 2.75 lines of it and 1.75 of its
        # gradient on average, a pull 1.87 of sign and weights.
        done = self._run(
            "--rows=5000", "--batch=2000", "--dim=14", "--repeats=1", "lines"
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        pull, push = re.findall("lines a row, pu.*", done.stdout)
        for text, kind, expected in [
            (pull, "signs", 8 / 64),
            (pull, "output", 56 / 64),
            (pull, "row", 1.875),
            (push, "signs", 2 * 8 / 64),
            (push, "items", 2 * 17 / 64),
            (push, "gradients, checked", 56 / 64),
            (push, "gradients", 1.75),
            (push, "row", 2.75),
        ]:
            found = re.search(rf"[:,] {kind} (\d+\.\d\d),", text)[1]
            self.assertNear(float(found), expected, 0.03, f"{kind} of {text}")
        for text in pull, push:
            *parts, together = map(float, re.findall(r"\d+\.\d\d", text))
            self.assertNear(sum(parts), together, 0.05)
        self.assertLen(re.findall("^remainder ", done.stdout, re.M), 2)

    def test_named_parts_run(self):
        done = self._run("--rows=1000", "--batch=100", "--repeats=1", "unique")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertStartsWith(done.stdout.strip(), "unique")
        self.assertNotIn("\n\n", done.stdout)

    @parameterized.named_parameters(
        ("name", "pul", "pul: allowed are .*insert"),
        ("option", "--row=5", "--row=5: allowed are --rows=,"),
        ("number", "--rows=1e6", "--rows=1e6: allowed are whole numbers from"),
        ("zero", "--dim=0", "--dim=0: allowed are whole numbers from 1"),
    )
    def test_refuses(self, argument, message):
        done = self._run(argument)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, message)

    def test_run_py_hands_its_arguments_over(self):
        args = run.parse_arguments(
            ["core", "--rows=1", "--batch=2", "--dim=3", "--repeats=4"]
        )
        with mock.patch.object(core_benchmarks, "build", lambda: "false"):
            with self.assertRaises(subprocess.CalledProcessError) as raised:
                run.run("core", args, threads=None)
        self.assertEqual(
            raised.exception.cmd,
            ["false", "--rows=1", "--batch=2", "--dim=3", "--repeats=4"],
        )


class ProgramTest(tf.test.TestCase):
    def test_each_number_of_threads_has_its_own_process(self):
        path = _results(self)
        arguments = ["hash", "--threads", "1", "2"]
        sizes = ["--batch=100", "--repeats=1"]
        done = _program(*arguments, *sizes, f"--json={path}")
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        lines = harness.read_json(path)
        self.assertEqual([line["threads"] for line in lines], [1] * 3 + [2] * 3)

    def test_errors_end_it(self):
        done = _program("fit_scaling", "--json=missing.jsonl")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(
            "There are no results in --json=missing.jsonl", done.stderr
        )


def _program(*arguments):
    environment = dict(
        os.environ, PYTHONPATH=str(pathlib.Path(tf_ext.__file__).parents[1])
    )
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, str(_BENCHMARKS / "run.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        env=environment,
        check=False,
    )


class ArgumentsTest(tf.test.TestCase):
    def test_all_is_what_measures_in_minutes(self):
        args = run.parse_arguments(["fit_scaling", "all"])
        names = ["pull", "push", "insert", "unique", "hash", "train_step"]
        names += ["fit", "fit_columns", "memory", "fit_scaling"]
        self.assertEqual(args.what, names)


class MeasureTest(tf.test.TestCase):
    def test_cases_take_turns_and_slow_ones_are_run_less(self):
        runs = []
        cases = [
            harness.Case("a", lambda: runs.append("a"), 10),
            harness.Case("b", lambda: runs.append("b"), 10, every=2),
        ]
        results = harness.measure(cases, repeats=3, warmup=2)
        self.assertEqual("".join(runs), "aab" + "aabb" + "aa" + "aabb")
        self.assertEqual([r["repeats"] for r in results], [3, 2])

        runs.clear()
        harness.measure(cases, repeats=2, warmup=0, settle=False)
        self.assertEqual("".join(runs), "aba")

    def test_what_comes_before_does_not_count(self):
        clock = [0.0]

        def passes(seconds):
            clock[0] += seconds

        case = harness.Case(
            "a", lambda: passes(2.0), 10, before=lambda: passes(5.0)
        )
        with mock.patch.object(harness.time, "perf_counter", lambda: clock[0]):
            wall_ms, _ = case.time()
        self.assertEqual(wall_ms, 2000.0)
        self.assertEqual(clock, [7.0])

    def test_summary(self):
        results = harness.measure(
            [_Timed("a", [1, 2, 3, 4, 5]), _Timed("b", [4, 4, 4, 4, 40])], 5
        )
        self.assertEqual([r["wall_ms"] for r in results], [3.0, 4.0])
        self.assertEqual([r["cpu_ms"] for r in results], [6.0, 8.0])
        self.assertEqual([r["wall_spread_ms"] for r in results], [1.0, 0.0])
        self.assertEqual([r["cpu_ratio"] for r in results], [1.0, 8 / 6])
        self.assertEqual(results[0]["million_items_per_cpu_s"], 1.0)
        self.assertEqual(results[1]["million_items_per_wall_s"], 1.5)


class _Timed(harness.Case):
    """Takes given wall times, in ms, and twice that of CPU time."""

    def __init__(self, name, times):
        super().__init__(name, lambda: None, items=6000)
        self._times = iter(times)

    def time(self):
        wall = next(self._times)
        return wall, 2 * wall


class BatchesTest(tf.test.TestCase):
    def test_ids_are_the_same_each_time_and_in_range(self):
        for distribution in ("uniform", "zipf"):
            keys = batches.pull_keys(distribution, 50, 1000)
            self.assertEqual(keys.shape, (batches.BATCHES, 1000))
            self.assertAllEqual(keys, batches.pull_keys(distribution, 50, 1000))
            self.assertAllInRange(keys, 0, 49)

    def test_inputs_take_turns(self):
        seen = []
        run = batches.in_turn(seen.append, "abc")
        for _ in range(5):
            run()
        self.assertEqual("".join(seen), "abcab")

    def test_zipf(self):
        keys = batches.zipf(np.random.default_rng(1), 1.05, 10**6, 10**5)
        counts = np.bincount(keys)
        # The density (id + 1) ** -1.05 over one id, of that over all.
        whole = 1 - (10.0**6 + 1) ** -0.05
        expected = 1e5 * (1 - 2.0**-0.05) / whole
        self.assertNear(counts[0], expected, 5 * expected**0.5)


if __name__ == "__main__":
    tf.test.main()
