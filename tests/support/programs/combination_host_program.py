"""A process, or one of several workers, that runs programs as they come.

Each task is a file, which all processes of the host read; each writes its
result, or the error, into a file of its own.
"""

import argparse
import contextlib
import os
import pathlib
import pickle
import time
import traceback

import tensorflow as tf
from oracles import combination_runs
from oracles.combination_axes import WORKERS, Program

import tf_ext

_POLL_SECONDS = 0.02


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", help="alone, servers or a regime of workers")
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = _place(args.kind, stack)
        for number in range(10**6):
            task = _next(args.folder / f"{number}.task")
            if task is None:
                return
            _write(args.folder / f"{number}.{place.rank}", _result(task, place))


def _place(kind, stack):
    if kind in WORKERS:
        strategy = tf_ext.distribute.multi_worker_strategy()
        rank = strategy.cluster_resolver.task_id
        return combination_runs.Place(lambda: strategy, rank)
    if kind == "servers":
        cluster = stack.enter_context(tf_ext.distribute.local_cluster(1, 2))
        strategy = cluster.strategy()
        return combination_runs.Place(lambda: strategy)
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    return combination_runs.Place()


def _next(path):
    """The next task; None when the test has ended."""
    while not path.exists():
        time.sleep(_POLL_SECONDS)
    return pickle.loads(path.read_bytes())


def _result(task, place):
    name, text, *arguments = task
    program = Program.from_json(text)
    try:
        if name == "run":
            return combination_runs.run(program, place, *arguments), None
        return getattr(combination_runs, name)(program, *arguments), None
    except Exception:
        return None, traceback.format_exc()
    finally:
        tf.keras.backend.clear_session()


def _write(path, result):
    part = path.with_suffix(f"{path.suffix}.part")
    part.write_bytes(pickle.dumps(result))
    os.replace(part, path)


if __name__ == "__main__":
    main()
