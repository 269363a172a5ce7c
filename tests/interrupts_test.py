# SPDX-License-Identifier: Apache-2.0
"""Ctrl+C while a program saves, loads, trains or exports.

Everything works afterwards in the same process, and no file that is half done
is taken for whole.
"""

import random

import pytest
from absl.testing import absltest, parameterized
from processes import run
from programs.interrupt_program import CASES
from saving_util import TestCase

pytestmark = pytest.mark.both_kerases(slow=True)

_MOMENTS = 200
_NAMES = tuple((name, name) for name in CASES)
# It reads in threads of TensorFlow, which no interrupt reaches.
_WITHOUT_POINTS = "Read"
# These take longer, and others do what they do.
_LONG = {"Export", "Fit", "Read", "Weights"}


class InterruptsTest(TestCase):
    def _interrupt(self, *names, **options):
        """Returns how many interrupts have come, by name."""
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        output = run(
            "interrupt_program.py",
            self.directory(),
            *names,
            f"--seed={seed}",
            *(f"--{key}={value}" for key, value in options.items()),
            timeout_seconds=1700,
        )
        came = dict(line.split() for line in output.splitlines())
        self.assertEqual(list(came), list(names))
        return {name: int(number) for name, number in came.items()}

    @pytest.mark.slow
    def test_at_some_points(self):
        names = sorted(CASES.keys() - _LONG)
        for name, came in self._interrupt(*names, points=4).items():
            self.assertGreater(came, 0, name)

    @parameterized.named_parameters(*_NAMES)
    @pytest.mark.slow
    @pytest.mark.timeout(1800)
    def test_at_every_point(self, name):
        came = self._interrupt(name, points=-1)[name]
        self.assertGreaterEqual(came, 10 * (name != _WITHOUT_POINTS))

    @parameterized.named_parameters(*_NAMES)
    @pytest.mark.slow
    @pytest.mark.timeout(1800)
    def test_while_an_interrupt_is_handled(self, name):
        came = self._interrupt(name, pairs=_MOMENTS)[name]
        self.assertGreaterEqual(came, 10 * (name != _WITHOUT_POINTS))

    @parameterized.named_parameters(*_NAMES)
    @pytest.mark.slow
    @pytest.mark.timeout(1800)
    def test_at_random_moments(self, name):
        self._interrupt(name, moments=_MOMENTS)


if __name__ == "__main__":
    absltest.main()
