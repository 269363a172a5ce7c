# SPDX-License-Identifier: Apache-2.0
"""Two builds beside each other, at tiny sizes."""

import contextlib
import io
import os
import pathlib
import stat
import sys
import tempfile
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from paths import ROOT

_BENCHMARKS = ROOT / "benchmarks"

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(_BENCHMARKS))

import comparing  # noqa: E402
import harness  # noqa: E402
import op_benchmarks  # noqa: E402
import run  # noqa: E402

import tf_ext  # noqa: E402

pytestmark = pytest.mark.slow

_SOURCES = pathlib.Path(tf_ext.__file__).parents[1]
_SIZES = ["--rows=1000", "--dim=4", "--batch=100", "--repeats=8"]


def _folder(test):
    """A new folder, as long as the test runs."""
    return test.enterContext(tempfile.TemporaryDirectory())


class _Fake:
    """Stands in for a process: its values, and the order of all calls."""

    def __init__(self, key, factor, calls):
        self._key, self._factor, self._calls = key, factor, calls

    def send(self, method, **arguments):
        self.made = arguments

    def result(self, method):
        return ["a case"]

    def call(self, method, **arguments):
        if method == "build":
            return f"build {self._key[0]}"
        self._calls.append(self._key)
        values = [self._factor * v for v in range(1, arguments["repeats"] + 1)]
        return {"CPU ms": values}


class DifferenceTest(tf.test.TestCase, parameterized.TestCase):
    def test_spread_is_of_one_build_and_difference_of_two(self):
        # Rounds differ by a factor, as moments of a machine do.
        rounds = np.array([[1.0], [2.0], [10.0]])
        this = rounds * [[1.1, 1.1]]
        other = rounds * [[1.0, 1.0]]
        found = comparing.difference_and_spread(this, other)
        self.assertAllClose(found, [0.1, 0.0], atol=1e-9)

        noisy = rounds * [[1.0, 1.2]]
        difference, spread = comparing.difference_and_spread(noisy, noisy)
        self.assertAllClose([difference, spread], [0.0, 0.2], atol=1e-9)
        # Only one of two builds is noisy.
        _, spread = comparing.difference_and_spread(this, noisy)
        self.assertAllClose(spread, 1.2**0.5 - 1)

    def test_one_round_that_was_disturbed_does_not_decide(self):
        other = np.ones([5, 2])
        this = np.ones([5, 2])
        this[3] = 9.0
        difference, spread = comparing.difference_and_spread(this, other)
        self.assertAllClose([difference, spread], [0.0, 0.0])

    def test_nothing_is_divided_by_zero(self):
        zero = np.zeros([1, 2])
        self.assertEqual(
            comparing.difference_and_spread(zero, zero), (0.0, 0.0)
        )

    @parameterized.parameters(
        (0.03, 0.0, "unchanged"),
        (-0.03, 0.01, "unchanged"),
        (0.031, 0.02, "more"),
        (-0.031, 0.02, "less"),
        (0.05, 0.06, "unchanged"),
        (-0.07, 0.06, "less"),
    )
    def test_verdict(self, difference, spread, expected):
        self.assertEqual(comparing.verdict(difference, spread), expected)


