# SPDX-License-Identifier: Apache-2.0
"""The process in which the benchmarks run TFRA."""

import contextlib
import pathlib
import sys
from unittest import mock

import pytest
import tensorflow as tf
from paths import ROOT

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "benchmarks"))

import harness
import run
import step_benchmarks

pytestmark = pytest.mark.slow

# Stands in for the program that needs TFRA.
_WORKER = """
import json, os, sys
replies = os.fdopen(int(sys.argv[1]), "w")
print("noise on standard output")
for line in sys.stdin:
    method, arguments = json.loads(line)
    if method == "die":
        sys.exit("out of memory")
    results = {"time": [3.0, 4.0], "start": arguments.get("threads")}
    reply = {"result": results.get(method)}
    if method == "fail":
        reply = {"error": "Traceback: no such table"}
    print(json.dumps(reply), file=replies, flush=True)
"""


class TfraTest(tf.test.TestCase):
    def _cases(self, python):
        args = run.parse_arguments(
            ["train_step", "--rows=10", f"--tfra-python={python}"]
        )
        return step_benchmarks._tfra(args, "adagrad")

    @contextlib.contextmanager
    def _remote(self):
        script = pathlib.Path(self.get_temp_dir(), "worker.py")
        script.write_text(_WORKER)
        with harness.start("TFRA", sys.executable, script, 1) as remote:
            remote.ready()
            yield remote

    def test_is_left_out_unless_asked_for(self):
        args = run.parse_arguments(["train_step"])
        with step_benchmarks._tfra(args, "adagrad") as cases:
            self.assertEmpty(cases)

    def test_times_are_those_of_the_other_process(self):
        script = pathlib.Path(self.get_temp_dir(), "worker.py")
        script.write_text(_WORKER)
        with (
            mock.patch.object(step_benchmarks, "_TFRA", script),
            self._cases(sys.executable) as cases,
        ):
            (result,) = harness.measure(cases, repeats=2)
        self.assertEqual(result["case"], "TFRA")
        self.assertEqual((result["wall_ms"], result["cpu_ms"]), (3.0, 4.0))

    def test_a_failure_there_is_an_error_here(self):
        with self._remote() as remote:
            with self.assertRaisesRegex(RuntimeError, "at fail:\n.*such table"):
                remote.call("fail")

    def test_its_end_is_an_error_that_holds_what_it_wrote(self):
        with self._remote() as remote:
            with self.assertRaisesRegex(
                RuntimeError, r"status 1 at die.*(\n.*)*out of memory"
            ):
                remote.call("die")

    def test_a_python_without_it(self):
        with self.assertRaisesRegex(
            SystemExit,
            "cannot run TFRA. Install what benchmarks/README.md names there. "
            r".*status 1 at start. (.*\n)*"
            "ModuleNotFoundError: No module named 'tensorflow_recommenders_add",
        ):
            with self._cases(sys.executable):
                pass

    def test_a_python_that_is_not_there(self):
        with self.assertRaisesRegex(
            SystemExit, "--tfra-python=/no/python cannot run TFRA. .*No such fi"
        ):
            with self._cases("/no/python"):
                pass


if __name__ == "__main__":
    tf.test.main()
