r"""Benchmarks of tf_ext and of their references, which take turns.

    python benchmarks/run.py all --threads 1 2 --json=results.jsonl
    python benchmarks/run.py pull train_step --rules adagrad adam ftrl
    python benchmarks/run.py core
    python benchmarks/run.py scale --threads 1 2 --json=results.jsonl
    python benchmarks/run.py multi_worker multi_worker_steps --repeats=20
    python benchmarks/run.py pull --tfra-python=/path/to/python
    python benchmarks/run.py pull push train_step fit hash --against=PYTHON
    python benchmarks/run.py plot publish --json=results.jsonl
    python benchmarks/run.py lifetime plot_lifetime --json=results.jsonl
    python benchmarks/run.py memory pull push --dtype=float16
    python benchmarks/run.py small_rows plot_small_rows --json=results.jsonl
    python benchmarks/run.py retrieval --dim=64 --repeats=30
    python benchmarks/run.py read read_fit fit_files --threads 1 2 --repeats=5
    python benchmarks/run.py scaling fit_scaling --repeats=4 --json=FILE
    python benchmarks/run.py plot_table_stats --json=LOGS/tables.jsonl

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
    "memory": ("process_benchmarks", "memory"),
    "core": ("core_benchmarks", "core"),
    "scale": ("process_benchmarks", "scale"),
    "snapshot": ("snapshot_benchmarks", "snapshot"),
    "updates": ("update_benchmarks", "updates"),
    "serving": ("serving_benchmarks", "serving"),
    "parameter_server": ("parameter_server_benchmarks", "parameter_server"),
    "parameter_server_steps": (
        "parameter_server_benchmarks",
        "parameter_server_steps",
    ),
    "parameter_server_columns": (
        "parameter_server_benchmarks",
        "parameter_server_columns",
    ),
    "multi_worker": ("multi_worker_benchmarks", "multi_worker"),
    "multi_worker_steps": ("multi_worker_benchmarks", "multi_worker_steps"),
    "multi_worker_tables": ("multi_worker_benchmarks", "multi_worker_tables"),
    "scaling": ("scaling_benchmarks", "scaling"),
    "defaults": ("default_rates", "defaults"),
    "lifetime": ("lifetime_benchmarks", "lifetime"),
    "small_rows": ("small_rows_benchmarks", "small_rows"),
    "retrieval": ("retrieval_benchmarks", "retrieval"),
    "read": ("read_benchmarks", "read"),
    "read_fit": ("read_benchmarks", "read_fit"),
    "fit_files": ("file_fit_benchmarks", "fit_files"),
    "plot": ("publishing", "plot"),
    "publish": ("publishing", "publish"),
    "publish_defaults": ("default_rates", "publish_defaults"),
    "plot_lifetime": ("lifetime_benchmarks", "plot_lifetime"),
    "plot_small_rows": ("small_rows_benchmarks", "plot_small_rows"),
    "fit_scaling": ("scaling_fit", "fit_scaling"),
    "plot_table_stats": ("table_stats_plot", "plot_table_stats"),
}
# These take results and measure nothing.
_PUBLISHING = (
    *("plot", "publish", "publish_defaults"),
    *("plot_lifetime", "plot_small_rows", "plot_table_stats", "fit_scaling"),
)
# What can measure small rows.
_OF_TYPES = ("pull", "push", "insert", "train_step", "memory", "snapshot")
_REPEATS = 200
# TensorFlow's threads make no difference to these.
_WITHOUT_THREADS = ("core", *_PUBLISHING)
# What `all` leaves out: `core` wants a compiler, `scale` much time and memory,
# `snapshot`, `updates` and `serving` a disk; `retrieval`, `read`, `read_fit`
# and `fit_files` want other libraries; the others fill the machine with
# processes.
_NOT_IN_ALL = (
    *("core", "scale", "snapshot", "updates", "serving"),
    *("parameter_server", "parameter_server_steps"),
    "parameter_server_columns",
    *("multi_worker", "multi_worker_steps", "multi_worker_tables", "scaling"),
    *("defaults", "lifetime", "small_rows", "retrieval"),
    *("read", "read_fit", "fit_files"),
    *_PUBLISHING,
)


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
        "--batch", type=int, default=262_144, help="keys of pull, push, scale"
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
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=int,
        default=[100_000, 1_000_000, 10_000_000, 100_000_000],
        help="rows of the tables of scale",
    )
    parser.add_argument(
        "--workers",
        nargs="+",
        type=int,
        default=[1, 2, 3],
        help="of multi_worker_steps, multi_worker and multi_worker_tables;\n"
        "the latter two: 2 and more",
    )
    parser.add_argument("--json", help="file to append JSON lines to")
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        default=[1, 2, 3, 4, 5],
        help="of small_rows",
    )
    parser.add_argument(
        "--data",
        help="of defaults, serving and small_rows: folder with those of Adult "
        "and Criteo",
    )
    parser.add_argument("--tfra-python", help="a Python that has TFRA")
    parser.add_argument(
        "--output",
        help="where plot and publish write, if not here; and snapshot and "
        "serving, if not among temporary files",
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
        wanted.update(every - set(_NOT_IN_ALL))
    args.what = [name for name in BENCHMARKS if name in wanted]
    if wanted - every:
        parser.error(
            f"--against cannot compare {', '.join(sorted(wanted - every))}; "
            f"it can: {', '.join(comparing.COMPARED)}"
        )
    others = sorted(set(args.what) - {*_OF_TYPES, *_PUBLISHING})
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
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
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