class RoundsTest(tf.test.TestCase):
    def _compare(self, name, *arguments, factors=(1.0, 1.0)):
        """Compares fakes; what was printed, JSON lines and processes."""
        path = pathlib.Path(self.get_temp_dir(), f"{self.id()}.jsonl")
        args = run.parse_arguments(
            [name, "--against=python", f"--json={path}", *arguments]
        )
        self.calls, self.fakes = [], []

        @contextlib.contextmanager
        def processes(args, threads):
            fakes = {
                (build, i): _Fake((build, i), factor, self.calls)
                for build, factor in zip(("this", "other"), factors)
                for i in range(2)
            }
            self.fakes.append(fakes)
            yield fakes

        printed = io.StringIO()
        with (
            mock.patch.object(comparing, "_processes", processes),
            contextlib.redirect_stdout(printed),
        ):
            comparing.compare(name, args, 2)
        return printed.getvalue(), harness.read_json(path)

    def test_processes_take_turns_and_each_begins_as_often(self):
        self._compare("push", "--processes=2", "--repeats=8")
        turns = [self.calls[i : i + 4] for i in range(0, len(self.calls), 4)]
        self.assertLen(turns, 4)
        for turn in turns:
            self.assertLen(set(turn), 4)
        self.assertLen({turn[0] for turn in turns}, 4)
        # Builds alternate.
        builds = [build for build, _ in turns[0]]
        self.assertNotEqual(builds[0], builds[1])
        self.assertEqual(builds[:2], builds[2:])

    def test_each_round_has_new_processes(self):
        _, (line,) = self._compare("push", "--processes=6")
        self.assertLen(self.fakes, 3)
        self.assertEqual(np.shape(line["values"]["this"]), (3, 2))
        self.assertEqual(line["processes"], 6)
        self.assertEqual(line["repeats"], 100)

    def test_what_is_slow_is_repeated_less(self):
        _, (line,) = self._compare("memory", "--processes=2", "--repeats=50")
        self.assertEqual(line["repeats"], 1)
        self.assertLen(self.calls, 4)
        self.assertEqual(self.fakes[0]["this", 0].made["warmup"], 0)

    def test_report(self):
        printed, (line,) = self._compare(
            "push", "--processes=2", factors=(1.1, 1.0)
        )
        self.assertEqual(line["verdict"], "more")
        self.assertAllClose(line["difference"], 0.1)
        self.assertEqual(line["spread"], 0.0)
        self.assertAllClose([line["this"], line["other"]], [14.3, 13.0])
        self.assertEqual(
            line["builds"], {"this": "build this", "other": "build other"}
        )
        self.assertEqual(line["against"], "python")
        self.assertEqual(line["machine"], harness.machine())
        self.assertRegex(
            printed,
            r"\npush: threads=2, rows=10000000, .*processes=2, machine=(.*\n)*"
            r"  this:  build this\n  other: build other\n(.*\n)*"
            r"  a case +CPU ms +14.30 +13.00 +\+10.0% +0.0%  more\n",
        )


