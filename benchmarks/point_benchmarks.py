# SPDX-License-Identifier: Apache-2.0
"""What recovery points cost: steps a second with points and without.

It is also the program of a training, as cluster_benchmarks.py is:

    python point_benchmarks.py '{"workers": 1, "servers": 0, ...}' lines.jsonl
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf
from cluster_benchmarks import COLUMNS, make_model, started
from harness import cpu_seconds, heading, machine, write_json
from scaling_model import Job
from tensorflow import keras

import tf_ext
from tf_ext.distribute import run_local_workers

# Workers, servers, and the steps of a training, of less than a minute.
TRAININGS = ((1, 0, 5_000), (1, 1, 2_500), (2, 0, 2_500))
_BATCH = 2_048
_EXPONENT = 1.2
_IDS = 10_000_000
# The most distinct batches: more ids occur than change within an interval.
_BATCHES = 1_500


def points(args):
    """Trainings with a point every 5 seconds, and without, in turns."""
    settings = {"threads": args.threads}
    print(heading("points", settings))
    repeats = min(args.repeats, 3)
    for workers, servers, steps in TRAININGS:
        found = {None: [], 5.0: []}
        for repeat in range(repeats):
            for seconds in sorted(
                found, key=lambda s: (s is None) ^ repeat % 2
            ):
                line = _run(args, workers, servers, steps, seconds)
                found[seconds].append(line)
                print(line, flush=True)
        _report(args, (workers, servers), found)


def _report(args, cluster, found):
    def median(key, seconds):
        return float(np.median([one[key] for one in found[seconds]]))

    rates = {s: median("steps_per_second", s) for s in found}
    cpu = {s: median("cpu_ms", s) for s in found}
    result = {
        "benchmark": "points",
        "workers": cluster[0],
        "servers": cluster[1],
        "throughput": rates[5.0] / rates[None],
        "cpu": cpu[5.0] / cpu[None],
        "pause_ms": median("pause_ms", 5.0),
        "bytes": median("bytes", 5.0),
        "starts": len(found[5.0]),
        "machine": machine(),
    }
    print(
        f"{cluster[0]} + {cluster[1]}: {result['throughput']:.3f} of the "
        f"throughput without, {result['cpu']:.3f} of the CPU time; training "
        f"waited {result['pause_ms']:.0f} ms for a point; the newest three and "
        f"what they continue have {1e-6 * result['bytes']:,.0f} MB",
        flush=True,
    )
    write_json([result], args.json)


def _run(args, workers, servers, steps, seconds):
    """The line of a training."""
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(args.threads)
    with (
        tempfile.TemporaryDirectory(dir=args.output) as folder,
        tempfile.NamedTemporaryFile("r") as file,
    ):
        task = {
            "workers": workers,
            "servers": servers,
            "steps": steps,
            "seconds": seconds,
            "folder": folder,
        }
        command = [sys.executable, __file__, json.dumps(task), file.name]
        if servers:
            subprocess.run(command, check=True)
        else:
            run_local_workers(command, workers)
        return json.loads(file.read())


def main():
    task, output = json.loads(sys.argv[1]), sys.argv[2]
    with started(task["workers"], task["servers"]) as (strategy, roles, rank):
        pids = [pid for of_role in roles.values() for pid in of_role]
        line = _train(task, strategy, pids, rank)
        if rank == 0:
            with open(output, "w") as file:
                file.write(json.dumps(line))


class _Clock(keras.callbacks.Callback):
    """The time of each step, and the CPU time at the first quarter and end."""

    def __init__(self, pids, steps):
        super().__init__()
        self._pids = pids
        self._marks = {steps // 4, steps - 1}
        self.marks = []

    def on_train_batch_end(self, batch, logs=None):
        if batch in self._marks:
            now = time.perf_counter(), cpu_seconds(self._pids)
            self.marks.append((batch, *now))


class _Timed(tf_ext.callbacks.TableSnapshot):
    """Measures how long training waits for points."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pauses = []

    def _save(self):
        begin = time.perf_counter()
        super()._save()
        self.pauses.append(time.perf_counter() - begin)


def _train(task, strategy, pids, rank):
    job = Job(task["workers"], task["servers"], _BATCH, 1, 16)
    with strategy.scope():
        model = make_model(job)
    snapshot = _Timed(
        task["folder"], seconds=task["seconds"] or 1e9, incremental=True
    )
    clock = _Clock(pids, task["steps"])

    def data(context=None):
        batch = _BATCH // (1 if job.servers else job.workers)
        return _dataset(batch, min(task["steps"], _BATCHES), rank)

    model.fit(
        data if job.workers + job.servers > 1 else data(),
        steps_per_epoch=task["steps"],
        shuffle=False,
        verbose=0,
        callbacks=[*([snapshot] if task["seconds"] else []), clock],
    )
    (first, begin, cpu), (last, end, cpu_at_end) = clock.marks
    steps = last - first
    # The first point has all rows, the last is that of the end of `fit`.
    waited = snapshot.pauses[1:-1]
    return {
        "seconds": task["seconds"],
        "steps_per_second": steps / (end - begin),
        "cpu_ms": 1e3 * (cpu_at_end - cpu) / steps,
        "pause_ms": 1e3 * float(np.median(waited)) if waited else 0.0,
        "bytes": sum(
            os.path.getsize(os.path.join(path, name))
            for path, _, names in os.walk(task["folder"])
            for name in names
        ),
    }


def _dataset(batch, batches, rank):
    """Made-up ids and labels, for ever."""
    rng = np.random.default_rng(rank)
    ids = rng.zipf(_EXPONENT, (batches, batch, COLUMNS))
    ids = np.minimum(ids, _IDS).astype(np.int64)
    labels = rng.integers(0, 2, (batches, batch)).astype(np.float32)
    features = {
        f"c{i}": np.ascontiguousarray(ids[..., i]) for i in range(COLUMNS)
    }
    data = tf.data.Dataset.from_tensor_slices((features, labels))
    return data.repeat().prefetch(4)


if __name__ == "__main__":
    main()
