# SPDX-License-Identifier: Apache-2.0
"""What steps cost on clusters: by workers, servers, tables, dims and latency.

It is also the program of a cluster:

    python cluster_benchmarks.py '{"workers": 1, "servers": 2, ...}' lines.jsonl

With servers it is the chief of a cluster that it starts, else one of the
synchronous workers. The chief, or the first worker, appends a line of JSON for
each epoch of each job to the file.
"""

import contextlib
import gc
import itertools
import json
import os
import pathlib
import pprint
import subprocess
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf
from delays import Delay, proxy
from harness import (
    Case,
    add_ratios,
    cpu_seconds,
    read_json,
    report,
    summarize,
    write_json,
)
from scaling_model import (
    CHECKED,
    COLUMNS,
    COSTS,
    FITTED,
    LARGE,
    NETWORK,
    Job,
    fit,
    limits,
    measured,
    predict,
)
from tensorflow import keras

import tf_ext
from tf_ext.distribute import run_local_workers
from tf_ext.distribute.collectives import collectives_of

# What changes to training on clusters are measured by; one process comes first.
# Workers, servers, steps at once, and whether the chief reads.
CLUSTERS = tuple(
    Job(workers, servers, 2048 // max(1, workers), tables, 16, *reading)
    for workers, servers, *reading in (
        (1, 0),
        (1, 1, 1, True),
        (1, 1),
        (1, 1, 8),
        (2, 0),
        (3, 0),
    )
    for tables in (1, 16)
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
_MAX_EPOCHS = 50
_BATCHES = 16
_IDS = 50_000
_EXPONENT = 1.2
_DECIMALS = {"bytes": 0, "packets": 1, "delays": 1}


def clusters(args):
    """Steps in one process, with servers and with synchronous workers."""
    results = []
    repeats = min(args.repeats, _MAX_EPOCHS)
    for job, lines in _by_cluster(args, CLUSTERS, repeats):
        # A step is that of one worker, or of all that are synchronous.
        samples = job.samples * (1 if job.servers else job.workers)
        times = [[line["wall_ms"], line["cpu_ms"]] for line in lines]
        case = Case(case_of(job), None, samples)
        results.append(summarize(case, np.array(times)))
    add_ratios(results)
    settings = {"threads": args.threads, "unit": "samples"}
    report("clusters", results, settings, args.json)


def scaling(args):
    """Measures what `fit_scaling` fits; some jobs also with delays."""
    for _, lines in _by_cluster(
        args, sorted({*FITTED, *CHECKED}), args.repeats
    ):
        _write(lines, args)
    for job in DELAYED:
        with proxy() as path:
            epochs = args.repeats * len(_DELAYS_SECONDS)
            _write(measure(args, [job], epochs, path), args)


def _write(lines, args):
    write_json([{"benchmark": "scaling", **one} for one in lines], args.json)


def _by_cluster(args, jobs, repeats):
    """Yields each job and its lines; those of a cluster share its processes."""
    for _, some in itertools.groupby(jobs, lambda job: job[:2]):
        some = list(some)
        lines = measure(args, some, repeats)
        for number, job in enumerate(some):
            yield job, lines[number * repeats : (number + 1) * repeats]


def measure(args, jobs, repeats, delay_file=None):
    """Measures jobs of one cluster; prints and returns a dict for each epoch.

    Args:
      args: the command line's arguments: `threads`.
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
        command = [sys.executable, __file__, json.dumps(task), file.name]
        if servers:
            subprocess.run(command, check=True)
        else:
            run_local_workers(command, workers)
        lines = [json.loads(line) for line in file]
    for line in lines:
        said = {k: round(v, 3) for k, v in line.items() if isinstance(v, float)}
        print(f"{Job(**line['job'])}: {said}", flush=True)
    return lines


def name_of(job):
    """Workers, servers, and what a step is: cells of a table."""
    kind, options = _kind_and_options(job)
    return f"| {kind} | {job.samples:,} | {job.tables} | {job.dim}{options} |"


def case_of(job):
    """The same in short."""
    kind, options = _kind_and_options(job)
    tables = f"{job.tables} table{'s' if job.tables > 1 else ''}"
    return f"{kind}: {tables}{options}"


def _kind_and_options(job):
    kind = f"{job.workers} + {job.servers}" if job.servers else job.workers
    options = f", {job.execution} at once" if job.execution > 1 else ""
    options += " that overlap" if job.overlap else ""
    return kind, options + (", the chief reads" if job.chief_reads else "")


# What docs/scaling.md has.


def fit_scaling(args):
    """Fits to the lines of `scaling`, and prints the tables of the page."""
    lines = [r for r in read_json(args.json) if r["benchmark"] == "scaling"]
    if not lines:
        raise SystemExit(f"{args.json} has no results of `scaling`.")
    costs = measured(lines)
    fitted = {key: of for key, of in costs.items() if key[0] not in CHECKED}
    coefficients = {
        cost: {name: float(f"{x:.4g}") for name, x in of.items()}
        for cost, of in fit(fitted).items()
    }
    print("COEFFICIENTS = " + pprint.pformat(coefficients, sort_dicts=False))
    _print_table(costs, coefficients)
    _print_large(coefficients)


def _print_table(costs, coefficients):
    for checked in (False, True):
        print("\nchecked" if checked else "\nfitted")
        for (job, model), of in sorted(costs.items(), key=_order):
            if (job in CHECKED) != checked:
                continue
            predicted = predict(job, model, coefficients)
            cells = [
                f" {of[cost]:,.{_DECIMALS.get(cost, 2)}f} "
                f"({predicted[cost] / of[cost]:.2f}) |"
                if cost in of
                else " |"
                for cost in COSTS
            ]
            print(name_of(job) + "".join(cells))


def _order(item):
    (job, _), _ = item
    return job.servers == 0, job


def _print_large(coefficients):
    print("\n64 workers, 16 servers: thousand samples a second at most")
    for execution in (1, 8):
        job = Job(64, 16, 2048, 1, 16, execution)
        found = limits(job, LARGE, NETWORK, coefficients)
        cells = "".join(f" {1e-3 * x:,.0f} |" for x in found.values())
        print(f"| {execution} |{cells}")
    for workers in (2, 4, 16, 64):
        job = Job(workers, 0, 2048, 1, 16)
        cost = predict(job, LARGE, coefficients)
        [rate] = limits(job, LARGE, NETWORK, coefficients).values()
        print(
            f"| {workers} | {cost['worker_ms']:.0f} | "
            f"{1e-6 * cost['bytes']:.1f} | {cost['delays']:.0f} | "
            f"{1e-3 * rate:.0f} |"
        )


# The model: a perceptron on many columns of ids, dealt out to some tables.


def make_model(job):
    """Makes and compiles it."""
    names = [f"c{i}" for i in range(COLUMNS)]
    columns = [tf_ext.feature_column.category_column(name) for name in names]
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in names}
    embedded = tf_ext.layers.EmbeddingFeatures(
        {
            tf_ext.SparseTable(f"t{i}", job.dim): columns[i :: job.tables]
            for i in range(job.tables)
        }
    )(inputs)
    hidden = [*embedded.values()]
    hidden = keras.layers.Concatenate()(hidden) if job.tables > 1 else hidden[0]
    for units in (64, 32):
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    hidden = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = tf_ext.Model(inputs, hidden)
    model.compile(
        tf_ext.optimizers.Optimizer(keras.optimizers.Adam(0.001)),
        "binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
        steps_per_execution=job.execution,
    )
    return model


def _ids(samples, seed):
    """The ids of a column at a time: int64 `[samples]`."""
    rng = np.random.default_rng(seed)
    for _ in range(COLUMNS):
        yield np.minimum(rng.zipf(_EXPONENT, samples), _IDS)


def dataset(batch, seed):
    """Made-up ids and labels in a few batches, for ever."""
    samples = _BATCHES * batch
    features = {f"c{i}": ids for i, ids in enumerate(_ids(samples, seed))}
    rng = np.random.default_rng([seed, samples])
    labels = rng.integers(0, 2, samples).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((features, labels))
    return data.batch(batch).cache().repeat()


def distinct(batch, seed=1):
    """How many distinct ids of all columns a batch has, on average."""
    found = sum(
        len(np.unique(part))
        for column in _ids(_BATCHES * batch, seed)
        for part in np.split(column, _BATCHES)
    )
    return found / _BATCHES


# The program of a cluster.


def main():
    task, output = json.loads(sys.argv[1]), sys.argv[2]
    with started(task["workers"], task["servers"]) as (strategy, roles, rank):
        for fields in task["jobs"]:
            lines = _measure(Job(**fields), strategy, roles, rank, task)
            if rank == 0:
                with open(output, "a") as file:
                    for line in lines:
                        file.write(json.dumps(line) + "\n")
            gc.collect()  # What is on servers, while there are any.


@contextlib.contextmanager
def started(workers, servers):
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
    if collectives is None:  # One worker.
        yield strategy, {"worker": [os.getpid()]}, 0
        return
    found = collectives.gather(np.array([os.getpid()])).numpy().ravel()
    yield strategy, {"worker": found.tolist()}, collectives.rank


class _Counts(keras.callbacks.Callback):
    """Wall and CPU milliseconds, bytes and packets of a step, by epoch."""

    def __init__(self, roles, steps, task):
        super().__init__()
        self._roles = roles
        self._steps = steps
        self._delays = task["delays"]
        self._delay = Delay(task["delay_file"]) if self._delays else None
        self.epochs = []

    def _now(self):
        cpu = [cpu_seconds(pids) for pids in self._roles.values()]
        seconds = 1e3 * np.array([time.perf_counter(), *cpu])
        return np.concatenate([seconds, _sent()])

    def on_epoch_begin(self, epoch, logs=None):
        if self._delays:
            self._delay.seconds = self._delays[epoch % len(self._delays)]
        self._start = self._now()

    def on_epoch_end(self, epoch, logs=None):
        counts = (self._now() - self._start) / self._steps
        mean = self._delay.mean() if self._delays else None
        self.epochs.append((counts.tolist(), mean))


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
        model = make_model(job)

    def data(context=None):
        return dataset(job.samples, 1 + rank)

    # Under parameter servers these are the steps of all workers.
    steps = task["steps"] * (job.workers if job.servers else 1)
    counts = _Counts(roles if rank == 0 else {}, steps, task)
    is_function = job.workers + job.servers > 1 and not job.chief_reads
    model.fit(
        data if is_function else data(),
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
        "signs": distinct(job.samples),
        "weights": weights - shadows,
    }
    return [
        {**known, **_line(job, list(roles), *epoch)}
        for epoch in counts.epochs[1:]
    ]


def _line(job, roles, counts, delay):
    wall, *cpu, sent, packets = counts
    line = {"wall_ms": wall, "cpu_ms": sum(cpu), "delay_seconds": delay}
    for role, value in zip(roles, cpu):
        # Of one: a step is that of one worker, or of all that are synchronous.
        of = job.servers if role == "server" else 1
        line[f"{role}_ms"] = value / (of if job.servers else job.workers)
    of = 1 if job.servers else job.workers
    return {**line, "bytes": sent / of, "packets": packets / of}


if __name__ == "__main__":
    main()
