"""Runs the tests that use Keras once more, with tf_keras as tf.keras."""

import os
import pathlib
import subprocess
import sys

import pytest
from absl.testing import absltest, parameterized

_TESTS = pathlib.Path(__file__).resolve().parent
_RUN_TIMEOUT_SECONDS = 1200

# Files that Keras cannot make a difference to. A new file runs with both
# unless it is put here.
_WITHOUT_KERAS = {
    "core_test.py",
    "distribute_errors_test.py",
    "distribute_local_test.py",
    "legacy_keras_test.py",
    "package_test.py",
    "style_test.py",
}

_NO_TESTS_COLLECTED = 5


@pytest.mark.timeout(_RUN_TIMEOUT_SECONDS + 60)
class LegacyKerasTest(parameterized.TestCase):
    @parameterized.named_parameters(
        *(
            (path.stem, path.name)
            for path in sorted(_TESTS.glob("*_test.py"))
            if path.name not in _WITHOUT_KERAS
        )
    )
    def test_passes(self, name):
        done = subprocess.run(
            [
                *[sys.executable, "-m", "pytest", str(_TESTS / name)],
                *["-q", "-p", "no:cacheprovider", "--durations=5"],
            ],
            cwd=_TESTS.parent,
            env=dict(os.environ, TF_USE_LEGACY_KERAS="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_RUN_TIMEOUT_SECONDS,
            check=False,
        )
        self.assertIn(
            done.returncode, (0, _NO_TESTS_COLLECTED), f"\n{done.stdout}"
        )

    def test_skipped_files_exist(self):
        for name in _WITHOUT_KERAS:
            self.assertTrue((_TESTS / name).exists(), name)


if __name__ == "__main__":
    absltest.main()
