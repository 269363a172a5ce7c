# SPDX-License-Identifier: Apache-2.0
"""Programs that are process 1 of a PID namespace, as in a container."""

import subprocess
import sys

import processes
import pytest
from absl.testing import absltest
from paths import PROGRAMS

pytestmark = pytest.mark.slow_tests(
    "Process1Test::test_sigterm_ends_a_chief",
)

_UNSHARE = ["unshare", "--pid", "--fork", "--kill-child"]
_TIMEOUT_SECONDS = 200


def _is_permitted():
    try:
        return subprocess.run([*_UNSHARE, "true"], check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not _is_permitted(), reason="may not make PID namespaces")
class Process1Test(absltest.TestCase):
    def _run(self, kind):
        """What a program wrote to standard output, and its exit status."""
        program = PROGRAMS / "process_1_program.py"
        done = subprocess.run(
            [*_UNSHARE, sys.executable, program, kind],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            env=processes.program_environment(),
        )
        print(done.stderr)
        return done.stdout.split("\n"), done.returncode

    def test_ignores_sigterm_by_itself(self):
        self.assertEqual(self._run("none"), (["alive", ""], 0))

    def test_sigterm_ends_a_chief(self):
        self.assertEqual(self._run("chief"), (["nobody answers", ""], 143))

    @pytest.mark.slow
    def test_sigterm_ends_a_worker(self):
        self.assertEqual(self._run("worker"), ([""], 143))

    @pytest.mark.slow
    def test_sigterm_ends_an_evaluator(self):
        self.assertEqual(self._run("evaluator"), (["no point", ""], 143))

    @pytest.mark.slow
    def test_a_handler_of_the_program_stays(self):
        self.assertEqual(
            self._run("own_handler"),
            (["nobody answers", "handled", "alive", ""], 0),
        )


if __name__ == "__main__":
    absltest.main()
