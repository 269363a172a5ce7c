r"""Benchmarks of tf_ext beside their references, in one process and run.

    python benchmarks/run.py pull push insert unique hash train_step
    python benchmarks/run.py --threads=1 all
    python benchmarks/run.py memory --rows=10000000
    python benchmarks/run.py scale --json=results.jsonl
    python benchmarks/run.py plot --json=results.jsonl
    python benchmarks/run.py train_step --tfra-python=/path/to/python

The ratio of a reference is its CPU time over that of tf_ext: above 1, tf_ext
is faster.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import op_benchmarks
import process_benchmarks
import step_benchmarks
import tensorflow as tf

BENCHMARKS = {
    "pull": op_benchmarks.pull,
    "push": op_benchmarks.push,
    "insert": op_benchmarks.insert,
    "unique": op_benchmarks.unique,
    "hash": op_benchmarks.hash_columns,
    "train_step": step_benchmarks.train_step,
    "memory": process_benchmarks.memory,
    "scale": process_benchmarks.scale,
    "plot": process_benchmarks.plot,
}
# What `all` leaves out: it wants much time, or results.
_NOT_IN_ALL = ("scale", "plot")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", nargs="+", choices=[*BENCHMARKS, "all"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=262_144)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--rules", nargs="+", default=["adagrad"])
    parser.add_argument("--json", help="file to append JSON lines to")
    parser.add_argument("--tfra-python", help="a Python that has TFRA")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    names = args.what
    if "all" in names:
        names = [name for name in BENCHMARKS if name not in _NOT_IN_ALL]
    for name in names:
        BENCHMARKS[name](args)


if __name__ == "__main__":
    main()
