# SPDX-License-Identifier: Apache-2.0
"""Runs random programs with large batches, on several numbers of threads.

    random_programs_program.py FOLDER SEED PROGRAMS

Prints one line per program. Each number of threads is that of a fork, because
a process cannot change it.
"""

import functools
import pathlib
import sys

import forks
import numpy as np
import tensorflow as tf
from oracles import random_programs

import tf_ext

_SHARDS = [[1, 2], [5, 1], [2, 5]]
_ACTIONS = 40
# Batches are so large that they are divided among threads on each shard.
_SIGNS, _BATCH = 20_000, 25_000


def _run(folder, seed, number, threads):
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    folder = pathlib.Path(folder, f"{number}_{threads}")
    folder.mkdir()
    policies = list(random_programs.ADMISSIONS.values())
    rng = np.random.default_rng([seed, number])
    fields = {"last_seen": number % 4 != 3, "statistics": 2 - number % 3}
    program = random_programs.Program(
        rng,
        str(folder),
        _SHARDS[number % len(_SHARDS)],
        # None admits all that are pulled, too, and so says least.
        policies[-1 - number % len(policies)],
        **fields,
        size=_SIGNS,
        batch=_BATCH,
    )
    program.run(random_programs.random_actions(rng, _ACTIONS, **fields))
    print(number, threads, program.admitted, program.evicted, flush=True)


def main(folder, seed, programs):
    """See the module's docstring."""
    tf_ext.ops.library()  # Once, for all forks.
    for number in range(int(programs)):
        for threads in (1, 4):
            arguments = folder, int(seed), number, threads
            assert forks.run(functools.partial(_run, *arguments)) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
