# SPDX-License-Identifier: Apache-2.0
"""What a fault costs, by the times of the steps that were trained."""

import dataclasses
import itertools

# Steps that take longer were held up. The end of an epoch takes a second on a
# busy machine.
_PAUSE_SECONDS = 2.0


@dataclasses.dataclass
class Cost:
    """What a fault cost.

    Attributes:
      recovery_seconds: from its begin to the end of the last pause, or to the
        first step of the last attempt.
      pause_seconds: the longest time between steps.
      lost_steps: steps that were trained again.
      lost_seconds: how long ago the first of them had been trained.
    """

    recovery_seconds: float
    pause_seconds: float
    lost_steps: int
    lost_seconds: float


class Steps:
    """The steps that have been trained, as a task writes them down.

    Args:
      path: pathlib.Path, of lines `SECONDS PROCESS STEP`.

    Attributes:
      lines: list of `(seconds, process, step)`.
    """

    def __init__(self, path):
        self._path = path
        self._bytes = 0
        self.lines = []

    def read(self):
        """All `lines`, with those that are new."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._bytes)
                text = file.read()
            text = text[: text.rfind(b"\n") + 1]
            self._bytes += len(text)
            for line in text.decode().splitlines():
                at, process, step = line.split()
                self.lines.append((float(at), int(process), int(step)))
        return self.lines


def of(lines, before, begin):
    """What a fault cost.

    Args:
      lines: of `Steps`, until training goes on.
      before: int, how many there were before the fault.
      begin: float, when it began.

    Returns:
      Cost.
    """
    recovery, pause = 0.0, 0.0
    lost_steps, lost_seconds = 0, 0.0
    at, _, step = lines[before - 1]
    for index in range(before, len(lines)):
        next_at, _, next_step = lines[index]
        # Steps took their time before the fault, too.
        waited = next_at - max(at, begin)
        pause = max(pause, waited)
        begins = next_step <= step
        if begins or waited > _PAUSE_SECONDS:
            recovery = next_at - begin
        if begins:
            lost_steps += step - next_step
            lost_seconds += at - _reached(lines, index, next_step)
        at, step = next_at, next_step
    return Cost(recovery, pause, lost_steps, lost_seconds)


def _reached(lines, end, step):
    """When a step was reached last, before those from an index on."""
    for at, _, reached in reversed(lines[:end]):
        if reached <= step:
            return at
    return lines[0][0]


def longest(times):
    """The longest time between two of a list."""
    return max(b - a for a, b in itertools.pairwise(times))
