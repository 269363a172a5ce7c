# SPDX-License-Identifier: Apache-2.0
"""Processes that start at once, as forks of one that has TensorFlow."""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import typing
from collections.abc import Sequence

from tf_ext.distribute import fork_server

_LOG_END_CHARACTERS = 4000
_POLL_SECONDS = 0.01


class ForkServer:
    """A process that imports TensorFlow once for all that it forks.

    It ends when it is closed, and when this process ends, however it ends.

    Args:
      environment: dict of its environment variables. What TensorFlow reads
        while it is imported, such as `TF_CPP_MIN_LOG_LEVEL`, its forks have
        from here.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._log = tempfile.TemporaryFile()
        self._lock = threading.Lock()
        self._running: dict[int, ForkedProcess] = {}
        self._numbers = itertools.count()
        self._environment = environment
        self._channel, self._process = self._start()

    def _start(self) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
        """Starts the process; the socket to it keeps the bounds of messages."""
        channel, other = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )
        with other:
            process = subprocess.Popen(
                [
                    *[sys.executable, "-P", fork_server.__file__],
                    str(other.fileno()),
                ],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[other.fileno()],
                # This process alone handles an interrupt from the terminal.
                start_new_session=True,
            )
        return channel, process

    def start(
        self,
        arguments: Sequence[str | os.PathLike[str]],
        environment: dict[str, str],
        output: typing.IO[bytes],
        log: typing.IO[bytes],
        folder: str | os.PathLike[str] | None = None,
    ) -> "ForkedProcess":
        """Starts a process in a session of its own.

        Args:
          arguments: list of strings or paths, what follows `python` in its
            command line: "-m" and a module, or a program; and their arguments.
          environment: dict of its environment variables.
          output: file for standard output.
          log: file for standard error.
          folder: string or path, its working folder. None: this process's.

        Returns:
          The `ForkedProcess`.

        Raises:
          RuntimeError: TensorFlow cannot be imported, or the server has ended;
            with the end of its log.
        """
        command = list(map(str, arguments))
        number = next(self._numbers)
        message = {
            "number": number,
            "arguments": command,
            "folder": str(folder or os.getcwd()),
            "set": {
                name: value
                for name, value in environment.items()
                if self._environment.get(name) != value
            },
            "unset": [n for n in self._environment if n not in environment],
        }
        with self._lock:
            try:
                socket.send_fds(
                    self._channel,
                    [json.dumps(message).encode()],
                    [output.fileno(), log.fileno()],
                )
                while (process := self._receive(wanted=number)) is None:
                    pass
            except (ConnectionError, EOFError) as error:
                raise RuntimeError(
                    "The process that forks others has ended with status "
                    f"{self._process.wait()}. Its log ends with:\n"
                    f"{self._log_text()}"
                ) from error
        process.args = command
        return process

    def update(self) -> None:
        """Sets the `returncode` of the processes that have ended."""
        with self._lock:
            try:
                while True:
                    self._receive(socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except (ConnectionError, EOFError):
                # Nobody can say any more how they end.
                for process in self._running.values():
                    _send(process.pid, signal.SIGKILL)
                    process.returncode = -signal.SIGKILL
                self._running.clear()

    def close(self) -> None:
        """Ends the server, and the processes that still run.

        Those are processes of which an interrupted program does not know.
        """
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown(socket.SHUT_WR)
            while True:
                self._receive()
        for pid in self._running:
            _send(pid, signal.SIGKILL)
        self._channel.close()
        self._process.wait()
        self._log.close()

    def _receive(
        self, flags: int = 0, wanted: int | None = None
    ) -> "ForkedProcess | None":
        """Takes an answer; returns the process if it is that to `wanted`."""
        answer = self._channel.recv(fork_server.MESSAGE_BYTES, flags)
        if not answer:
            raise EOFError
        pid, status, number = json.loads(answer)
        if status is not None:
            self._running.pop(pid).returncode = status
            return None
        process = self._running[pid] = ForkedProcess(self, [], pid)
        if number == wanted:
            return process
        _send(pid, signal.SIGKILL)  # `start` was interrupted.
        return None

    def _log_text(self) -> str:
        self._log.seek(0)
        return log_end(self._log.read().decode(errors="replace"))


class ForkedProcess:
    """A fork of a `ForkServer`, with the interface of `subprocess.Popen`.

    Attributes:
      args: list of strings, what follows `python` in its command line.
      pid: int, which is also its process group.
      returncode: int, its exit status, negative for a signal; None while it
        runs, as far as `poll` and `wait` have found.
    """

    def __init__(self, server: ForkServer, args: list[str], pid: int) -> None:
        self._server = server
        self.args = args
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        if self.returncode is None:
            self._server.update()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended; its exit status.

        Raises:
          subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        begin = time.monotonic()
        while (status := self.poll()) is None:
            if timeout is not None and time.monotonic() >= begin + timeout:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(_POLL_SECONDS)
        return status

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Sends a signal to it, unless it has ended."""
        if self.poll() is None:
            _send(self.pid, number)


def log_end(text: str) -> str:
    """The last lines of a log, as errors show them."""
    return text[-_LOG_END_CHARACTERS:]


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
