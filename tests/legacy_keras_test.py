"""Runs the tests that use Keras once more, with tf_keras as tf.keras."""

import pathlib

import pytest
from absl.testing import absltest, parameterized
from processes import run_test_file

_TESTS = pathlib.Path(__file__).resolve().parent

# Files that Keras cannot make a difference to. A new file runs with both
# unless it is put here.
_WITHOUT_KERAS = {
    "cluster_test.py",
    "core_test.py",
    "distribute_errors_test.py",
    "distribute_local_test.py",
    "legacy_keras_test.py",
    "package_test.py",
    "style_test.py",
}


@pytest.mark.timeout(1260)
class LegacyKerasTest(parameterized.TestCase):
    @parameterized.named_parameters(
        *(
            (path.stem, path.name)
            for path in sorted(_TESTS.glob("*_test.py"))
            if path.name not in _WITHOUT_KERAS
        )
    )
    def test_passes(self, name):
        run_test_file(_TESTS / name, TF_USE_LEGACY_KERAS="1")

    def test_skipped_files_exist(self):
        for name in _WITHOUT_KERAS:
            self.assertTrue((_TESTS / name).exists(), name)


if __name__ == "__main__":
    absltest.main()
