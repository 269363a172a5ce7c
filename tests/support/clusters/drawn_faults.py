# SPDX-License-Identifier: Apache-2.0
"""Faults that are drawn at random."""

import dataclasses
import math

from programs import faults_task_program as program

REGIMES = ("servers", "workers")
LONGEST_SECONDS = 60.0

# Between a fault and the next.
_BETWEEN_SECONDS = 6.0
# How many come while training recovers from another.
_SECOND_SHARE = 0.3
# Connections to servers wait for 60 s, but TCP tries again ever less often.
_SERVER_SECONDS = 25.0
# Far below the time after which synchronous workers are lost.
_HEARTBEAT_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens to tasks.

    Attributes:
      kind: string, what `draw` knows.
      tasks: tuple of their names.
      seconds: float, how long; 0 if it is over at once.
      wait_seconds: float, how long training runs before.
      second: another that begins `wait_seconds` of its own after this one, or
        None.
    """

    kind: str
    tasks: tuple[str, ...]
    seconds: float
    wait_seconds: float
    second: "Fault | None" = None

    def __str__(self):
        text = " ".join([self.kind, *self.tasks])
        if self.seconds:
            text += f" {self.seconds:.0f} s"
        if self.second:
            text += f" & after {self.second.wait_seconds:.1f} s {self.second}"
        return text


def names_of(regime):
    """The names of the tasks of a regime."""
    workers = [f"worker{index}" for index in range(program.WORKERS)]
    if regime == "workers":
        return workers
    return ["chief0", *workers, "ps0", "ps1", "ps2"]


def draw(rng, regime, longest_seconds=LONGEST_SECONDS, impossible=()):
    """A `Fault` at random.

    Args:
      rng: random.Random.
      regime: one of `REGIMES`.
      longest_seconds: float, how long it may last.
      impossible: the kinds that cannot be made here.

    Returns:
      Fault.
    """
    fault = _draw_one(rng, regime, longest_seconds, impossible)
    second = _draw_one(rng, regime, longest_seconds, impossible)
    if rng.random() < _SECOND_SHARE and second.kind != fault.kind:
        return dataclasses.replace(fault, second=second)
    return fault


def _draw_one(rng, regime, longest_seconds, impossible):
    names = names_of(regime)
    # Those that write rows, and nothing else that is needed.
    writers = names[-3:] if regime == "servers" else names[1:]
    kinds = {
        "kill": (names, 1, False),
        "terminate": (names, 1, False),
        "terminate all": (names, len(names), False),
        "stop": (names, 1, True),
        "full disk": ([], 0, True),
        "no writes": (writers, 1, True),
        "cut": (names, 2, True),
        "move": (names, 1, False),
        "clock": (names, 1, False),
    }
    kind = rng.choice(sorted(kinds.keys() - set(impossible)))
    among, count, lasts = kinds[kind]
    tasks = tuple(rng.sample(among, count))
    # Most faults are short.
    seconds = math.exp(rng.uniform(0.0, math.log(longest_seconds)))
    wait_seconds = rng.uniform(0.0, _BETWEEN_SECONDS)
    return Fault(kind, tasks, seconds if lasts else 0.0, wait_seconds)


def trains_nothing_again(fault, regime, retry_steps=True):
    """Whether the documentation says that no step is trained again."""
    if fault.second or fault.kind in ("full disk", "no writes"):
        return False
    if not retry_steps:
        return fault.kind == "terminate all"
    jobs = {task.rstrip("0123456789") for task in fault.tasks}
    if fault.kind == "terminate all":
        return True
    if regime == "workers":
        is_short = 0.0 < fault.seconds < _HEARTBEAT_SECONDS
        return fault.kind == "terminate" or is_short
    if fault.kind == "terminate":
        return "ps" not in jobs
    if fault.kind in ("kill", "move", "clock"):
        return jobs == {"worker"}
    return "ps" not in jobs or fault.seconds < _SERVER_SECONDS
