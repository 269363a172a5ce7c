"""Tables with synchronous workers, all on this machine, over loopback."""

import json
import os
import pathlib
import sys
import tempfile

from harness import add_ratios, report

from tf_ext.distribute import run_local_workers

_PROGRAM = pathlib.Path(__file__).with_name("multi_worker_worker.py")


def multi_worker(args):
    """Pull and push, compared with bare all-to-alls of the same payload."""
    for workers in [count for count in args.workers if count > 1]:
        for line in _run("traffic", workers, args):
            settings = {"threads": args.threads, **line["settings"]}
            report("multi_worker", line["results"], settings, args.json)


def multi_worker_steps(args):
    """Steps of the Wide & Deep example on workers that share each batch."""
    results, settings = [], {}
    for workers in args.workers:
        for line in _run("steps", workers, args):
            results += line["results"]
            settings = {"threads": args.threads, **line["settings"]}
    add_ratios(results)
    report("multi_worker_steps", results, settings, args.json)


def multi_worker_tables(args):
    """Steps of a model with many tables, compared with those of one table."""
    for workers in [count for count in args.workers if count > 1]:
        for line in _run("tables", workers, args):
            settings = {"threads": args.threads, **line["settings"]}
            report("multi_worker_tables", line["results"], settings, args.json)


def _run(what, workers, args):
    """The results of the first of some workers: a list of dicts."""
    # Each has the threads that it would have on a machine of its own.
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(args.threads)
    sizes = {name: getattr(args, name) for name in ("rows", "dim", "repeats")}
    with tempfile.NamedTemporaryFile("r") as file:
        run_local_workers(
            [sys.executable, _PROGRAM, what, json.dumps(sizes), file.name],
            workers,
        )
        return [json.loads(line) for line in file]
