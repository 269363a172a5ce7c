"""Runs the tests that take a process of their own, file by file."""

import pytest
from absl.testing import absltest, parameterized
from paths import TESTS
from processes import CLUSTER_TESTS, run_test_files

_SLOW_TIMEOUT_SECONDS = 4200
_HOLD_SLOW_TESTS = [
    path
    for path in sorted(CLUSTER_TESTS)
    if "pytest.mark.slow" in path.read_text()
]
_ALONE = [
    path
    for path in sorted(CLUSTER_TESTS - {TESTS / "docs" / "site_test.py"})
    # All of its tests.
    if "pytestmark = pytest.mark.slow" not in path.read_text()
]


@pytest.mark.timeout(960)
class ClusterTest(parameterized.TestCase):
    @parameterized.named_parameters(*((path.stem, path) for path in _ALONE))
    def test_passes(self, path):
        run_test_files([path])

    @parameterized.named_parameters(
        *((path.stem, path) for path in _HOLD_SLOW_TESTS)
    )
    @pytest.mark.slow
    @pytest.mark.timeout(_SLOW_TIMEOUT_SECONDS + 60)
    def test_passes_slow(self, path):
        run_test_files(
            [path], "-m", "slow", timeout_seconds=_SLOW_TIMEOUT_SECONDS
        )


if __name__ == "__main__":
    absltest.main()
