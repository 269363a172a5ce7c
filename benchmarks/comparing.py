# SPDX-License-Identifier: Apache-2.0
"""Compares two builds of tf_ext: their difference, and its noise.

It is also the program that measures one build, in the Python where that is
installed, and that may be older: what is compared uses only what all builds
have.
"""

import argparse
import contextlib
import importlib
import os
import pathlib
import sys

import numpy as np
from harness import StartError, Worker, heading, serve, start, write_json

_SCRIPT = pathlib.Path(__file__)
# Where the cases of each come from: {name: (module, function)}.
COMPARED = {
    "pull": ("op_benchmarks", "compared_pull"),
    "push": ("op_benchmarks", "compared_push"),
    "insert": ("op_benchmarks", "compared_insert"),
    "hash": ("op_benchmarks", "compared_hash"),
    "train_step": ("step_benchmarks", "compared_train_step"),
    "fit": ("step_benchmarks", "compared_fit"),
    "fit_columns": ("step_benchmarks", "compared_fit_columns"),
    "memory": ("table_benchmarks", "compared_memory"),
}
_REPEATS = 100
# A repetition of these takes long: how many are enough.
_MAX_REPEATS = {"insert": 3, "fit": 8, "fit_columns": 4, "memory": 1}
# These begin with an empty table, so that there is nothing to warm up.
_COLD = ("insert", "memory")
_WARMUP = {"fit": 1, "fit_columns": 1}
_OTHERS_WARMUP = 10
_TURNS = 4
# Of one build, at the same time: what they differ by is noise.
_AT_ONCE = 2
# What is less than this is not called a change, however small the noise.
_UNCHANGED = 0.03
_BUILDS = ("this", "other")


