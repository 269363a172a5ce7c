# SPDX-License-Identifier: Apache-2.0
"""Short runs of the examples of recommenders, on both kinds of data."""

import importlib.util
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import pytest
from absl.testing import absltest, parameterized
from oracles.movielens_files import write_movielens
from paths import PROGRAMS, ROOT
from processes import program_environment

_TIMEOUT_SECONDS = 240
# TensorFlow's own dense kernels give other bits with other threads.
_ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


def _run(name, *arguments, **environment):
    """Runs an example; returns the JSON of its last line, and its output."""
    run = _start(ROOT / "examples" / name, *arguments, **environment)
    if run.returncode:
        raise AssertionError(
            f"{name} ended with status {run.returncode}:\n"
            f"{run.stdout[-2000:]}\n{run.stderr[-8000:]}"
        )
    print(f"{name} {' '.join(map(str, arguments))}: {run.stdout[-400:]}")
    return json.loads(run.stdout.splitlines()[-1]), run.stdout


def _start(path, *arguments, **environment):
    environment = {**program_environment(), **environment}
    # The program finds its modules because they are in its own folder.
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, str(path), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        env=environment,
    )


class _ExampleTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder)
        self.movielens = self.folder / "ml"
        write_movielens(self.movielens, users=100, items=40)

    def keras(self, legacy):
        """The environment of a program in tf_keras, or in Keras 3."""
        if legacy and importlib.util.find_spec("tf_keras") is None:
            self.skipTest("tf_keras is not installed")
        return {"TF_USE_LEGACY_KERAS": str(int(legacy))}


class DinTest(_ExampleTest):
    @parameterized.named_parameters(("keras_3", False), ("tf_keras", True))
    @pytest.mark.slow
    def test_made_up(self, legacy):
        result, printed = _run(
            "din.py",
            "--events=30000",
            "--epochs=1",
            "--batch_size=128",
            **self.keras(legacy),
        )
        # Without attention, it is 0.6.
        self.assertGreater(result["auc"], 0.65)
        self.assertLess(result["auc"], result["best_auc"])
        self.assertIn(f"best AUC possible is {result['best_auc']:.4f}", printed)

    @pytest.mark.slow
    def test_movielens(self):
        result, _ = _run(
            "din.py", f"--data={self.movielens}", "--epochs=10",
            "--batch_size=64", "--split=u1",
        )  # fmt: skip
        self.assertGreater(result["auc"], 0.7)
        self.assertIsNone(result["best_auc"])


class DailyTest(_ExampleTest):
    @pytest.mark.slow
    def test_goes_on_after_kills_as_without(self):
        arguments = ["--events=6000", "--days=4", "--batch_size=32"]
        whole = self.folder / "whole"
        result, printed = _run("daily.py", whole, *arguments, **_ONE_THREAD)
        self.assertEqual(result["days"], 4)
        self.assertGreater(result["rows"], 500)
        self.assertEqual(printed.count("rows evicted"), 4)
        tests = _contents(whole / "tests")
        self.assertGreater(json.loads(tests["2024-01-04.json"])["auc"], 0.6)

        killed = self.folder / "killed"
        # After the point of step 20; before the first point of a day.
        for day, step in (("2024-01-02", 25), ("2024-01-04", 3)):
            run = _start(
                PROGRAMS / "daily_kill_program.py", day, step, killed,
                *arguments, **_ONE_THREAD,
            )  # fmt: skip
            self.assertEqual(
                run.returncode, -signal.SIGKILL, run.stderr[-4000:]
            )
        again, printed = _run("daily.py", killed, *arguments, **_ONE_THREAD)
        self.assertEqual(again, result)
        self.assertEqual(_contents(killed / "tests"), tests)
        # Day 3, which was complete, and day 4.
        self.assertEqual(
            re.findall("^2024-01-0.", printed, re.MULTILINE),
            ["2024-01-03", "2024-01-04"],
        )
        for name in ("points", "days"):
            self.assertEqual(
                sorted(path.name for path in (killed / name).iterdir()),
                [f"2024-01-0{day}" for day in range(1, 5)],
            )

    @pytest.mark.slow
    def test_movielens_in_tf_keras(self):
        result, _ = _run(
            "daily.py", self.folder / "out", f"--data={self.movielens}",
            "--split=time", "--batch_size=32", **self.keras(legacy=True),
        )  # fmt: skip
        self.assertGreater(result["days"], 10)
        self.assertNotIn("best_auc", result)
        self.assertBetween(result["auc"], 0.3, 1.0)


def _contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


class MmoeTest(_ExampleTest):
    @parameterized.named_parameters(
        ("sum", False, []),
        ("pcgrad", False, ["--pcgrad"]),
        ("pcgrad_in_tf_keras", True, ["--pcgrad"]),
    )
    @pytest.mark.slow
    def test_made_up(self, legacy, options):
        result, _ = _run(
            "mmoe.py", "--events=30000", "--epochs=1", "--batch_size=128",
            *options, **self.keras(legacy),
        )  # fmt: skip
        for task, least in (("click", 0.65), ("like", 0.65)):
            self.assertGreater(result[task]["auc"], least, task)
            self.assertLess(result[task]["auc"], result[task]["best_auc"])

    @pytest.mark.slow
    def test_movielens_in_tf_keras(self):
        result, _ = _run(
            "mmoe.py", f"--data={self.movielens}", "--epochs=10",
            "--batch_size=64", **self.keras(legacy=True),
        )  # fmt: skip
        self.assertGreater(result["click"]["auc"], 0.7)
        self.assertIsNone(result["like"]["best_auc"])


if __name__ == "__main__":
    absltest.main()
