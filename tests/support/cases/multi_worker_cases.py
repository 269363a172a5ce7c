# SPDX-License-Identifier: Apache-2.0
"""Cases that run on synchronous workers, many in one start.

A case is a function of a `Worker` in a module of cases. A test compares its
results on the workers with its result in one process, or with numbers computed
in another way.
"""

import collections
import contextlib
import pathlib
import pickle
import tempfile
import time

import numpy as np
import tensorflow as tf
from clusters import multi_worker_util
from paths import PROGRAMS

from tf_ext import distribute

POLL_SECONDS = 0.02

Failure = collections.namedtuple("Failure", ["text"])


class Worker:
    """A process that runs cases, with others or alone.

    Args:
      strategy: tf.distribute.Strategy.
      rank: int, the index of this worker.
      size: int, the number of workers.
    """

    def __init__(self, strategy, rank, size):
        self.strategy = strategy
        self.rank = rank
        self.size = size

    def part(self, batch):
        """This worker's part of the rows of a structure of arrays."""
        return tf.nest.map_structure(
            lambda v: v[
                len(v) * self.rank // self.size : len(v)
                * (self.rank + 1)
                // self.size
            ],
            batch,
        )


def alone():
    """A process without others."""
    return Worker(tf.distribute.get_strategy(), 0, 1)


class Workers:
    """Worker processes of a cluster, which run cases when tests ask for them.

    They start with the first case. After one that fails they are replaced, so
    that it is not the others' failure as well.

    Args:
      size: int, the number of workers.
      timeout_seconds: float, for a case.
    """

    def __init__(self, size, timeout_seconds=240):
        self._size = size
        self._timeout_seconds = timeout_seconds
        self._results = {}
        self._processes = contextlib.ExitStack()
        self._running = None
        self._requests = 0

    def __getitem__(self, case):
        """The results of a function, a list with a value for each worker.

        It runs once, whoever asks.

        Raises:
          AssertionError: it failed; the message has the tracebacks.
          TimeoutError: it took too long; the message has what workers wrote.
        """
        name = f"{case.__module__}.{case.__name__}"
        if name not in self._results:
            try:
                self._results[name] = self._run(name)
            except (AssertionError, TimeoutError) as error:
                self._results[name] = error
        results = self._results[name]
        if isinstance(results, Exception):
            raise results
        return results

    def _run(self, name):
        if self._running is None:
            self._start()
        self._requests += 1
        write(request_path(self._folder, self._requests), name.encode())
        paths = [
            result_path(self._folder, self._requests, rank)
            for rank in range(self._size)
        ]
        try:
            self._wait(name, paths)
            results = [pickle.loads(path.read_bytes()) for path in paths]
            failures = [r.text for r in results if isinstance(r, Failure)]
            if failures:
                raise AssertionError("\n".join(failures))
        except BaseException:
            self.stop()
            raise
        return results

    def _start(self):
        with self._processes as processes:
            self._folder = processes.enter_context(
                tempfile.TemporaryDirectory(prefix="tf_ext_cases_")
            )
            with multi_worker_util.forks():
                self._running = processes.enter_context(
                    distribute.LocalWorkers(
                        [
                            PROGRAMS / "multi_worker_cases_program.py",
                            self._folder,
                        ],
                        self._size,
                    )
                )
            self._processes = processes.pop_all()

    def _wait(self, name, paths):
        deadline = time.monotonic() + self._timeout_seconds
        while not all(path.exists() for path in paths):
            if any(v is not None for v in self._running.statuses().values()):
                raise AssertionError(
                    f"{name} ended a worker.\n{self._running.describe()}"
                )
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{name} took more than {self._timeout_seconds:g} s.\n"
                    f"{self._running.describe()}"
                )
            time.sleep(POLL_SECONDS)

    def stop(self):
        """Ends the processes, if they run."""
        self._running = None
        self._requests = 0
        self._processes.close()


_shared = {}


def shared_workers(size):
    """The `Workers` of that number, which tests of this process share."""
    return _shared.setdefault(size, Workers(size))


def stop_shared():
    """Ends all that `shared_workers` returned; when all tests have run."""
    for workers in _shared.values():
        workers.stop()


def request_path(folder, number):
    """The file with the name of the case that is asked for, counted from 1."""
    return pathlib.Path(folder, f"request.{number}")


def result_path(folder, number, rank):
    """The file with a worker's result, pickled."""
    return pathlib.Path(folder, f"result.{number}.{rank}")


def write(path, data):
    """Writes a file which others see whole or not at all."""
    unfinished = path.with_name(f"unfinished.{path.name}")
    unfinished.write_bytes(data)
    unfinished.rename(path)


def export(table):
    """The rows that this worker owns: `{field: {sign: values}}`."""
    signs, fields = table.export_rows()
    return {
        name: dict(zip(signs.tolist(), np.asarray(values)))
        for name, values in fields.items()
    }


def merge_rows(exports):
    """Merges the results of `export` on several workers."""
    merged = {}
    for fields in exports:
        for name, rows in fields.items():
            both = merged.setdefault(name, {}).keys() & rows.keys()
            assert not both, f"Signs {both} are on several workers."
            merged[name].update(rows)
    return merged
