# SPDX-License-Identifier: Apache-2.0
"""Work of which most is done beside training.

It is a generator of parts: functions that need nothing that training changes,
and no collective. What it does between parts may need both.
"""

import threading
import typing
from collections.abc import Callable, Generator

from tf_ext.regimes.processes import Processes

Parts: typing.TypeAlias = Generator[Callable[[], object], None, None]

# How long training that was interrupted waits for a part that is under way.
_PATIENCE_SECONDS = 5.0


def run(parts: Parts, processes: Processes, what: str) -> None:
    """Runs all parts here, and what is between them.

    Args:
      parts: Parts.
      processes: Processes, all of which call this.
      what: string, for messages.
    """
    try:
        for part in parts:
            with processes.together(what):
                part()
    finally:
        parts.close()


class Beside:
    """Parts that run in another thread.

    One process alone runs what is between them there, too. Several do that
    when all call `go_on`, as their collectives must have one order.

    Args:
      parts: Parts; what it does before the first is done at once, here.
      processes: Processes, all of which make one.
      what: string, for messages.
    """

    def __init__(self, parts: Parts, processes: Processes, what: str) -> None:
        self._parts = parts
        self._processes = processes
        self._what = what
        self._task: _Task | None = None
        try:
            self._begin_next()
        except BaseException:
            self.abandon()
            raise

    def _begin_next(self) -> None:
        self._task = None
        part = next(self._parts, None)
        if part is None:
            return
        alone = self._processes.count == 1
        self._task = _Task((lambda: self._run_all(part)) if alone else part)
        self._task.start()

    def _run_all(self, first: Callable[[], object]) -> None:
        try:
            first()
            run(self._parts, self._processes, self._what)
        finally:
            self._parts.close()

    def go_on(self, wait: bool = False) -> bool:
        """Does what can be done now; all processes call it.

        Args:
          wait: bool, whether it waits for all of the parts.

        Returns:
          Whether all is done.

        Raises:
          The first error of a part, on all processes; then all is done, too.
        """
        while self._task is not None:
            ended = wait or self._processes.int_of_first(int(self._task.ended))
            if not ended:
                return False
            try:
                with self._processes.together(self._what):
                    self._task.wait()
                self._begin_next()
            except BaseException:
                self.abandon()
                raise
        return True

    def abandon(self) -> None:
        """Ends what is under way, unless it takes too long."""
        task, self._task = self._task, None
        has_begun = task is not None and task.end(_PATIENCE_SECONDS)
        if self._processes.count > 1 or not has_begun:
            self._parts.close()


class _Task:
    """A function that runs in a thread.

    The thread does not keep Python from ending: a file system may hang. It does
    not run the function if `end` comes first, as after an interrupt of `start`,
    which may leave a thread that is not known to have started.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._has_begun = False
        self._is_abandoned = False
        # Held until it ends. An interrupt in an Event could leave that locked.
        self._running = threading.Lock()
        self._running.acquire()
        self._thread = threading.Thread(
            target=self._run, name="tf_ext_point", daemon=True
        )

    def start(self) -> None:
        """Begins to run it."""
        self._thread.start()

    def _run(self) -> None:
        self._has_begun = True
        try:
            if not self._is_abandoned:
                self._function()
        except BaseException as error:
            self._error = error
        finally:
            self._running.release()

    @property
    def ended(self) -> bool:
        return not self._running.locked()

    def wait(self) -> None:
        """Waits for the end; raises the function's error."""
        with self._running:
            pass
        if self._error is not None:
            raise self._error

    def end(self, seconds: float) -> bool:
        """Waits for the end, for so long; returns whether it has begun."""
        self._is_abandoned = True
        if self._has_begun and self._running.acquire(timeout=seconds):
            self._running.release()
        return self._has_begun
