# SPDX-License-Identifier: Apache-2.0
"""Processes that save to one directory concurrently, and one that reads it.

Prints how often each outcome occurred. Everything runs in forks of a process
that has only imported TensorFlow, since the import takes longer than everything
else.
"""

import argparse
import os
import random
import signal
import time

import forks
import numpy as np
import snapshot_util as util

import tf_ext
from tf_ext.snapshot import SnapshotConflictError, open_snapshot

_SHARDS = 2


def _check(path):
    """Loads a snapshot, which must come from one save of one writer."""
    table = util.table(_SHARDS)
    manifest = table.load(path)
    signs, fields = table.export_rows()
    assert len(signs) == manifest.rows, (len(signs), manifest.rows)
    # Each save of each writer has another step, and rows of that value.
    assert (fields["weights"] == manifest.step).all(), manifest.step
    list(open_snapshot(path).chunks())


def _save_often(path, seed, saves, counts):
    generator = random.Random(seed)
    table = util.table(_SHARDS)
    for save in range(saves):
        rows = generator.randrange(100, 2000)
        step = seed % 1000 * 1000 + save
        table.clear()
        table.import_rows(
            np.arange(rows), {"weights": np.full([rows, util.DIM], step, "f4")}
        )
        try:
            # Some of them take long enough to meet another.
            table.save(
                path,
                step=step,
                max_bytes_per_second=generator.choice([None, 4 << 20]),
            )
        except SnapshotConflictError:
            os.write(counts, b"conflict\n")
            time.sleep(generator.uniform(0, 0.1))
        else:
            os.write(counts, b"saved\n")
            _try_to_check(path, counts)
            time.sleep(generator.uniform(0, 0.02))


def _read_for_ever(path, counts):
    while True:
        _try_to_check(path, counts)


def _try_to_check(path, counts):
    try:
        _check(path)
        os.write(counts, b"read\n")
    except SnapshotConflictError:  # Replaced three times while it was read.
        os.write(counts, b"overtaken\n")


def _stress(path, seed):
    generator = random.Random(seed)
    tf_ext.ops.library()  # Once, for all forks.
    readable, writable = os.pipe()
    seeds = [100 * (index + 1) + generator.randrange(100) for index in range(3)]
    first = forks.start(_save_often, path, seeds[0], 1, writable)
    assert os.waitpid(first, 0)[1] == 0
    reader = forks.start(_read_for_ever, path, writable)
    writers = [
        forks.start(_save_often, path, seed, 40, writable) for seed in seeds[1:]
    ]
    statuses = [os.waitpid(writer, 0)[1] for writer in writers]
    assert os.waitpid(reader, os.WNOHANG) == (0, 0), "the reader failed"
    os.kill(reader, signal.SIGKILL)
    os.waitpid(reader, 0)
    os.close(writable)
    lines = b""
    while more := os.read(readable, 4096):
        lines += more
    assert statuses == [0, 0], statuses
    found = lines.decode().split()
    for what in ("saved", "conflict", "read", "overtaken"):
        print(what, found.count(what))


def _stop(path, seed):
    """A writer that is stopped does not damage the save of another one."""
    del seed
    tf_ext.ops.library()
    readable, writable = os.pipe()
    stopped = forks.start(_save_slowly, path, writable)
    os.close(writable)
    while not any(name.endswith(".chunks") for name in os.listdir(path)):
        time.sleep(0.01)
    os.kill(stopped, signal.SIGSTOP)
    saver = forks.start(_save_often, path, 5, 1, os.dup(1))
    assert os.waitpid(saver, 0)[1] == 0
    os.kill(stopped, signal.SIGCONT)
    print(os.read(readable, 1000).decode())
    assert os.waitpid(stopped, 0)[1] == 0
    checker = forks.start(_check, path)
    assert os.waitpid(checker, 0)[1] == 0


def _save_slowly(path, report):
    table = util.table(_SHARDS)
    table.pull(np.arange(20_000), training=True)
    try:
        table.save(path, max_bytes_per_second=400_000)
        os.write(report, b"saved\n")
    except SnapshotConflictError as error:
        os.write(report, str(error).encode())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["stress", "stop"])
    parser.add_argument("path")
    parser.add_argument("seed", type=int)
    arguments = parser.parse_args()
    os.makedirs(arguments.path, exist_ok=True)
    action = {"stress": _stress, "stop": _stop}[arguments.action]
    action(arguments.path, arguments.seed)


if __name__ == "__main__":
    main()
