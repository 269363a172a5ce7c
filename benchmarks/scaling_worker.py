"""Steps whose cost is counted for each role of a cluster.

    python scaling_worker.py '{"workers": 1, "servers": 2, ...}' lines.jsonl

With servers it is the chief of a cluster that it starts, else one of the
synchronous workers. The chief, or the first worker, appends a line of JSON for
each epoch of each job to the file.
"""

import contextlib
import gc
import json
import os
import pathlib
import sys

import column_steps
import numpy as np
from delays import Delay
from harness import cpu_seconds
from scaling_model import Job
from wide_deep_steps import EpochTimes

import tf_ext
from tf_ext.distribute.collectives import collectives_of

_BATCHES = 16


def main():
    task, output = json.loads(sys.argv[1]), sys.argv[2]
    with _started(task["workers"], task["servers"]) as (strategy, roles, rank):
        for fields in task["jobs"]:
            lines = _measure(Job(**fields), strategy, roles, rank, task)
            if rank == 0:
                with open(output, "a") as file:
                    for line in lines:
                        file.write(json.dumps(line) + "\n")
            gc.collect()  # What is on servers, while there are any.


@contextlib.contextmanager
def _started(workers, servers):
    """The strategy, `{role: process ids}`, and this worker's rank."""
    if servers:
        with tf_ext.distribute.local_cluster(workers, servers) as cluster:
            roles = {"chief": [os.getpid()]}
            for role, job in (("worker", "worker"), ("server", "ps")):
                count = len(cluster.cluster[job])
                roles[role] = [cluster.pid(job, i) for i in range(count)]
            yield cluster.strategy(), roles, 0
        return
    strategy = tf_ext.distribute.multi_worker_strategy()
    collectives = collectives_of(strategy)
    found = collectives.gather(np.array([os.getpid()])).numpy().ravel()
    yield strategy, {"worker": found.tolist()}, collectives.rank


class _Counts(EpochTimes):
    """Wall and CPU milliseconds, bytes and packets of a step, by epoch."""

    def __init__(self, roles, steps, task):
        super().__init__(None, steps)
        self._roles = roles
        self._delays = task["delays"]
        self._delay = Delay(task["delay_file"]) if self._delays else None
        self.means = []

    def _now(self):
        cpu = [cpu_seconds(pids) for pids in self._roles.values()]
        # The sums are of milliseconds; what is counted is not.
        sent = [1e-3 * count for count in _sent()]
        return np.array([super()._now()[0], *cpu, *sent])

    def on_epoch_begin(self, epoch, logs=None):
        if self._delays:
            self._delay.seconds = self._delays[epoch % len(self._delays)]
        super().on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.means.append(self._delay.mean() if self._delays else None)


def _sent():
    """The bytes and packets that were sent over loopback so far."""
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            received = counts.split()
            return int(received[0]), int(received[1])
    raise OSError("/proc/net/dev has no line for lo")


def _measure(job, strategy, roles, rank, task):
    """Lines of the epochs of a job; the first epoch, which traces, is none."""
    with strategy.scope():
        model = column_steps.make(job.tables, job.execution, job.dim)

    def data(context=None):
        return column_steps.dataset(_BATCHES, job.samples, 1 + rank)

    # Under parameter servers these are the steps of all workers.
    steps = task["steps"] * (job.workers if job.servers else 1)
    counts = _Counts(roles if rank == 0 else {}, steps, task)
    model.fit(
        data if not job.chief_reads else data(),
        epochs=1 + task["repeats"],
        steps_per_epoch=steps,
        shuffle=False,
        callbacks=[counts],
        verbose=0,
        overlap_steps=job.overlap,
    )
    shadows = job.tables * job.dim
    weights = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    known = {
        "job": job._asdict(),
        "signs": column_steps.distinct(_BATCHES, job.samples),
        "weights": weights - shadows,
    }
    return [
        {**known, **_line(job, list(roles), times.tolist(), mean)}
        for times, mean in zip(counts.times[1:], counts.means[1:])
    ]


def _line(job, roles, times, mean):
    wall, *cpu, sent, packets = times
    line = {"wall_ms": wall, "delay_seconds": mean}
    for role, value in zip(roles, cpu):
        # Of one: a step is that of one worker, or of all that are synchronous.
        of = job.servers if role == "server" else 1
        line[f"{role}_ms"] = value / (of if job.servers else job.workers)
    of = 1 if job.servers else job.workers
    return {**line, "bytes": sent / of, "packets": packets / of}


if __name__ == "__main__":
    main()
