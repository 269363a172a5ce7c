# SPDX-License-Identifier: Apache-2.0
"""Training goes on after faults at random, and its rows are exact.

TF_EXT_FAULT_SEEDS is how many seeds there are, TF_EXT_FAULT_FIRST the first.
`tests/support/programs/random_faults_program.py` prints what faults cost.
"""

import os
import pathlib
import random
import tempfile

import pytest
from absl.testing import absltest, parameterized
from clusters import drawn_faults, fault_costs, random_faults

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow_tests("RandomFaultsTest::*"),
]

_FIRST = int(os.environ.get("TF_EXT_FAULT_FIRST", "0"))
_SEEDS = int(os.environ.get("TF_EXT_FAULT_SEEDS", "5"))
_FAULTS = 3


class RandomFaultsTest(parameterized.TestCase):
    @parameterized.named_parameters(
        (f"{regime}_{seed}", regime, seed)
        for seed in range(_FIRST, _FIRST + _SEEDS)
        for regime in drawn_faults.REGIMES
    )
    @pytest.mark.timeout(600)
    def test_rows_are_exact(self, regime, seed):
        result = random_faults.run(seed, regime, _FAULTS, longest_seconds=30)
        self.assertGreater(result.epochs, 0)
        self.assertEqual((result.twice, result.missing), ({}, {}))
        self.assertEqual(result.again, [])
        self.assertBetween(result.more_iterations, 0, result.most_iterations)


class FaultsTest(absltest.TestCase):
    """What is drawn, and what its cost is."""

    def test_a_seed_says_all(self):
        def faults(seed, **options):
            rng = random.Random(seed)
            return [
                drawn_faults.draw(rng, "servers", **options) for _ in range(200)
            ]

        self.assertEqual(faults(1), faults(1))
        self.assertNotEqual(faults(1), faults(2))
        self.assertContainsSubset(
            ["cut", "move", "stop", "kill"], {f.kind for f in faults(1)}
        )
        others = {fault.kind for fault in faults(1, impossible=["cut"])}
        self.assertNotIn("cut", others)
        self.assertNotEmpty([f for f in faults(1) if f.second])
        seconds = [fault.seconds for fault in faults(1)]
        self.assertBetween(max(seconds), 30.0, 60.0)

    def test_costs(self):
        first = [(0.0, 7, 10), (0.5, 7, 11), (1.0, 7, 12)]
        steps = fault_costs.of([*first, (1.2, 7, 13)], 3, begin=1.1)
        self.assertEqual(steps.recovery_seconds, 0.0)
        held_up = fault_costs.of([*first, (4.0, 7, 13)], 3, begin=1.5)
        self.assertEqual(held_up, fault_costs.Cost(2.5, 2.5, 0, 0.0))
        again = [(1.5, 8, 10), (1.75, 8, 11), (2.5, 9, 11), (2.75, 9, 12)]
        cost = fault_costs.of([*first, *again], 3, begin=1.0)
        self.assertEqual(cost, fault_costs.Cost(1.5, 0.75, 2, 1.0))

    def test_steps_that_are_written_down(self):
        folder = tempfile.TemporaryDirectory()
        path = pathlib.Path(self.enterContext(folder), "steps")
        steps = fault_costs.Steps(path)
        self.assertEmpty(steps.read())
        path.write_text("1.5 7 1\n2.0 7 ")
        self.assertEqual(steps.read(), [(1.5, 7, 1)])
        with path.open("a") as file:
            file.write("2\n")
        self.assertEqual(steps.read(), [(1.5, 7, 1), (2.0, 7, 2)])


if __name__ == "__main__":
    absltest.main()
