# SPDX-License-Identifier: Apache-2.0
"""Starts the processes that run programs of the combination test."""

import contextlib
import functools
import tempfile

import processes
from oracles.combination_axes import WORKERS

from clusters import multi_worker_util
from clusters.tasks import Tasks

_TIMEOUT_SECONDS = 300


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
        self.is_broken = False

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="tf_ext_host_")
            )
            self._size = WORKERS.get(self._kind, 1)
            command = "combination_program.py", self._kind.split()[0], folder
            if self._kind in WORKERS:
                running = stack.enter_context(
                    multi_worker_util.started(*command, workers=self._size)
                )
                has_ended = functools.partial(
                    multi_worker_util.has_ended, running
                )
                log = running.describe
            else:
                running = stack.enter_context(processes.Program(*command))
                has_ended, log = running.has_ended, running.log
            self._has_ended = has_ended
            self._tasks = Tasks(folder, self._size, has_ended, log)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self._stack.close()

    def send(self, task):
        """Sends a task; its number."""
        return self._tasks.send(task)

    def results(self, number):
        """The results of a task, a list with one for each process."""
        try:
            return self._tasks.results(number, _TIMEOUT_SECONDS)
        except (AssertionError, TimeoutError) as error:
            # After an error, a process without others is as it was.
            self.is_broken = (
                self._size > 1
                or self._kind == "servers"
                or isinstance(error, TimeoutError)
                or self._has_ended()
            )
            raise AssertionError(f"In {self._kind}:\n{error}") from error
