# SPDX-License-Identifier: Apache-2.0
"""The Wide & Deep example on several processes of this machine."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest
import tensorflow as tf
from paths import ROOT

pytestmark = pytest.mark.both_kerases(slow=True)

_PROGRAM = ROOT / "examples" / "wide_deep.py"
_TIMEOUT_SECONDS = 240
_DATA = ("--examples=40000", "--batch_size=512", "--epochs=3")
_CLUSTER = ("--strategy=ps", "--workers=2", "--servers=2")
_SYNCHRONOUS = ("--strategy=mwms", "--workers=2")


def _run(*arguments, on_line=None):
    """Runs the example.

    Args:
      *arguments: of its command line.
      on_line: optional function of its process and each line that it writes.

    Returns:
      All lines, and the JSON of the last one on standard output.
    """
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    # The program finds its modules because they are in its own folder.
    environment.pop("PYTHONSAFEPATH", None)
    lines = []
    with subprocess.Popen(
        [sys.executable, str(_PROGRAM), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as run:
        timer = threading.Timer(_TIMEOUT_SECONDS, run.kill)
        timer.start()
        for line in run.stdout:
            lines.append(line)
            if on_line:
                on_line(run, line)
        timer.cancel()
    text = "".join(lines)
    if run.returncode:
        raise AssertionError(
            f"wide_deep.py {' '.join(arguments)} ended with status "
            f"{run.returncode}:\n{text[-8000:]}"
        )
    # TensorFlow complains of servers that are gone after the last line.
    result = json.loads([one for one in lines if one.startswith("{")][-1])
    print(f"wide_deep.py {' '.join(arguments)}: {result}")
    return text, result


def _server_of(parent):
    """The process of a parameter server that a process has started."""
    parents, started = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # After the name, which may hold anything, from the state on.
            fields = path.read_text().rpartition(")")[2].split()
            process = int(path.parent.name)
            parents[process], started[process] = int(fields[1]), int(fields[19])
    # A child of it forks workers, and then servers.
    tasks = [one for one, by in parents.items() if parents.get(by) == parent]
    if len(tasks) != 4:
        raise AssertionError(f"process {parent} has the tasks {tasks}, not 4")
    return max(tasks, key=lambda one: (started[one], one))


class RunTest(tf.test.TestCase):
    @pytest.mark.slow
    def test_learns_as_one_process_does(self):
        _, alone = _run(*_DATA)
        for strategy in (_CLUSTER, _SYNCHRONOUS):
            _, result = _run(*_DATA, *strategy)
            self.assertCountEqual(result, alone)
            self.assertNear(result["auc"], alone["auc"], 0.01)
            for same in ("rows", "examples", "best_auc"):
                self.assertEqual(result[same], alone[same])

    @pytest.mark.slow
    def test_survives_a_lost_server(self):
        _, alone = _run(*_DATA)
        killed = []

        def kill_a_server(run, line):
            # Once: the epoch begins again after the recovery.
            # Not the last, which might be over when the line is read.
            if line.startswith("Epoch 2/3") and not killed:
                killed.append(_server_of(run.pid))
                os.kill(killed[0], signal.SIGKILL)

        text, disturbed = _run(*_DATA, *_CLUSTER, on_line=kill_a_server)
        self.assertIn("Lost parameter servers: ", text)
        self.assertIn("All tasks are back", text)
        self.assertNear(disturbed["auc"], alone["auc"], 0.01)
        self.assertEqual(disturbed["rows"], alone["rows"])


if __name__ == "__main__":
    tf.test.main()