class BuildsTest(tf.test.TestCase):
    """Real processes."""

    def _python(self, *exports):
        """A Python as of another environment: nothing of this one's is left."""
        path = pathlib.Path(_folder(self), "python")
        path.write_text(
            '#!/bin/sh\nprintf "$PYTHONPATH" > "$0.path"\n'
            f'export {" ".join(exports)}\nexec {sys.executable} "$@"'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    def _compare(self, name, python):
        path = pathlib.Path(_folder(self), "results")
        args = run.parse_arguments(
            [
                *[name, f"--against={python}", "--processes=2", *_SIZES],
                f"--json={path}",
            ]
        )
        # What this Python's process imports.
        environment = {"PYTHONPATH": str(_SOURCES)}
        with mock.patch.dict(os.environ, environment):
            # A script finds its modules because they are in its own folder.
            os.environ.pop("PYTHONSAFEPATH", None)
            with contextlib.redirect_stdout(io.StringIO()):
                comparing.compare(name, args, 2)
        return harness.read_json(path)

    def test_two_builds(self):
        other = pathlib.Path(_folder(self))
        (other / "tf_ext").symlink_to(_SOURCES / "tf_ext")
        python = self._python(f"PYTHONPATH={other}")
        lines = self._compare("pull", python)
        # It was not told where this Python imports from.
        self.assertEqual(pathlib.Path(f"{python}.path").read_text(), "")
        cases = {(line["case"], line["measure"]) for line in lines}
        names = ["pull, uniform", "pull, Zipf(1.05)"]
        names += ["unique, pull, combine, Zipf(1.05)"]
        self.assertEqual(
            cases,
            {
                (f"tf_ext {name}", measure)
                for name in names
                for measure in ("CPU ms", "wall ms")
            },
        )
        builds = lines[0]["builds"]
        self.assertIn(f"of {_SOURCES / 'tf_ext'}, Tens", builds["this"])
        self.assertIn(f"of {other / 'tf_ext'}, Tens", builds["other"])
        for line in lines:
            self.assertGreater(np.min(line["values"]["other"]), 0.0)

    def test_a_python_without_tf_ext(self):
        with self.assertRaisesRegex(
            SystemExit,
            r"--against=\S*python cannot run comparing.py, which needs "
            r"tf_ext and TensorFlow. (.*\n)*.*No module named 'tf_ext'",
        ):
            # An installed tf_ext is out of sight, too.
            blocker = pathlib.Path(_folder(self))
            (blocker / "tf_ext.py").write_text(
                "raise ModuleNotFoundError(\"No module named 'tf_ext'\")"
            )
            self._compare("pull", self._python(f"PYTHONPATH={blocker}"))

    def test_a_python_that_is_not_there(self):
        with self.assertRaisesRegex(
            SystemExit, "--against=/no/python cannot run .*No such file"
        ):
            self._compare("pull", "/no/python")


class CasesTest(tf.test.TestCase, parameterized.TestCase):
    """The cases of each benchmark, without its references."""

    @parameterized.named_parameters(
        ("push", "push", ["tf_ext push"]),
        ("insert", "insert", ["tf_ext pull, training"]),
        (
            "train_step",
            "train_step",
            ["tf_ext, Keras 3, adagrad", "tf_ext, Keras 3, ftrl"],
        ),
    )
    def test_times(self, name, expected):
        for case, said in zip(self._cases(name), expected, strict=True):
            self.assertEqual(case.name, said)
            values = case.values(3, settle=True)
            self.assertEqual(list(values), ["CPU ms", "wall ms"])
            for measured in values.values():
                self.assertLen(measured, 3)

    def test_fit_trains(self):
        (case,) = self._cases("fit")
        case.run()
        (cpu,) = case.values(1, settle=False)["CPU ms"]
        self.assertGreater(cpu, 0.0)
        self.assertEqual(case.items % 2048, 0)

    def test_memory(self):
        cases = self._cases("memory")
        names = ["tf_ext, adagrad", "tf_ext, ftrl"]
        self.assertEqual([case.name for case in cases], names)
        for case in cases:
            self.assertEqual(
                list(case.values(1, settle=False)),
                ["bytes a row", "bytes at the peak", "worst batch, ms"],
            )

    def test_hash_is_not_optimized_away(self):
        options = tf.config.optimizer
        before = options.get_experimental_options()
        calls = []
        hash_category = op_benchmarks.ops.hash_category
        try:
            with mock.patch.object(
                op_benchmarks.ops,
                "hash_category",
                lambda *a, **k: calls.append(1) or hash_category(*a, **k),
            ):
                (case,) = self._cases("hash")
                case.run()
            self.assertTrue(
                options.get_experimental_options()["disable_meta_optimizer"]
            )
        finally:
            name = "disable_meta_optimizer"
            options.set_experimental_options({name: before.get(name, False)})
        self.assertLen(calls, 10)

    def _cases(self, name):
        module, function = comparing.COMPARED[name]
        args = run.parse_arguments(
            [name, "--against=x", *_SIZES, "--rules", "adagrad", "ftrl"]
        )
        args.threads = 2
        return getattr(__import__(module), function)(args)


class MachineTest(tf.test.TestCase, parameterized.TestCase):
    @parameterized.parameters(
        (
            "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\n"
            "model name\t: AMD EPYC\n\nmodel name\t: of the next core\n",
            "AMD EPYC (family 26 model 2)",
        ),
        ("model name : Some: Name\n\n", "Some: Name"),
        ("processor : 0\n", harness.platform.processor() or "by platform"),
    )
    def test_names_the_processor(self, cpuinfo, expected):
        with (
            mock.patch.object(pathlib.Path, "read_text", lambda path: cpuinfo),
            mock.patch.object(
                harness.platform, "machine", lambda: "by platform"
            ),
        ):
            self.assertEqual(harness.machine.__wrapped__(), expected)


class ArgumentsTest(tf.test.TestCase, parameterized.TestCase):
    def test_all_is_what_can_be_compared(self):
        args = run.parse_arguments(["all", "--against=x"])
        self.assertCountEqual(args.what, comparing.COMPARED)

    @parameterized.named_parameters(
        ("name", ["core", "pull"], "--against cannot compare core; it can: pu"),
        ("odd", ["pull", "--processes=3"], "--processes=3: allowed are even n"),
        ("none", ["pull", "--processes=0"], "--processes=0: allowed are even"),
    )
    def test_refuses(self, arguments, message):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit):
            run.parse_arguments([*arguments, "--against=x"])
        self.assertIn(message, errors.getvalue())


if __name__ == "__main__":
    tf.test.main()
