# SPDX-License-Identifier: Apache-2.0
"""Transformations that are killed: the target is whole or absent."""

import os
import random

import file_log
import numpy as np
import processes
import pytest
import snapshot_util as util
from absl.testing import absltest
from transform_util import TransformTestCase
from transform_util import table as table_of

pytestmark = pytest.mark.slow

_KILLS = 60


class TransformKillTest(TransformTestCase):
    def test_at_each_call_and_at_any_moment(self):
        root = os.path.realpath(self.root)
        for name, signs in (
            ("old", np.arange(20_000)),
            ("other", np.arange(15_000, 30_000)),
        ):
            table = table_of(8)
            util.push(table, signs)
            table.save(os.path.join(root, name))
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        printed = processes.run(
            "transform_kill_program.py",
            root,
            _KILLS,
            seed,
            LD_PRELOAD=file_log.compiled(self.directory()),
            FILE_LOG_ROOT=os.path.join(root, "new"),
        )
        lines = [line.split() for line in printed.splitlines()]
        calls = [line for line in lines if line[0] == "call"]
        self.assertGreater(len(calls), 10)
        self.assertLen(lines, len(calls) + _KILLS)
        # The target is there from the rename on.
        states = [line[2] for line in calls]
        whole = states.index("whole")
        self.assertEqual(states[:whole], ["absent"] * whole)
        self.assertEqual(states[whole:], ["whole"] * (len(states) - whole))
        self.assertContainsSubset(
            ["absent", "whole"], [line[2] for line in lines]
        )


if __name__ == "__main__":
    absltest.main()
