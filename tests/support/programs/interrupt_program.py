# SPDX-License-Identifier: Apache-2.0
"""Interrupts what a program does, and checks that it can go on.

    interrupt_program.py FOLDER NAME... --points=N --pairs=N --moments=N

does what each NAME says again and again in one process. It is interrupted at N
of the points at which Python handles signals in tf_ext (-1: all of them), at N
pairs of them, of which the second one finds the handling of the first, and by
signals at N moments. Prints for each NAME how many interrupts have come.
"""

import argparse
import faulthandler
import os
import random
import time

import interrupts
from cases import interrupt_cases, interrupt_model_cases

# What takes longer hangs.
_MAX_SECONDS = 1500

CASES = {
    name: value
    for module in (interrupt_cases, interrupt_model_cases)
    for name, value in vars(module).items()
    if isinstance(value, type)
    and issubclass(value, interrupt_cases.Case)
    and value.__module__ == module.__name__
    and not name.startswith("_")
    and name != "Case"
}


class _Interrupted:
    """A case, and how it is interrupted.

    Args:
      case: interrupt_cases.Case.
      chosen: random.Random.

    Attributes:
      came: int, how many interrupts have come.
    """

    def __init__(self, case, chosen):
        self._case, self._chosen = case, chosen
        self.came = 0
        self._once(case.operate)  # What is done once only.
        self._seconds = self._once(case.operate)
        points = []
        self._once(lambda: points.extend(interrupts.run(case.operate)[1]))
        self._points = interrupts.representative(points)

    def _once(self, operate):
        self._case.begin()
        begin = time.monotonic()
        operate()
        seconds = time.monotonic() - begin
        self._case.check(False)
        return seconds

    def _interrupt(self, twice, run, *arguments):
        self._case.begin()
        self.came += run(self._case.operate, *arguments)
        try:
            self._case.check(twice)
        except BaseException:
            print(f"after {run.__name__}{arguments}", flush=True)
            raise

    def at_points(self, count):
        """Interrupts at so many points, or at all."""
        points = self._points
        if count >= 0:
            points = self._chosen.sample(points, min(count, len(points)))
        for point in sorted(points):
            self._interrupt(False, _at, point)

    def at_pairs(self, count):
        """Interrupts at so many points, and while that is handled."""
        for _ in range(count if self._points else 0):
            # Most of what handles an interrupt is short.
            second = int(2 ** self._chosen.uniform(0, 7))
            self._interrupt(
                True, _at, self._chosen.choice(self._points), second
            )

    def at_moments(self, count):
        """Interrupts by signals."""
        for _ in range(count):
            moment = self._chosen.uniform(1e-6, self._seconds)
            self._interrupt(False, interrupts.run_for, moment)


def _at(operation, *arguments):
    return interrupts.run(operation, *arguments)[0]


def main():
    """See the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("names", nargs="+", choices=CASES)
    for option in ("points", "pairs", "moments", "seed"):
        parser.add_argument(f"--{option}", type=int, default=0)
    options = parser.parse_args()
    faulthandler.dump_traceback_later(_MAX_SECONDS, exit=True)
    for name in options.names:
        folder = os.path.join(options.folder, name)
        os.mkdir(folder)
        case = CASES[name](folder)
        interrupted = _Interrupted(case, random.Random(options.seed))
        interrupted.at_points(options.points)
        interrupted.at_pairs(options.pairs)
        interrupted.at_moments(options.moments)
        print(name, interrupted.came, flush=True)


if __name__ == "__main__":
    main()
