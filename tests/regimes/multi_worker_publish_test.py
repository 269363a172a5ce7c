# SPDX-License-Identifier: Apache-2.0
"""Points of synchronous workers, which one of them publishes."""

import pytest
from absl.testing import absltest
from cases import publish_cases
from clusters.case_workers import shared_workers

pytestmark = [
    pytest.mark.process("workers"),
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests("*"),
]

_CASES = {2: shared_workers(2)}


class PublishTest(absltest.TestCase):
    def test_the_rows_of_all_workers(self):
        of_workers = _CASES[2][publish_cases.published]
        wanted = {}
        for own, _, refused in of_workers:
            self.assertNotEmpty(own)
            self.assertFalse(wanted.keys() & own.keys())
            wanted |= own
            self.assertIn("`model`", refused)
        self.assertEqual(of_workers[0][1], wanted)


if __name__ == "__main__":
    absltest.main()
