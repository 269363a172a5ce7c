"""Runs the tests that connect to a cluster, each file in its own process."""

import pytest
from absl.testing import absltest, parameterized
from processes import CLUSTER_TESTS, run_test_files


@pytest.mark.timeout(660)
class ClusterTest(parameterized.TestCase):
    @parameterized.named_parameters(
        *((path.stem, path) for path in sorted(CLUSTER_TESTS))
    )
    def test_passes(self, path):
        run_test_files([path])


if __name__ == "__main__":
    absltest.main()
