# SPDX-License-Identifier: Apache-2.0
"""Hands tasks to running processes, and takes their results: in files.

All processes of a folder run each of its tasks, in order. Tasks and results are
whatever pickle takes.
"""

import itertools
import pathlib
import pickle
import time
import traceback
import typing

_POLL_SECONDS = 0.02
# The other processes may wait for the one that has failed, in a collective.
_AFTER_A_FAILURE_SECONDS = 5


class _Failure(typing.NamedTuple):
    text: str


def run_all(folder, rank, run):
    """Runs the tasks of a folder as they come, until the process is ended.

    Args:
      folder: path.
      rank: int, of this process among those of the folder.
      run: a function from a task to its result.
    """
    folder = pathlib.Path(folder)
    for number in itertools.count():
        path = _task_path(folder, number)
        while not path.exists():
            time.sleep(_POLL_SECONDS)
        try:
            result = run(pickle.loads(path.read_bytes()))
        except Exception:
            result = _Failure(traceback.format_exc())
            print(result.text, flush=True)
        _write(_result_path(folder, number, rank), result)


class Tasks:
    """The tasks of a folder, as their sender sees them.

    Args:
      folder: path.
      size: int, the number of processes.
      has_ended: a function, whether one of them has ended.
      log: a function to a string, what they wrote.
    """

    def __init__(self, folder, size, has_ended, log):
        self._folder = pathlib.Path(folder)
        self._size = size
        self._has_ended = has_ended
        self._log = log
        self._sent = 0

    def send(self, task):
        """Sends a task; its number."""
        _write(_task_path(self._folder, self._sent), task)
        self._sent += 1
        return self._sent - 1

    def results(self, number, timeout_seconds):
        """What the processes returned for a task, a list.

        Raises:
          AssertionError: a process has raised an error, or has ended; the
            message has the tracebacks, or what the processes wrote.
          TimeoutError: it took too long; likewise.
        """
        paths = [
            _result_path(self._folder, number, rank)
            for rank in range(self._size)
        ]
        deadline = time.monotonic() + timeout_seconds
        found = {}
        while len(found) < self._size:
            if self._has_ended():
                raise AssertionError(f"A process ended:\n{self._log()}")
            if time.monotonic() > deadline:
                if failures := _failures(found):
                    raise AssertionError(failures)
                raise TimeoutError(
                    f"More than {timeout_seconds:g} s:\n{self._log()}"
                )
            time.sleep(_POLL_SECONDS)
            for path in paths:
                if path not in found and path.exists():
                    found[path] = pickle.loads(path.read_bytes())
                    if isinstance(found[path], _Failure):
                        soon = time.monotonic() + _AFTER_A_FAILURE_SECONDS
                        deadline = min(deadline, soon)
        if failures := _failures(found):
            raise AssertionError(failures)
        return [found[path] for path in paths]


def _failures(found):
    return "\n".join(v.text for v in found.values() if isinstance(v, _Failure))


def _task_path(folder, number):
    return folder / f"{number}.task"


def _result_path(folder, number, rank):
    return folder / f"{number}.{rank}"


def _write(path, value):
    """Writes a file which others see whole or not at all."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_bytes(pickle.dumps(value))
    unfinished.rename(path)
