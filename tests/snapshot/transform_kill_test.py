# SPDX-License-Identifier: Apache-2.0
"""Processes that rewrite snapshots and are killed: later ones go on."""

import os
import random
import tempfile

import file_log
import processes
import pytest
from absl.testing import absltest, parameterized
from cases import transform_cases as cases

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

_KILLS = 60


class TransformKillTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory(prefix="tf_ext_killed_")
        cls.addClassCleanup(folder.cleanup)
        cls.root = os.path.realpath(folder.name)
        cls.library = file_log.compiled(cls.root)
        os.mkdir(os.path.join(cls.root, "old"))
        cases.save(os.path.join(cls.root, "old"))

    @parameterized.parameters(*cases.CASES)
    def test_at_any_moment(self, case):
        lines = self._kill(case, 7, _KILLS // 10)
        self.assertContainsSubset(["absent"], [line[2] for line in lines])

    @parameterized.parameters("dim", "chain", "merge_mean", "reshard")
    def test_at_each_call_and_often(self, case):
        lines = self._kill(case, 1, _KILLS)
        # The target is there from the rename on.
        states = [line[2] for line in lines if line[0] == "call"]
        whole = states.index("whole")
        self.assertEqual(states[:whole], ["absent"] * whole)
        self.assertEqual(states[whole:], ["whole"] * (len(states) - whole))
        self.assertContainsSubset(
            ["absent", "whole"], [line[2] for line in lines]
        )
        recorded = [int(line[3]) for line in lines]
        self.assertGreater(sum(rows > 0 for rows in recorded), len(lines) / 3)

    def _kill(self, case, every, kills):
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        printed = processes.run(
            "transform_kill_program.py",
            self.root,
            case,
            every,
            kills,
            seed,
            timeout_seconds=3000,
            LD_PRELOAD=self.library,
            FILE_LOG_ROOT=os.path.join(self.root, "new"),
        )
        return [line.split() for line in printed.splitlines()]


if __name__ == "__main__":
    absltest.main()
