"""The best candidates for queries, compared with other libraries."""

import contextlib
import os
import pathlib
import sys

import remote
from harness import Case, measure, report

_PROGRAM = pathlib.Path(__file__).with_name("retrieval_worker.py")
_CANDIDATES = 100_000
_QUERIES = (1, 16, 256)
_TOP = (10, 100)
# What runs in each Keras: the value of TF_USE_LEGACY_KERAS.
_LIBRARIES = {
    "0": ("tf_ext", "keras-rs BruteForceRetrieval"),
    "1": ("tf_ext", "TFRS BruteForce"),
}
_KERAS = {"0": "Keras 3", "1": "tf_keras"}


def retrieval(args):
    """Batches of queries, each in all libraries in turn."""
    candidates = min(args.rows, _CANDIDATES)
    with contextlib.ExitStack() as stack:
        workers = {
            legacy: stack.enter_context(_worker(args, legacy))
            for legacy in _LIBRARIES
        }
        for queries in _QUERIES:
            for k in _TOP:
                about = {
                    "candidates": candidates,
                    "dim": args.dim,
                    "queries": queries,
                    "k": k,
                }
                cases = _cases(workers, about)
                results = measure(cases, args.repeats)
                settings = {"threads": args.threads, **about, "unit": "queries"}
                report("retrieval", results, settings, args.json)


@contextlib.contextmanager
def _worker(args, legacy):
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": legacy}
    # Its modules are in its own folder.
    environment.pop("PYTHONSAFEPATH", None)
    with remote.start(
        "retrieval", sys.executable, _PROGRAM, args.threads, environment
    ) as worker:
        worker.ready()
        yield worker


def _cases(workers, about):
    cases, found = [], []
    for legacy, worker in workers.items():
        for library in _LIBRARIES[legacy]:
            name = f"{library}, {_KERAS[legacy]}"
            ids = worker.call("make", case=name, library=library, **about)
            found.append([set(row) for row in ids])
            cases.append(_RemoteCase(worker, name, about["queries"]))
    pairs = [(a, b) for a, b in zip(found[0], found[-1], strict=True)]
    same = sum(len(a & b) for a, b in pairs) / sum(len(a) for a, _ in pairs)
    # Products may differ in their last bits.
    if same < 0.99:
        raise RuntimeError(f"Only {same:.1%} of what was found is the same.")
    return cases


class _RemoteCase(Case):
    def __init__(self, worker, name, items):
        super().__init__(name, lambda: worker.call("run", case=name), items)
        self._worker = worker

    def time(self):
        """Times of the other process, as it measured them."""
        return self._worker.call("time", case=self.name)
