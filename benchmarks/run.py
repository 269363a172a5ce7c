# SPDX-License-Identifier: Apache-2.0
r"""Benchmarks of tf_ext and of their references, which take turns.

    python benchmarks/run.py all --threads 1 2 --json=results.jsonl
    python benchmarks/run.py pull train_step --rules adagrad adam ftrl
    python benchmarks/run.py memory pull push --dtype=float16
    python benchmarks/run.py core
    python benchmarks/run.py clusters --threads 1 --repeats=10
    python benchmarks/run.py scaling fit_scaling --repeats=4 --json=FILE
    python benchmarks/run.py pull push train_step fit hash --against=PYTHON

The ratio of a reference is its time over that of tf_ext: above 1, tf_ext is
faster. Each benchmark and number of threads runs in a process of its own.

With --against=PYTHON the tf_ext of this Python is compared with that of another
one, in processes that take turns, instead of with references. A difference that
is not above 3 % or not above the spread of a build is called unchanged.
"""

import argparse
import concurrent.futures
import importlib
import multiprocessing
import os

import comparing
import harness

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# Where each is: {name: (module, function)}.
BENCHMARKS = {
    "pull": ("op_benchmarks", "pull"),
    "push": ("op_benchmarks", "push"),
    "insert": ("op_benchmarks", "insert"),
    "unique": ("op_benchmarks", "unique"),
    "hash": ("op_benchmarks", "hash_columns"),
    "train_step": ("step_benchmarks", "train_step"),
    "fit": ("step_benchmarks", "fit"),
    "fit_columns": ("step_benchmarks", "fit_columns"),
    "memory": ("table_benchmarks", "memory"),
    "snapshot": ("table_benchmarks", "snapshot"),
    "points": ("point_benchmarks", "points"),
    "core": ("core_benchmarks", "core"),
    "read": ("read_benchmarks", "read"),
    "fit_files": ("read_benchmarks", "fit_files"),
    "stream": ("stream_benchmarks", "stream"),
    "stream_workers": ("stream_benchmarks", "stream_workers"),
    "late_labels": ("label_benchmarks", "late_labels"),
    "serving": ("serving_benchmarks", "serving"),
    "lookup": ("store_benchmarks", "lookup"),
    "publish": ("store_benchmarks", "publish"),
    "clusters": ("cluster_benchmarks", "clusters"),
    "scaling": ("cluster_benchmarks", "scaling"),
    "fit_scaling": ("cluster_benchmarks", "fit_scaling"),
    "lifetime": ("row_benchmarks", "lifetime"),
    "small_rows": ("row_benchmarks", "small_rows"),
    "defaults": ("default_rates", "defaults"),
    "ctr_models": ("ctr_models", "ctr_models"),
    "regularization": ("ctr_models", "regularization"),
    "unknown": ("ctr_models", "unknown"),
    "twins": ("dense_twins", "twins"),
}
# The others want a compiler, a disk, other libraries, or much time.
_ALL = (
    *("pull", "push", "insert", "unique", "hash"),
    *("train_step", "fit", "fit_columns", "memory"),
)
# What can measure small rows.
_OF_TYPES = ("pull", "push", "insert", "train_step", "memory", "snapshot")
_REPEATS = 200
# TensorFlow's threads make no difference to these.
_WITHOUT_THREADS = ("core", "fit_scaling")


def parse_arguments(arguments=None):
    """Parses the command line, and expands `all`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", nargs="+", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument(
        "--batch", type=int, default=262_144, help="keys of pull, push and core"
    )
    parser.add_argument(
        "--repeats",
        type=int,
        help="default: 200; with --against 100 in each process",
    )
    parser.add_argument(
        "--rules",
        nargs="+",
        default=["adagrad"],
        choices=["adagrad", "row_wise_adagrad", "adam", "ftrl", "sgd"],
        help="of train_step and memory",
    )
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=["float32", "float16", "bfloat16"],
        help=f"of the rows of {', '.join(_OF_TYPES)};\n"
        "all but snapshot measure float32 rows beside",
    )
    parser.add_argument(
        "--slot_dtype",
        default="float32",
        choices=["float32", "bfloat16"],
        help="of the slots in these rows",
    )
    parser.add_argument("--json", help="file to append JSON lines to")
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        default=[1, 2, 3, 4, 5],
        help="of small_rows, ctr_models, regularization, unknown and twins",
    )
    parser.add_argument(
        "--data",
        help="of defaults, ctr_models, regularization, unknown and serving: "
        "folder with those of Adult and Criteo",
    )
    parser.add_argument("--tfra-python", help="a Python that has TFRA")
    parser.add_argument(
        "--output",
        help="where snapshot, serving, lookup and publish write, if not among "
        "temporary files",
    )
    parser.add_argument(
        "--against", metavar="PYTHON", help="a Python that has another build"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=8,
        help="of each build, for --against: an even number",
    )
    args = parser.parse_args(arguments)
    every = set(comparing.COMPARED if args.against else BENCHMARKS)
    wanted = set(args.what) - {"all"}
    if "all" in args.what:
        wanted.update(every & set(_ALL))
    args.what = [name for name in BENCHMARKS if name in wanted]
    if wanted - every:
        parser.error(
            f"--against cannot compare {', '.join(sorted(wanted - every))}; "
            f"it can: {', '.join(comparing.COMPARED)}"
        )
    others = sorted(set(args.what) - set(_OF_TYPES))
    if others and (args.dtype, args.slot_dtype) != ("float32", "float32"):
        parser.error(
            f"--dtype={args.dtype} --slot_dtype={args.slot_dtype}: "
            f"{', '.join(others)} cannot measure small rows; allowed are "
            f"{', '.join(_OF_TYPES)}"
        )
    if "train_step" in args.what and "row_wise_adagrad" in args.rules:
        parser.error(
            "--rules=row_wise_adagrad: train_step has no reference for it; "
            "memory takes it"
        )
    if args.processes < 2 or args.processes % 2:
        parser.error(
            f"--processes={args.processes}: allowed are even numbers from 2"
        )
    if args.repeats is None and not args.against:
        args.repeats = _REPEATS
    return args


def run(name, args, threads):
    """Runs one benchmark in this process."""
    module, function = BENCHMARKS[name]
    args = argparse.Namespace(**{**vars(args), "threads": threads})
    getattr(importlib.import_module(module), function)(args)


def _run_in_new_process(name, args, threads):
    harness.set_threads(threads)
    run(name, args, threads)


def main():
    args = parse_arguments()
    if args.against:
        for name in args.what:
            for threads in args.threads:
                comparing.compare(name, args, threads)
        return
    # TensorFlow's threads are set once a process, and what one benchmark
    # leaves in memory should not be in the way of the next.
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        max_tasks_per_child=1,
    ) as pool:
        for name in args.what:
            if name in _WITHOUT_THREADS:
                run(name, args, threads=None)
                continue
            for threads in args.threads:
                pool.submit(_run_in_new_process, name, args, threads).result()


if __name__ == "__main__":
    main()
