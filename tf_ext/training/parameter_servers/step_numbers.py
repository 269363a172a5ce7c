# SPDX-License-Identifier: Apache-2.0
"""Numbers steps, so that servers know one that runs again.

A step whose worker is lost runs on another one, although some servers may have
its updates already. They remember the numbers of the steps that can still run
again, and update no row twice for one of them.
"""

import threading
import weakref
from collections.abc import Callable

import tensorflow as tf

SPEC = tf.TensorSpec([2], tf.int64)
"""Of `Begun.tensor`."""


class StepNumbers:
    """The numbers of all steps that a strategy schedules.

    Those of steps that have not ended are remembered on all servers: the
    smallest of them goes with each step, and tells which can be forgotten.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0
        # In ascending order; the values are not used.
        self._under_way: dict[int, None] = {}

    def begin(self, steps: int) -> "Begun":
        """Numbers so many steps, which run one after the other.

        Returns:
          Begun; call its `end` when none of them can run again.
        """
        with self._lock:
            first = self._next
            self._next += steps
            self._under_way[first] = None
            oldest = next(iter(self._under_way))
        return Begun(self, first, oldest)

    def end(self, first: int) -> None:
        """See `Begun.end`."""
        with self._lock:
            self._under_way.pop(first, None)


class Begun:
    """The numbers of some steps that have begun."""

    def __init__(self, numbers: StepNumbers, first: int, oldest: int) -> None:
        self._numbers = numbers
        self._first = first
        self._oldest = oldest

    def tensor(self) -> tf.Tensor:
        """The number of the first step, and of the oldest that may run again.

        Returns:
          int64 `[2]`. It may be on the worker that is in scope, and be lost
          with that, so it is made for each run.
        """
        return tf.constant([self._first, self._oldest], tf.int64)

    def end(self) -> None:
        """Servers need not remember them longer; can be called again."""
        self._numbers.end(self._first)


class ShareSteps:
    """Base of a share, whose next steps keep their numbers if they run again.

    Attributes:
      number: function from a number of steps to their Begun; or None.
      is_step_lost: bool, whether the next steps have begun, and were lost.
    """

    number: Callable[[int], Begun] | None = None
    is_step_lost = False
    # Of the next steps, which may have changed rows; None before they begin.
    _begun: Begun | None = None

    def _numbers(self, steps: int) -> list[tf.Tensor]:
        """Begins the next steps, or once more; their `tensor`, if numbered."""
        if self.number is None:
            return []
        if self._begun is None:
            self._begun = self.number(steps)
        return [self._begun.tensor()]

    def _lose_step(self) -> None:
        """The next steps, if they have begun, run again."""
        self.is_step_lost = self._begun is not None

    def _end_step(self) -> None:
        """The next steps are others."""
        if self._begun is not None:
            self._begun.end()
            self._begun, self.is_step_lost = None, False

    def close(self) -> None:
        """Nothing is trained on any more."""
        self._end_step()


_of: weakref.WeakKeyDictionary[tf.distribute.Strategy, StepNumbers] = (
    weakref.WeakKeyDictionary()
)


def step_numbers(strategy: tf.distribute.Strategy) -> StepNumbers:
    """The StepNumbers of a strategy, whose models may share tables."""
    return _of.setdefault(strategy, StepNumbers())
