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

# Workers, servers, and the steps of a window, of about 15 seconds.
TRAININGS = ((1, 0, 1_800), (1, 1, 900), (2, 0, 900))
_SECONDS = 5.0
_NEVER = 1e9
_BATCH = 2_048
_EXPONENT = 1.2
_IDS = 10_000_000
# The most distinct batches: more ids occur than change within an interval.
_BATCHES = 1_500


def points(args):
    """Windows of steps with a point every 5 seconds, and without, in turns.

    Changes are marked in both.
    """
    print(heading("points", {"threads": args.threads}))
    windows = min(args.repeats, 5)
    for workers, servers, steps in TRAININGS:
        line = _run(args, workers, servers, steps, windows)
        rate, cpu = (
            [np.median(line[name][is_with]) for is_with in ("with", "without")]
            for name in ("steps_per_second", "cpu_ms")
        )
        result = {
            "benchmark": "points",
            "workers": workers,
            "servers": servers,
            "throughput": rate[0] / rate[1],
            "cpu": cpu[0] / cpu[1],
            "machine": machine(),
            **line,
        }
        print(
            f"{workers} + {servers}: {rate[0]:.1f} steps/s with points, "
            f"{result['throughput']:.3f} of those without; "
            f"{result['cpu']:.3f} of the CPU time; training waits "
            f"{line['pause_ms']:.0f} ms for a point. {line}",
            flush=True,
        )
        write_json([result], args.json)


def _run(args, workers, servers, steps, windows):
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
            "windows": windows,
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


class _Windows(keras.callbacks.Callback):
    """Steps a second and CPU time of windows, with points and without.

    Args:
      snapshot: the TableSnapshot, which begins with points.
      steps: int, of a window.
      pids: list of ints, the processes whose CPU time counts.
    """

    def __init__(self, snapshot, steps, pids):
        super().__init__()
        self._snapshot = snapshot
        self._steps = steps
        self._pids = pids
        self._begin = None
        self.rates = {"with": [], "without": []}
        self.cpu = {"with": [], "without": []}

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self._steps:
            return
        snapshot = self._snapshot
        # What has begun in a window is part of it.
        snapshot._go_on(wait=True)
        kind = "with" if snapshot.seconds == _SECONDS else "without"
        now = time.perf_counter(), cpu_seconds(self._pids)
        if self._begin is not None:
            seconds, cpu = np.subtract(now, self._begin).tolist()
            self.rates[kind].append(self._steps / seconds)
            self.cpu[kind].append(1e3 * cpu / self._steps)
        self._begin = now
        snapshot.seconds = _NEVER if kind == "with" else _SECONDS
        snapshot._saved_time = time.monotonic()


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
    snapshot = _Timed(task["folder"], seconds=_SECONDS, incremental=True)
    windows = _Windows(snapshot, task["steps"], pids if rank == 0 else [])
    # The first is not measured: its first point has all rows.
    steps = task["steps"] * (1 + 2 * task["windows"])

    def data(context=None):
        batch = _BATCH // (1 if job.servers else job.workers)
        return _dataset(batch, min(steps, _BATCHES), rank)

    model.fit(
        data if job.workers + job.servers > 1 else data(),
        steps_per_epoch=steps,
        shuffle=False,
        verbose=0,
        callbacks=[snapshot, windows],
    )
    waited = snapshot.pauses[1:-1]
    return {
        "steps_per_second": windows.rates,
        "cpu_ms": windows.cpu,
        "pause_ms": 1e3 * float(np.median(waited)) if waited else 0.0,
        "points": len(waited),
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
