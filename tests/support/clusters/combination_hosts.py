# SPDX-License-Identifier: Apache-2.0
"""Starts the processes that run programs of the combination test."""

import contextlib
import os
import pathlib
import pickle
import tempfile
import time

import processes
from oracles.combination_axes import WORKERS

from clusters import multi_worker_util

_TIMEOUT_SECONDS = 300
_POLL_SECONDS = 0.02


class Hosts:
    """Processes that run programs, each started when first needed.

    One that has failed in a collective, or takes too long, is ended, and
    started again for the next program.
    """

    def __init__(self):
        self._stack = contextlib.ExitStack()
        self._hosts = {}

    def start(self, kind, *task):
        """Lets a host begin with a task.

        Args:
          kind: string, of the host.
          *task: the name of a function of combination_program, and its
            arguments.

        Returns:
          A function that waits and returns the results of its processes, a
          list. It raises AssertionError if one failed.
        """
        host = self._hosts.get(kind)
        if host is None or host.is_broken:
            self._hosts[kind] = host = self._stack.enter_context(_Host(kind))
        number = host.send(task)
        return lambda: host.results(number)

    def close(self):
        """Ends all processes."""
        self._stack.close()


class _Host:
    """The processes of a kind of host."""

    def __init__(self, kind):
        self._kind = kind
        self._sent = 0
        self.is_broken = False

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="tf_ext_host_")
            self._folder = pathlib.Path(stack.enter_context(folder))
            program, arguments = (
                "combination_program.py",
                [
                    self._kind.split()[0],
                    str(self._folder),
                ],
            )
            if self._kind in WORKERS:
                self._size = WORKERS[self._kind]
                running = multi_worker_util.started(
                    program, *arguments, workers=self._size
                )
                self._running = stack.enter_context(running)
                self._log = self._running.describe
            else:
                self._size = 1
                self._running = stack.enter_context(
                    processes.Program(program, *arguments)
                )
                self._log = self._running.log
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def send(self, task):
        """Sends a task; its number."""
        path = self._folder / f"{self._sent}.task"
        part = path.with_suffix(".part")
        part.write_bytes(pickle.dumps(task))
        os.replace(part, path)
        self._sent += 1
        return self._sent - 1

    def results(self, number):
        """The results of a task, a list with one for each process."""
        paths = [self._folder / f"{number}.{i}" for i in range(self._size)]
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not all(path.exists() for path in paths):
            done = [path for path in paths if path.exists()]
            failed = [p for p in done if pickle.loads(p.read_bytes())[1]]
            if failed:
                # The others may wait for it in a collective.
                time.sleep(5)
                break
            if time.monotonic() > deadline or self._has_ended():
                self.is_broken = True
                raise AssertionError(
                    f"No result of {self._kind}:\n{self._log()[-6000:]}"
                )
            time.sleep(_POLL_SECONDS)
        found = [pickle.loads(p.read_bytes()) for p in paths if p.exists()]
        errors = [error for _, error in found if error]
        if errors:
            self.is_broken = self._size > 1 or self._kind == "servers"
            raise AssertionError(f"In {self._kind}:\n" + "\n".join(errors))
        return [result for result, _ in found]

    def _has_ended(self):
        if self._size == 1:
            return self._running.has_ended()
        return any(s is not None for s in self._running.statuses().values())
