"""The process in which the benchmarks run TFRA."""

import contextlib
import pathlib
import sys
from unittest import mock

import tensorflow as tf
from paths import ROOT

# As for a program, whose folder comes first on the path.
sys.path.insert(0, str(ROOT / "benchmarks"))

import harness
import run
import tfra

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
    def _args(self, python):
        return run.parse_arguments(["pull", f"--tfra-python={python}"])

    @contextlib.contextmanager
    def _worker(self):
        script = pathlib.Path(self.get_temp_dir(), "worker.py")
        script.write_text(_WORKER)
        with mock.patch.object(tfra, "_SCRIPT", script):
            args = self._args(sys.executable)
            with tfra.start(args) as worker:
                yield worker

    def test_is_none_unless_asked_for(self):
        with tfra.start(run.parse_arguments(["pull"])) as worker:
            self.assertIsNone(worker)

    def test_times_are_those_of_the_other_process(self):
        with self._worker() as worker:
            case = worker.case("pull", items=7, rows=1)
            (result,) = harness.measure([case], repeats=2)
        self.assertEqual(result["case"], "TFRA")
        self.assertEqual((result["wall_ms"], result["cpu_ms"]), (3.0, 4.0))

    def test_a_failure_there_is_an_error_here(self):
        with self._worker() as worker:
            with self.assertRaisesRegex(RuntimeError, "at fail:\n.*such table"):
                worker.call("fail")

    def test_its_end_is_an_error_that_holds_what_it_wrote(self):
        with self._worker() as worker:
            with self.assertRaisesRegex(
                RuntimeError, r"status 1 at die.*(\n.*)*out of memory"
            ):
                worker.call("die")

    def test_a_python_without_it(self):
        with self.assertRaisesRegex(
            SystemExit,
            "cannot run TFRA. Install what benchmarks/README.md names there. "
            r".*status 1 at start. (.*\n)*"
            "ModuleNotFoundError: No module named 'tensorflow_recommenders_add",
        ):
            with tfra.start(self._args(sys.executable)):
                pass

    def test_a_python_that_is_not_there(self):
        with self.assertRaisesRegex(
            SystemExit, "--tfra-python=/no/python cannot run TFRA. .*No such fi"
        ):
            with tfra.start(self._args("/no/python")):
                pass
