# SPDX-License-Identifier: Apache-2.0
"""Forged snapshots through every reader, in a process that may crash or hang.

Its last line is the seed at fault: run snapshot_forging_program.py SEED 1.
"""

import random

import processes
import pytest
from absl.testing import absltest

pytestmark = pytest.mark.slow


class SnapshotForgingTest(absltest.TestCase):
    def _read(self, count, timeout_seconds):
        seed = random.randrange(2**31)
        print(f"seeds from {seed} on")
        written = processes.run(
            "snapshot_forging_program.py",
            *(seed, count),
            timeout_seconds=timeout_seconds,
        )
        self.assertRegex(written, f"seed {seed + count - 1}\n{count} read, ")

    def test_no_reader_is_harmed(self):
        self._read(800, 300)

    @pytest.mark.slow
    @pytest.mark.timeout(3600)
    def test_no_reader_is_harmed_by_ten_thousand(self):
        self._read(10_000, 3000)


if __name__ == "__main__":
    absltest.main()
