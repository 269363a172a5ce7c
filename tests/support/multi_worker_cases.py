"""Cases that run on synchronous workers, many in one start.

A case is a function of a `Worker` in a module of cases. A test compares its
results on the workers with its result in one process, or with numbers computed
in another way.
"""

import collections
import functools
import pickle
import tempfile

import multi_worker_util
import numpy as np
import tensorflow as tf

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


class Cases:
    """The results of cases, which share one start of workers.

    Args:
      modules: list of modules, each with a list `CASES` of functions' names.
      workers: int, the number of workers.
      timeout_seconds: float, for all cases together.
    """

    def __init__(self, modules, workers, timeout_seconds=500):
        self._names = [
            f"{module.__name__}.{case}"
            for module in modules
            for case in module.CASES
        ]
        self._workers = workers
        self._timeout_seconds = timeout_seconds

    def __getitem__(self, case):
        """The results of a function, a list with a value for each worker.

        Raises:
          AssertionError: if it failed; the message has the tracebacks.
        """
        key = f"{case.__module__}.{case.__name__}"
        if isinstance(self._results, Exception):
            raise self._results
        results = [result[key] for result in self._results]
        failures = [r.text for r in results if isinstance(r, Failure)]
        if failures:
            raise AssertionError("\n".join(failures))
        return results

    @functools.cached_property
    def _results(self):
        """Each worker's `{case: result}`, or its error."""
        try:
            return self._run()
        except (AssertionError, TimeoutError) as error:
            return error

    def _run(self):
        with tempfile.TemporaryDirectory(prefix="tf_ext_cases_") as folder:
            output = f"{folder}/results"
            multi_worker_util.run(
                "multi_worker_cases_program.py",
                *(output, *self._names),
                workers=self._workers,
                timeout_seconds=self._timeout_seconds,
            )
            results = []
            for rank in range(self._workers):
                with open(f"{output}.{rank}", "rb") as file:
                    results.append(pickle.load(file))
        return results


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
