# SPDX-License-Identifier: Apache-2.0
"""The plugin that ends processes whose tests hang."""

import pathlib
import subprocess
import sys
import tempfile

from absl.testing import absltest

_SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support"
# A test that no signal reaches.
_HANGS = """
import signal, time
import pytest

def test_short():
    pass

@pytest.mark.timeout(0)
def test_unlimited():
    time.sleep(3.5)

def test_long():
    time.sleep(2.5)

def test_that_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(60)
"""


class HangsTest(absltest.TestCase):
    def _run(self, *options):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "some_test.py")
            file.write_text(_HANGS)
            return subprocess.run(
                [
                    *[sys.executable, "-m", "pytest", "-p", "test_hangs"],
                    *["-p", "no:cacheprovider", "-p", "timeout"],
                    *["-v", f"--rootdir={folder}", *options, str(file)],
                ],
                cwd=folder,
                env={"PYTHONPATH": str(_SUPPORT)},
                capture_output=True,
                text=True,
                timeout=120,
            )

    def test_stacks_are_printed(self):
        run = self._run("--timeout=1", "-k", "hangs")
        self.assertEqual(run.returncode, 1, run.stdout)
        self.assertIn("Timeout (0:00:01.5", run.stderr)
        self.assertIn("in test_that_hangs", run.stderr)

    def test_others_end_by_themselves(self):
        run = self._run("--timeout=2", "-k", "not hangs")
        self.assertEqual(run.returncode, 1, run.stdout)
        self.assertIn("Failed: Timeout (>2.0s)", run.stdout)
        self.assertIn("1 failed, 2 passed", run.stdout)


if __name__ == "__main__":
    absltest.main()
