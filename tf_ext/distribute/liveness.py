# SPDX-License-Identifier: Apache-2.0
"""Detects tasks that do not answer, and disconnects from them.

TensorFlow waits for a task that is stopped, or whose network is cut, until
gRPC's keep-alive reports it lost. Other workers wait with it, because each new
function and each freed tensor is announced to all of them. A worker whose
connection has broken is lost at once: another one gets its step, and it is used
again when it answers again. A server that is silent for longer than a
connection survives is lost as well.
"""

import contextlib
import dataclasses
import socket
import threading
import time
import weakref
from collections.abc import Mapping

from tf_ext._compat.clusters import plain_address, shut_connections_down
from tf_ext._compat.grpc_options import KEEPALIVE_TIMEOUT_SECONDS
from tf_ext.distribute import handshake, this_task
from tf_ext.distribute.addresses import split_address
from tf_ext.distribute.slow_tasks import SlowTasks

# A task that has not answered for this long, in several attempts, counts as
# silent.
SILENT_SECONDS = 10.0
# The same of a server, whose loss costs what was trained since the last point.
# Its connections wait as long for what they sent.
SILENT_SERVER_SECONDS = float(KEEPALIVE_TIMEOUT_SECONDS)
_ATTEMPT_SECONDS = 2.0
_PAUSE_SECONDS = 2.0
# Results older than this are out of date.
_STALE_SECONDS = 10.0
# How often a worker's connections are broken off. TensorFlow connects again at
# once, for what it still has to send, and the steps of others may wait until
# that fails, too. It waits longer before each new attempt.
_BREAKS = 3

_LOST_WORKER = (
    "its step is given to another worker, and may count twice in dense weights "
    "if this one resumes; with `retry_steps=False`, `fit` fails"
)
_LOST_SERVER = "training resumes from the last checkpoint"

_logger = this_task.logger(__name__)


@dataclasses.dataclass
class _Problem:
    """Since when a task has not answered, and the last result."""

    since: float
    seen: float
    why: str
    broken_off: int = 0


class Watch:
    """Checks tasks periodically, and disconnects from silent ones.

    Those that answer slowly are logged. It ends when its last reference is
    gone.

    Args:
      workers: dict of task name -> "host:port".
      servers: dict of task name -> "host:port".
    """

    def __init__(
        self, workers: Mapping[str, str], servers: Mapping[str, str]
    ) -> None:
        self._workers = dict(workers)
        self._tasks = {**workers, **servers}
        self._problems: dict[str, _Problem] = {}
        self._slow = SlowTasks(self._tasks)
        threading.Thread(
            target=_keep_looking,
            args=(weakref.ref(self),),
            name="tf_ext_watch",
            daemon=True,
        ).start()

    def look(self) -> None:
        """Checks all tasks, and disconnects from those that stay silent."""
        begin = time.monotonic()
        answers = handshake.answers(self._tasks, _ATTEMPT_SECONDS)
        for task, answer in answers.items():
            self._note(task, answer.problem, begin)
            if answer.problem is None:
                self._slow.add(task, answer.seconds)
        self._slow.log()
        for task, found in self._lasting(SILENT_SECONDS):
            if task in self._workers and found.broken_off < _BREAKS:
                self._break_off(task, found, _LOST_WORKER)
        for task, found in self._lasting(SILENT_SERVER_SECONDS):
            if task not in self._workers and found.broken_off < _BREAKS:
                self._break_off(task, found, _LOST_SERVER)

    def answer_seconds(self) -> dict[str, float]:
        """How long tasks take to answer, by name: medians of the last times."""
        return self._slow.medians()

    def lost(self) -> dict[str, str]:
        """Tasks that have been silent for long, or refuse connections.

        Returns:
          dict of task name -> the last result, as a text.
        """
        return {
            task: f"{self._tasks[task]} {found.why}"
            for task, found in self._lasting(SILENT_SECONDS)
        }

    def _lasting(self, seconds: float) -> list[tuple[str, _Problem]]:
        now = time.monotonic()
        return [
            (task, found)
            for task, found in self._problems.copy().items()
            if now - found.since >= seconds
            and now - found.seen < _STALE_SECONDS
        ]

    def _note(self, task: str, why: str | None, begin: float) -> None:
        now = time.monotonic()
        known = self._problems.get(task)
        if why is None:
            self._problems.pop(task, None)
        elif known is None or begin - known.seen >= _STALE_SECONDS:
            self._problems[task] = _Problem(since=begin, seen=now, why=why)
        else:
            known.seen, known.why = now, why

    def _break_off(self, task: str, found: _Problem, meaning: str) -> None:
        address = self._tasks[task]
        if not break_off(address):
            return
        found.broken_off += 1
        if found.broken_off == 1:
            _logger.warning(
                "%s at %s %s. It counts as lost: %s.",
                task,
                address,
                found.why,
                meaning,
            )


def _keep_looking(reference: weakref.ref[Watch]) -> None:
    while (watch := reference()) is not None:
        # At the end of the program no thread can be started.
        with contextlib.suppress(RuntimeError):
            watch.look()
        del watch
        time.sleep(_PAUSE_SECONDS)


def break_off(address: str) -> int:
    """Shuts this process's connections to "host:port" down.

    Args:
      address: string, "host:port".

    Returns:
      int, how many there were.
    """
    with contextlib.suppress(OSError):
        peers = {
            plain_address(info[4])
            for info in socket.getaddrinfo(
                *split_address(address), type=socket.SOCK_STREAM
            )
        }
        # Otherwise another Watch would find a closed connection instead of no
        # answer.
        return shut_connections_down(peers, handshake.is_asking)
    return 0
