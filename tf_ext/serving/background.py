# SPDX-License-Identifier: Apache-2.0
"""Objects that update themselves in a background thread until closed."""

import contextlib
import logging
import threading
import types
import typing

from tf_ext._checks import is_finite, refuse

_LOG = logging.getLogger("tf_ext")


def check_interval(owner: str, every: float | None) -> None:
    """Raises ValueError unless `every` is a number of seconds, or None."""
    if every is not None and not (is_finite(every) and every > 0):
        allowed = "a positive finite number of seconds, or None"
        refuse(owner, "every", allowed, every)


class BackgroundUpdates:
    """Calls `update` every few seconds, until `close`.

    A class that is derived from it implements `update`, which sets `error`, and
    `_complaint`, and may extend `_end_block`. Errors do not end the thread;
    each is logged when it is new.

    Attributes:
      error: Exception or None, the reason why the last attempt did not find, or
        could not use, what is newest.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._logged = ""

    def update(self) -> bool:
        """Updates the object; returns whether it did."""
        raise NotImplementedError

    def _complaint(self) -> str:
        """What is logged before an error."""
        raise NotImplementedError

    def _start(self, name: str, every: float | None) -> None:
        """Starts the thread, unless `every` is None."""
        if every is None:
            return
        self._thread = threading.Thread(
            target=self._run, name=name, args=[every], daemon=True
        )
        self._thread.start()

    def _run(self, every: float) -> None:
        while not self._closed.wait(every):
            self._attempt()

    def _attempt(self) -> None:
        """Calls `update`, whose error is logged instead of raised."""
        with contextlib.suppress(Exception):
            self.update()
        text = "" if self.error is None else str(self.error)
        if text and text != self._logged:
            _LOG.warning("%s %s", self._complaint(), text)
        self._logged = text

    def close(self) -> None:
        """Stops the thread, after an update that is under way."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> typing.Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self.close()
        if exc_type is None:
            self._end_block()

    def _end_block(self) -> None:
        """Called at the end of a `with` block, unless an error has ended it."""
