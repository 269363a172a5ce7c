"""What steps cost by workers, servers, tables, dims, samples and latency."""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from delays import proxy
from harness import write_json
from scaling_model import Job

from tf_ext.distribute import run_local_workers

_PROGRAM = pathlib.Path(__file__).with_name("scaling_worker.py")
# What the coefficients are fitted on: workers, servers, samples, tables, dim.
FITTED = (
    Job(1, 1, 2048, 1, 16),
    Job(1, 1, 256, 1, 16),
    Job(1, 1, 2048, 1, 64),
    Job(1, 1, 2048, 16, 16),
    Job(1, 1, 2048, 1, 16, chief_reads=True),
    Job(1, 1, 256, 1, 16, execution=8),
    Job(1, 1, 2048, 1, 16, execution=8),
    Job(1, 3, 256, 1, 16),
    Job(1, 3, 2048, 8, 16),
    Job(1, 3, 2048, 1, 64),
    Job(2, 1, 512, 1, 16),
    Job(2, 1, 1024, 1, 16, chief_reads=True),
    Job(2, 0, 256, 1, 16),
    Job(2, 0, 2048, 1, 16),
    Job(2, 0, 2048, 1, 64),
    Job(2, 0, 1024, 16, 16),
    Job(3, 0, 512, 1, 64),
    Job(4, 0, 256, 1, 16),
    Job(4, 0, 512, 8, 16),
    Job(4, 0, 1024, 1, 32),
)
# What they are checked on.
CHECKED = (
    Job(1, 1, 1024, 4, 32),
    Job(1, 2, 512, 8, 16),
    Job(1, 2, 1536, 2, 48, chief_reads=True),
    Job(1, 2, 1024, 4, 16, execution=4),
    Job(2, 2, 1024, 4, 32),
    Job(2, 2, 512, 1, 16, chief_reads=True),
    Job(3, 1, 1024, 2, 16),
    Job(2, 0, 512, 4, 32),
    Job(3, 0, 256, 2, 16),
    Job(3, 0, 1024, 4, 32),
    Job(4, 0, 512, 2, 48),
)
DELAYED = (
    Job(1, 1, 512, 1, 16),
    Job(1, 2, 512, 4, 16),
    Job(1, 1, 512, 1, 16, execution=8),
    Job(1, 1, 2048, 1, 16, execution=8, overlap=True),
    Job(1, 1, 2048, 1, 16, execution=16),
    Job(1, 1, 2048, 1, 16, execution=16, overlap=True),
    Job(1, 2, 2048, 1, 16, execution=16),
    Job(1, 2, 2048, 1, 16, execution=16, overlap=True),
    Job(2, 0, 512, 1, 16),
    Job(3, 0, 512, 1, 64),
)
# Of an epoch. Its end has delays of its own, which are shared by many steps.
_STEPS = 32
_DELAYED_STEPS = 320
_DELAYS_SECONDS = (0.0, 0.0001, 0.0005, 0.001, 0.002, 0.005)


def scaling(args):
    """Measures all jobs, by cluster, and some of them with delays."""
    jobs = sorted({*FITTED, *CHECKED})
    for _, some in itertools.groupby(jobs, lambda job: job[:2]):
        measure(args, list(some), args.repeats)
    for job in DELAYED:
        with proxy() as path:
            measure(args, [job], args.repeats * len(_DELAYS_SECONDS), path)


def measure(args, jobs, repeats, delay_file=None):
    """Measures jobs of one cluster; prints and appends lines of JSON.

    Args:
      args: the command line's arguments: `threads` and `json`.
      jobs: list of Job, of as many workers and servers.
      repeats: int, the epochs of each.
      delay_file: string, the file of `delays.proxy`, whose delay changes from
        epoch to epoch. None: there is none.
    """
    workers, servers, *_ = jobs[0]
    # Each has the threads that it would have on a machine of its own.
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(args.threads)
    task = {
        "workers": workers,
        "servers": servers,
        "jobs": [job._asdict() for job in jobs],
        "repeats": repeats,
        "steps": _DELAYED_STEPS if delay_file else _STEPS,
        "delays": _DELAYS_SECONDS if delay_file else (),
        "delay_file": delay_file,
    }
    with tempfile.NamedTemporaryFile("r") as file:
        command = [sys.executable, _PROGRAM, json.dumps(task), file.name]
        if servers:
            subprocess.run(command, check=True)
        else:
            run_local_workers(command, workers)
        lines = [{"benchmark": "scaling", **json.loads(one)} for one in file]
    for line in lines:
        said = {k: round(v, 3) for k, v in line.items() if isinstance(v, float)}
        print(f"scaling: {Job(**line['job'])}: {said}")
    write_json(lines, args.json)
