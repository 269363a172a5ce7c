# SPDX-License-Identifier: Apache-2.0
"""Names tasks that answer much more slowly than the others of a cluster.

All steps wait for each server, so one at a tenth of its speed slows all of
them: on a machine that is busy, in a container that has used up its share of
processor time, or behind a bad connection.
"""

import collections
import statistics
from collections.abc import Collection, Mapping

from tf_ext.distribute import this_task

# The median of so many answers decides.
_ANSWERS = 15
# Slow is what takes so many times as long as the median of the others ...
_TIMES = 5.0
# ... and so long at least: below, the chief's own threads count.
_LEAST_SECONDS = 0.02

_logger = this_task.logger(__name__)


def median_of_others(values: Mapping[str, float], task: str) -> float | None:
    """The median of what all tasks but one have; None if there are none."""
    others = [value for one, value in values.items() if one != task]
    return statistics.median(others) if others else None


class SlowTasks:
    """Collects how long tasks take to answer, and logs those that are slow.

    Args:
      tasks: names of all tasks.
    """

    def __init__(self, tasks: Collection[str]) -> None:
        self._seconds: dict[str, collections.deque[float]] = {
            task: collections.deque(maxlen=_ANSWERS) for task in tasks
        }
        self._slow: set[str] = set()

    def add(self, task: str, seconds: float) -> None:
        """Notes an answer."""
        self._seconds[task].append(seconds)

    def medians(self) -> dict[str, float]:
        """The median of each task's last answers, where there are any."""
        return {
            task: statistics.median(seconds)
            for task, seconds in self._seconds.items()
            if seconds
        }

    def log(self) -> None:
        """Logs each task once that has become slow, or is so no longer."""
        medians = self.medians()
        for task, seconds in self._seconds.items():
            usual = median_of_others(medians, task)
            if len(seconds) < _ANSWERS or usual is None:
                continue
            limit = max(_TIMES * usual, _LEAST_SECONDS)
            if task not in self._slow and medians[task] >= limit:
                self._slow.add(task)
                _logger.warning(
                    "%s is slow: it takes %.0f ms to answer, the others %.1f "
                    "ms, medians of the last %d times. Steps wait for it. "
                    "`python -m tf_ext.distribute.status` shows what each task "
                    "does.",
                    task,
                    1000 * medians[task],
                    1000 * usual,
                    _ANSWERS,
                )
            # Not at the same limit, or it would be logged again and again.
            elif task in self._slow and medians[task] < limit / 2:
                self._slow.remove(task)
                _logger.info(
                    "%s answers in %.1f ms again.", task, 1000 * medians[task]
                )
