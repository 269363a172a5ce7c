# SPDX-License-Identifier: Apache-2.0
"""Notices of preemption: SIGTERM, some time before the process is killed."""

import contextlib
import signal
import threading
import types
import typing
from collections.abc import Iterator

# The status of a process that SIGTERM has ended, as shells and containers
# report it: what starts processes again takes it as no failure of the program.
STATUS = 128 + signal.SIGTERM


class Notice:
    """Notes SIGTERM inside a block, where it does not end the process.

    Attributes:
      received: bool, whether the signal has come.
    """

    def __init__(self) -> None:
        self.received = False

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """The block in which the signal is noted.

        If the block raises an Exception after the signal, the signal takes
        effect: the program must not go on as if there was time.

        Raises:
          ValueError: this is not the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "Argument `on_sigterm` of TableSnapshot must be False outside "
                "of the main thread, as Python handles signals there. "
                "Received: on_sigterm=True"
            )
        before = signal.getsignal(signal.SIGTERM)
        try:
            try:
                signal.signal(signal.SIGTERM, self._note)
                yield
            except Exception:
                self._restore(before)
                if self.received:
                    signal.raise_signal(signal.SIGTERM)
                raise
            finally:
                self._restore(before)
        finally:  # Also if an interrupt comes while it is restored.
            self._restore(before)

    def _note(self, number: int, frame: types.FrameType | None) -> None:
        del number, frame
        self.received = True

    @staticmethod
    def _restore(handler: typing.Any) -> None:
        # None stands for a handler that Python cannot set.
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
