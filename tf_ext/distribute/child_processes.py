# SPDX-License-Identifier: Apache-2.0
"""Processes that end with this one."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Sequence

from tf_ext.distribute import watchdog
from tf_ext.distribute.forked_processes import ForkedProcess, ForkServer

_STOP_SECONDS = 5.0


_Key = typing.TypeVar("_Key")


class ChildProcesses(typing.Generic[_Key]):
    """Processes that this one starts, each with its own process group.

    They are killed when this process ends, however it ends.

    Args:
      count: int, how many there will be. The processors are divided among them,
        unless the environment variable `TF_NUM_INTRAOP_THREADS` says how many
        threads each has.
      fork_server: `ForkServer` that starts them, which is not closed here.
        None: each is started by itself.
    """

    def __init__(
        self, count: int, fork_server: ForkServer | None = None
    ) -> None:
        self._threads = max(1, len(os.sched_getaffinity(0)) // count)
        self._processes: dict[
            _Key, subprocess.Popen[bytes] | ForkedProcess
        ] = {}
        self._watched: set[subprocess.Popen[bytes] | ForkedProcess] = set()
        self._lock = threading.Lock()
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__],
            stdin=subprocess.PIPE,
            text=True,
            # This process alone handles an interrupt from the terminal.
            start_new_session=True,
        )
        self._to_watchdog = typing.cast(typing.IO[str], self._watchdog.stdin)
        self._fork_server = fork_server

    def start(
        self,
        key: _Key,
        command: Sequence[str | os.PathLike[str]],
        output: typing.IO[bytes],
        log: typing.IO[bytes],
        **environment: str,
    ) -> None:
        """Starts a process, and replaces one of the same key that has ended.

        Args:
          key: what identifies it here.
          command: list of strings; for a fork server as of its `start`.
          output: file for standard output.
          log: file for standard error.
          **environment: variables that it gets, besides this process's.
        """
        environment = {
            "TF_NUM_INTRAOP_THREADS": str(self._threads),
            **task_environment(),
            **environment,
        }
        process: subprocess.Popen[bytes] | ForkedProcess
        if self._fork_server:
            process = self._fork_server.start(command, environment, output, log)
        else:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                start_new_session=True,
            )
        with self._lock:
            self._processes[key] = process
            self._tell("+", process)

    def __getitem__(self, key: _Key) -> subprocess.Popen[bytes] | ForkedProcess:
        """The process of a key, as `subprocess.Popen`; KeyError if none."""
        return self._processes[key]

    def keys(self) -> list[_Key]:
        """The keys of all processes that were started, ended or not."""
        return list(self._processes)

    def status(self, key: _Key) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        process = self._processes[key]
        if process.poll() is not None and process in self._watched:
            with self._lock:
                self._tell("-", process)
        return process.returncode

    def send(self, key: _Key, number: int) -> None:
        """Sends a signal to a process and to those that it has started."""
        if self.status(key) is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._processes[key].pid, number)

    def kill(self, key: _Key) -> None:
        """Ends a process at once, by SIGKILL, and waits until it has ended."""
        self.send(key, signal.SIGKILL)
        self._processes[key].wait()
        self.status(key)  # Tells the watchdog.

    def end_all(self) -> None:
        """Ends all by SIGTERM, and by SIGKILL those that do not end."""
        for key in self.keys():
            # A stopped process does not handle SIGTERM.
            self.send(key, signal.SIGTERM)
            self.send(key, signal.SIGCONT)
        deadline = time.monotonic() + _STOP_SECONDS
        for key in self.keys():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._processes[key].wait(max(0, deadline - time.monotonic()))
            self.kill(key)

    def close(self) -> None:
        """Ends all, for good."""
        self.end_all()
        self._watchdog.kill()
        self._to_watchdog.close()
        self._watchdog.wait()

    def _tell(
        self, sign: str, process: subprocess.Popen[bytes] | ForkedProcess
    ) -> None:
        (self._watched.add if sign == "+" else self._watched.discard)(process)
        self._to_watchdog.write(f"{sign}{process.pid}\n")
        self._to_watchdog.flush()


def task_environment() -> dict[str, str]:
    """The environment variables of a process of a cluster on this machine."""
    environment = dict(os.environ)
    environment.pop("TF_CONFIG", None)
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    # The same tf_ext, wherever this process has it from.
    own = str(pathlib.Path(__file__).resolve().parents[2])
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join(
        [own, *filter(None, [inherited])]
    )
    return environment