def compare(name, args, threads):
    """Measures a benchmark with this Python's build and with another one's.

    In each round, two processes of each build run and take turns. A process's
    value is the median of its repetitions. Processes of the same build also
    differ, by their memory layout and the load of the machine, so a difference
    between builds must exceed the difference between them.

    Args:
      name: string, one of COMPARED.
      args: the command line's.
      threads: int, of TensorFlow.

    Raises:
      SystemExit: if a build does not run.
    """
    values, builds = {}, None
    for _ in range(args.processes // _AT_ONCE):
        with _processes(args, threads) as processes:
            builds = builds or [
                processes[build, 0].call("build") for build in _BUILDS
            ]
            for key, found in _round(name, args, threads, processes).items():
                values.setdefault(key, []).append(found)
    _report(name, args, threads, builds, values)


def difference_and_spread(this, other):
    """The difference of two builds, and of two processes of the same build.

    Args:
      this: array `[rounds, 2]`, the values of two processes of this build that
        ran at the same time.
      other: array `[rounds, 2]`, those of the other build.

    Returns:
      Two fractions. Difference: the median over rounds of the ratio of this
      build's value to the other's, minus 1. Spread: the mean over rounds and
      builds of the relative difference of their two processes.
    """
    # The clock of CPU time may tick too slowly for tiny sizes.
    this, other = (np.log(np.maximum(v, 1e-6)) for v in (this, other))
    difference = np.median(this.mean(axis=1) - other.mean(axis=1))
    spread = np.mean([np.abs(v[:, 0] - v[:, 1]) for v in (this, other)])
    return float(np.expm1(difference)), float(np.expm1(spread))


def verdict(difference, spread):
    """Classifies a difference: "unchanged", "more" or "less"."""
    if abs(difference) <= max(_UNCHANGED, spread):
        return "unchanged"
    return "more" if difference > 0 else "less"


@contextlib.contextmanager
def _processes(args, threads):
    """`{(build, number): Remote}`."""
    with contextlib.ExitStack() as stack:
        processes = {}
        for build in _BUILDS:
            mine = build == "this"
            python = sys.executable if mine else args.against
            environment = dict(os.environ) if mine else None
            for number in range(_AT_ONCE):
                context = start(python, python, _SCRIPT, threads, environment)
                with _said_why(build, python):
                    processes[build, number] = stack.enter_context(context)
        # A Python that does not fit is the other one, more likely.
        for (build, _), process in reversed(processes.items()):
            with _said_why(build, process.name):
                process.ready()
        yield processes


@contextlib.contextmanager
def _said_why(build, python):
    try:
        yield
    except StartError as error:
        option = "--against=" if build == "other" else ""
        raise SystemExit(
            f"{option}{python} cannot run {_SCRIPT.name}, which needs tf_ext "
            f"and TensorFlow. {error}"
        ) from None


def _round(name, args, threads, processes):
    """Medians of all processes: `{(case, measure): {process: value}}`."""
    module, function = COMPARED[name]
    for process in processes.values():
        process.send(
            "make",
            module=module,
            function=function,
            warmup=0 if name in _COLD else _WARMUP.get(name, _OTHERS_WARMUP),
            args={**vars(args), "threads": threads},
        )
    for process in processes.values():
        cases = process.result("make")
    repeats = _repeats(name, args)
    turns = min(_TURNS, repeats)
    values = {}
    for case in cases:
        for turn in range(turns):
            # Who comes first differs, for it may matter.
            order = sorted(processes, key=lambda key: (key[1], key[0]))
            for key in order[turn % len(order) :] + order[: turn % len(order)]:
                found = processes[key].call(
                    "values",
                    case=case,
                    repeats=repeats // turns,
                    settle=name not in _COLD,
                )
                for measure, numbers in found.items():
                    kept = values.setdefault((case, measure), {})
                    kept.setdefault(key, []).extend(numbers)
    return {
        key: {process: np.median(v) for process, v in found.items()}
        for key, found in values.items()
    }


def _repeats(name, args):
    repeats = args.repeats or _REPEATS
    return min(repeats, _MAX_REPEATS.get(name, repeats))


def _report(name, args, threads, builds, values):
    settings = {
        "threads": threads,
        **{key: getattr(args, key) for key in ("rows", "dim", "batch")},
        "repeats": _repeats(name, args),
        "processes": args.processes,
    }
    print(heading(name, settings))
    for build, text in zip(_BUILDS, builds, strict=True):
        print(f"  {build + ':':6} {text}")
    print(
        f"  {'case':40} {'measure':18} {'this':>10} {'other':>10} "
        f"{'difference':>10} {'spread':>8}"
    )
    lines = []
    for (case, measure), rounds in values.items():
        both = {
            build: np.array(
                [[r[build, i] for i in range(_AT_ONCE)] for r in rounds]
            )
            for build in _BUILDS
        }
        difference, spread = difference_and_spread(**both)
        said = verdict(difference, spread)
        this, other = (float(np.median(both[build])) for build in _BUILDS)
        print(
            f"  {case:40} {measure:18} {this:10.2f} {other:10.2f} "
            f"{difference:+10.1%} {spread:8.1%}  {said}"
        )
        lines.append(
            {
                **{"benchmark": name, "against": args.against, **settings},
                **{"case": case, "measure": measure},
                **{"this": this, "other": other},
                **{"difference": difference, "spread": spread},
                "verdict": said,
                "values": {k: v.tolist() for k, v in both.items()},
                "builds": dict(zip(_BUILDS, builds, strict=True)),
            }
        )
    sys.stdout.flush()
    write_json(lines, args.json)


class _Worker(Worker):
    """Holds the cases of one benchmark between requests."""

    def build(self):
        return (
            f"tf_ext {tf_ext.__version__} of "
            f"{os.path.dirname(tf_ext.__file__)}, TensorFlow {tf.__version__}"
        )

    def make(self, module, function, warmup, args):
        """Prepares cases; returns their names."""
        make = getattr(importlib.import_module(module), function)
        self._cases = {
            case.name: case for case in make(argparse.Namespace(**args))
        }
        for case in self._cases.values():
            for _ in range(warmup):
                case.run()
        return list(self._cases)

    def values(self, case, repeats, settle):
        """Measures a case: `{measure: [values]}`."""
        return self._cases[case].values(repeats, settle)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # First, for it fails at once where it is not installed.
    import tf_ext  # isort: skip
    import tensorflow as tf

    serve(_Worker())
