# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed while they save."""

import random

import pytest
from absl.testing import parameterized
from processes import run
from saving_util import TestCase

pytestmark = pytest.mark.slow

_KILLS = 200


class KillTest(TestCase):
    def _kill(self, kind, kills, *options):
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        lines = run(
            "snapshot_kill_program.py",
            self.directory(),
            f"--kind={kind}",
            f"--kills={kills}",
            f"--seed={seed}",
            *options,
            timeout_seconds=120 + 16 * kills,
        ).splitlines()
        self.assertLen(lines, kills)

    @parameterized.named_parameters(
        ("full", []), ("incremental", ["--incremental"])
    )
    def test_one_of_two_snapshots_is_whole(self, options):
        self._kill("imported", _KILLS // 20, *options)

    @parameterized.named_parameters(
        ("full", []), ("incremental", ["--incremental"])
    )
    @pytest.mark.slow
    @pytest.mark.timeout(3600)
    def test_one_of_two_snapshots_is_whole_often(self, options):
        self._kill("imported", _KILLS, *options)

    @parameterized.named_parameters(
        ("full", []), ("incremental", ["--incremental"])
    )
    def test_training_is_whole_up_to_a_step(self, options):
        self._kill("trained", _KILLS // 40, *options)

    @parameterized.named_parameters(
        ("full", []), ("incremental", ["--incremental"])
    )
    @pytest.mark.slow
    @pytest.mark.timeout(3600)
    def test_training_is_whole_up_to_a_step_often(self, options):
        self._kill("trained", _KILLS, *options)
