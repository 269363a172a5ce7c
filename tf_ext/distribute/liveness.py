"""Which tasks of a cluster have fallen silent, and how to be rid of them.

TensorFlow waits for a worker that is stopped, or cut off without a word, until
gRPC's keep-alive says that it is gone, and others wait with it: each function
that is new to the cluster, and each tensor that is freed, is told to all
workers. A worker whose connection has broken is lost at once: its step is given
to another, and when it answers again it is used again.
"""

import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import socket
import stat
import threading
import time
import weakref

from tf_ext.distribute import handshake
from tf_ext.distribute.addresses import split_address

# A task that has not answered for this long, in several attempts, is silent.
SILENT_SECONDS = 10.0
_ATTEMPT_SECONDS = 2.0
_PAUSE_SECONDS = 2.0
# What was found longer ago says nothing of now.
_STALE_SECONDS = 10.0
_THREADS = 64

_logger = logging.getLogger(__name__)


@dataclasses.dataclass
class _Problem:
    """Since when a task does not answer, and what was found last."""

    since: float
    seen: float
    why: str
    broken_off: bool = False


class Watch:
    """Looks at tasks now and then, and breaks off with silent workers.

    It ends with its last reference.

    Args:
      workers: dict of task name -> "host:port".
      servers: dict of task name -> "host:port".
    """

    def __init__(self, workers, servers):
        self._workers = dict(workers)
        self._tasks = {**workers, **servers}
        self._problems = {}
        threading.Thread(
            target=_keep_looking,
            args=(weakref.ref(self),),
            name="tf_ext_watch",
            daemon=True,
        ).start()

    def look(self):
        """Asks all tasks, and breaks off with workers that stay silent."""
        begin = time.monotonic()

        def ask(address):
            return handshake.problem(address, _ATTEMPT_SECONDS)

        threads = min(_THREADS, len(self._tasks))
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(ask, self._tasks.values()))
        for task, why in zip(self._tasks, found, strict=True):
            self._note(task, why, begin)
        for task, found in self._lasting(SILENT_SECONDS):
            if task in self._workers and not found.broken_off:
                found.broken_off = True
                self._break_off(task, found.why)

    def lost(self):
        """Tasks that have been silent for long, or refuse connections.

        Returns:
          dict of task name -> what was found, in words.
        """
        return {
            task: f"{self._tasks[task]} {found.why}"
            for task, found in self._lasting(SILENT_SECONDS)
        }

    def _lasting(self, seconds):
        now = time.monotonic()
        return [
            (task, found)
            for task, found in self._problems.copy().items()
            if now - found.since >= seconds
            and now - found.seen < _STALE_SECONDS
        ]

    def _note(self, task, why, begin):
        now = time.monotonic()
        known = self._problems.get(task)
        if why is None:
            self._problems.pop(task, None)
        elif known is None or begin - known.seen >= _STALE_SECONDS:
            self._problems[task] = _Problem(since=begin, seen=now, why=why)
        else:
            known.seen, known.why = now, why

    def _break_off(self, task, why):
        address = self._workers[task]
        if break_off(address):
            _logger.warning(
                "%s at %s %s. It is taken as lost: its step is given to "
                "another worker, and may count twice if this one goes on.",
                task,
                address,
                why,
            )


def _keep_looking(reference):
    while (watch := reference()) is not None:
        # When the program ends no thread can be started any more.
        with contextlib.suppress(RuntimeError):
            watch.look()
        del watch
        time.sleep(_PAUSE_SECONDS)


def break_off(address):
    """Shuts this process's connections to "host:port" down.

    Args:
      address: string, "host:port".

    Returns:
      int, how many there were.
    """
    with contextlib.suppress(OSError):
        peers = {
            _plain(info[4])
            for info in socket.getaddrinfo(
                *split_address(address), type=socket.SOCK_STREAM
            )
        }
        return sum(
            _shut_down_if(int(name), peers)
            for name in os.listdir("/proc/self/fd")
        )
    return 0


def _shut_down_if(descriptor, peers):
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        # Another Watch would find a connection that is closed, not a silence.
        if handshake.is_asking(descriptor):
            return False
        # The descriptor is gRPC's, which closes it when it sees the end.
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return False
            if _plain(connection.getpeername()) not in peers:
                return False
            connection.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _plain(name):
    """(host, port); IPv4 in IPv6 as IPv4."""
    return name[0].removeprefix("::ffff:"), name[1]
