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
        self._begin_next()

    def _begin_next(self) -> None:
        part = next(self._parts, None)
        if part is None:
            self._task = None
        elif self._processes.count > 1:
            self._task = _Task(part)
        else:
            self._task = _Task(lambda: self._run_all(part))

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
        if task is not None:
            task.end(_PATIENCE_SECONDS)
        if self._processes.count > 1:
            self._parts.close()


class _Task:
    """A function that runs in a thread.

    The thread does not keep Python from ending: a file system may hang.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name="tf_ext_point", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:
            self._error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Waits for the end; raises the function's error."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def end(self, seconds: float) -> None:
        self._thread.join(seconds)
