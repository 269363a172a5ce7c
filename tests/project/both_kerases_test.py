# SPDX-License-Identifier: Apache-2.0
"""Test files that run in both Kerases have the same tests in both."""

import os
import subprocess
import sys

import pytest
from absl.testing import absltest
from paths import ROOT

pytestmark = pytest.mark.slow

_TF_KERAS = "@tf_keras"


def _collected(keras=None):
    """The names of all tests that a process collects.

    Args:
      keras: string, for TF_USE_LEGACY_KERAS; None leaves the choice to tests.
    """
    environment = {"TF_USE_LEGACY_KERAS": keras} if keras else {}
    others = {
        name: value
        for name, value in os.environ.items()
        if name != "TF_USE_LEGACY_KERAS"
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", ""],
        cwd=ROOT,
        env=others | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return {line for line in done.stdout.splitlines() if "::" in line}


class BothKerasesTest(absltest.TestCase):
    def test_tests_for_both_exist_in_both(self):
        copies = {
            name.removesuffix(_TF_KERAS)
            for name in _collected()
            if name.endswith(_TF_KERAS)
        }
        self.assertGreater(len(copies), 1000)
        self.assertEmpty(copies - _collected("1"))


if __name__ == "__main__":
    absltest.main()
