# SPDX-License-Identifier: Apache-2.0
"""Cases that run on synchronous workers, many in one start.

A case is a function of a `Worker` in a module of cases. A test compares its
results on the workers with its result in one process, or with numbers computed
in another way.
"""

import contextlib
import tempfile

import numpy as np
import tensorflow as tf
from paths import PROGRAMS

from clusters import multi_worker_util
from clusters.tasks import Tasks
from tf_ext import distribute


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
        self._tasks = None

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
        if self._tasks is None:
            self._start()
        try:
            return self._tasks.results(
                self._tasks.send(name), self._timeout_seconds
            )
        except BaseException:
            self.stop()
            raise

    def _start(self):
        with self._processes as processes:
            folder = processes.enter_context(
                tempfile.TemporaryDirectory(prefix="tf_ext_cases_")
            )
            with multi_worker_util.forks():
                running = processes.enter_context(
                    distribute.LocalWorkers(
                        [PROGRAMS / "case_worker_program.py", folder],
                        self._size,
                    )
                )
            self._tasks = Tasks(
                folder,
                self._size,
                lambda: multi_worker_util.has_ended(running),
                running.describe,
            )
            self._processes = processes.pop_all()

    def stop(self):
        """Ends the processes, if they run."""
        self._tasks = None
        self._processes.close()


_shared = {}


def shared_workers(size):
    """The `Workers` of that number, which tests of this process share."""
    return _shared.setdefault(size, Workers(size))


def stop_shared():
    """Ends all that `shared_workers` returned; when all tests have run."""
    for workers in _shared.values():
        workers.stop()


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
