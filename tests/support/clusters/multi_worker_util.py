# SPDX-License-Identifier: Apache-2.0
"""Runs a program of the tests as several workers of a cluster on loopback."""

import contextlib
import functools
import json
import os
from unittest import mock

import processes
from paths import PROGRAMS

from tf_ext import distribute
from tf_ext.distribute import child_processes, local_workers


@contextlib.contextmanager
def forks():
    """Lets local workers start as forks, by commands without `python`."""
    environment = processes.program_environment()
    server = processes.fork_server(environment)
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(
            local_workers,
            "ChildProcesses",
            functools.partial(
                child_processes.ChildProcesses, fork_server=server
            ),
        ),
    ):
        yield


@contextlib.contextmanager
def started(program, *arguments, workers=2, start=None):
    """`tests/support/programs/<program>` as running workers.

    Args:
      program: string, the file's name.
      *arguments: of its command line.
      workers: int, the number of workers of the cluster.
      start: the workers that are started. None: all.

    Yields:
      A `LocalWorkers`. What the workers wrote is printed in the end, which
      pytest shows if the test fails.
    """
    with (
        forks(),
        distribute.LocalWorkers(
            [PROGRAMS / program, *arguments], workers, start
        ) as running,
    ):
        try:
            yield running
        finally:
            print(running.describe())


def has_ended(running):
    """Whether one of `LocalWorkers` has ended."""
    return any(status is not None for status in running.statuses().values())


def run(program, *arguments, workers=2, timeout_seconds=240):
    """Runs `tests/support/programs/<program>` as workers to their ends.

    Args:
      program: string, the file's name.
      *arguments: of its command line.
      workers: int, the number of workers.
      timeout_seconds: float; workers that take longer are killed.

    Returns:
      What each worker wrote to standard output, a string a worker.

    Raises:
      AssertionError: if a worker failed; the message has all workers' output.
      TimeoutError: if they took too long; likewise.
    """
    with started(program, *arguments, workers=workers) as running:
        results = running.wait(timeout_seconds)
        if any(result.status for result in results):
            raise AssertionError(f"{program} failed.\n{running.describe()}")
    return [result.output for result in results]


def run_json(program, *arguments, **options):
    """As `run`, but returns the JSON of each worker's last line of output."""
    return [
        json.loads(output.splitlines()[-1])
        for output in run(program, *arguments, **options)
    ]
