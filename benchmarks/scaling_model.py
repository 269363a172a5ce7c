# SPDX-License-Identifier: Apache-2.0
"""What a step costs, by workers, servers, tables, dims, samples and network.

Costs are sums of products: `terms` says what a cost depends on, and
`COEFFICIENTS` how much. docs/scaling.md says how these were measured and how
well they predict; `run.py fit_scaling` fits them again.
"""

import collections
import itertools
import math
import statistics
import typing

import numpy as np

# Fitted by `run.py fit_scaling` on an AMD EPYC (family 26 model 2), two cores:
# milliseconds of CPU time, bytes, packets of up to 64 KiB, one-way delays.
COEFFICIENTS: dict[str, dict[str, float]] = {
    "chief_ms": {
        "calls": 1.568,
        "steps": 0.4326,
        "each": 0.2386,
        "megabytes": 0.2349,
        "batch": 1.992,
    },
    "worker_ms": {
        "computed: samples": 1.072,
        "computed: numbers": 3.281,
        "servers: calls": 1.429,
        "servers: steps": 0.0,
        "servers: each": 0.6732,
        "servers: tables": 0.1041,
        "servers: megabytes": 0.0,
        "servers: batch": 0.7988,
        "workers: steps": 0.7417,
        "workers: others": 1.443,
        "workers: tables": 0.1174,
        "workers: megabytes": 2.139,
        "workers: ring": 0.0,
    },
    "server_ms": {
        "calls": 0.8003,
        "steps": 0.4595,
        "tables": 0.04475,
        "megabytes": 0.5291,
    },
    "bytes": {
        "servers: payload": 0.9657,
        "servers: calls": 10120.0,
        "servers: each": 5354.0,
        "workers: rows": 1.069,
        "workers: dense": 1.121,
        "workers: others": 0.0,
    },
    "packets": {
        "servers: calls": 23.74,
        "servers: each": 10.24,
        "servers: megabytes": 16.16,
        "servers: batches": 2.901,
        "workers: others": 3.826,
        "workers: megabytes": 19.42,
        "workers: ring": 2.449,
    },
    "delays": {
        "servers: calls": 8.387,
        "servers: steps": 2.318,
        "servers: steps that overlap": 0.6872,
        "workers: steps": 4.004,
        "workers: ring": 0.1426,
    },
}

# As in tf_ext.distribute.collectives: beyond it, sums are reduced by a ring.
_GATHERED_SUM_BYTES = 1 << 20


class Job(typing.NamedTuple):
    """Steps of a cluster.

    Attributes:
      workers: int.
      servers: int; 0 for synchronous workers, which have none.
      samples: int, of a step of one worker.
      tables: int.
      dim: int, of all tables.
      execution: int, the steps of an execution; 1 for synchronous workers.
      chief_reads: bool, whether the chief reads the data and sends them.
      overlap: bool, whether the steps of an execution overlap, which changes
        what they wait for, but not what they cost.
    """

    workers: int
    servers: int
    samples: int
    tables: int
    dim: int
    execution: int = 1
    chief_reads: bool = False
    overlap: bool = False


class Model(typing.NamedTuple):
    """What a step's costs depend on besides the cluster.

    Attributes:
      columns: int, of one id for each sample.
      signs: float, the distinct ids of all columns in a worker's step.
      weights: int, the numbers in the dense layers.
    """

    columns: int
    signs: float
    weights: int


class Network(typing.NamedTuple):
    """Machines and what is between them.

    Attributes:
      cores: float, that each task can use at a time.
      bytes_per_second: float, that each machine can send, and receive.
      delay_ms: float, one way.
    """

    cores: float
    bytes_per_second: float
    delay_ms: float


COSTS = ("chief_ms", "worker_ms", "server_ms", "bytes", "packets", "delays")
COLUMNS = 26
# What docs/scaling.md extrapolates: steps of 2,048 samples, dim 16.
LARGE = Model(COLUMNS, 14_353, 28_801)
NETWORK = Network(cores=8, bytes_per_second=1.25e9, delay_ms=0.1)
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


def _check(job, model):
    for name, least in (
        *(("workers", 1), ("servers", 0), ("samples", 1), ("tables", 1)),
        *(("dim", 1), ("execution", 1)),
    ):
        if getattr(job, name) < least:
            raise ValueError(
                f"{name} must be at least {least}. Received: "
                f"{getattr(job, name)}"
            )
    if job.overlap and not 2 <= job.execution <= 16:
        raise ValueError(
            "Steps overlap in executions of 2 to 16 steps. Received: "
            f"overlap=True, execution={job.execution}"
        )
    if not job.servers and (job.execution > 1 or job.chief_reads):
        raise ValueError(
            "Synchronous workers (servers=0) read their own data and have "
            "executions of one step. Received: "
            f"execution={job.execution}, chief_reads={job.chief_reads}"
        )
    if not job.servers and job.workers < 2:
        raise ValueError(
            f"Synchronous workers are at least 2. Received: {job.workers}"
        )
    for name in Model._fields:
        if not getattr(model, name) > 0:
            raise ValueError(
                f"{name} must be positive. Received: {getattr(model, name)}"
            )


def terms(job, model):
    """What the costs of a step depend on: `{cost: {term: number}}`.

    Args:
      job: Job.
      model: Model.

    Raises:
      ValueError: a number is out of its range.
    """
    _check(job, model)
    computed = {
        "computed: samples": 1e-3 * job.samples,
        "computed: numbers": 1e-6 * job.samples * model.columns * job.dim,
    }
    return (_with_servers if job.servers else _synchronous)(
        job, model, computed
    )


def _with_servers(job, model, computed):
    calls = 1 / job.execution
    # Signs twice, rows and gradients; dense weights and gradients.
    rows = 1e-6 * model.signs * (16 + 8 * job.dim)
    dense = 1e-6 * 8 * model.weights
    # An int64 for each column, a label.
    batch = 1e-6 * job.samples * (8 * model.columns + 4) * job.chief_reads
    return {
        "chief_ms": {
            "calls": calls,
            "steps": 1.0,
            "each": calls * job.servers,
            # The chief does not see them, but they push its data out of the
            # caches, where tasks share a processor.
            "megabytes": calls * (rows + dense),
            "batch": batch,
        },
        "worker_ms": {
            **computed,
            "servers: calls": calls,
            "servers: steps": 1.0,
            "servers: each": job.servers,
            "servers: tables": job.tables,
            "servers: megabytes": rows + dense,
            "servers: batch": batch,
        },
        "server_ms": {
            "calls": calls,
            "steps": 1.0,
            "tables": job.tables,
            "megabytes": (rows + dense) / job.servers,
        },
        "bytes": {
            "servers: payload": 1e6 * (rows + dense + batch),
            "servers: calls": calls,
            "servers: each": job.servers,
        },
        "packets": {
            "servers: calls": calls,
            "servers: each": job.servers,
            "servers: megabytes": rows + dense + batch,
            "servers: batches": calls * job.chief_reads,
        },
        "delays": {
            "servers: calls": calls,
            "servers: steps": float(not job.overlap),
            # Part of it is while the step before computes.
            "servers: steps that overlap": float(job.overlap),
        },
    }


def _synchronous(job, model, computed):
    others = job.workers - 1
    # A sign, its row and its gradient, where another worker owns it.
    share = others / job.workers
    rows = 1e-6 * model.signs * (8 + 8 * job.dim) * share
    values = 4 * model.weights
    gathered = values * job.workers <= _GATHERED_SUM_BYTES
    ring = 0 if gathered else 2 * others
    dense = 1e-6 * values * (others if gathered else 2 * share)
    return {
        "worker_ms": {
            **computed,
            "workers: steps": 1.0,
            "workers: others": others,
            "workers: tables": job.tables,
            "workers: megabytes": rows + dense,
            "workers: ring": ring,
        },
        "bytes": {
            "workers: rows": 1e6 * rows,
            "workers: dense": 1e6 * dense,
            "workers: others": others,
        },
        "packets": {
            "workers: others": others,
            "workers: megabytes": rows + dense,
            "workers: ring": ring,
        },
        "delays": {"workers: steps": 1.0, "workers: ring": ring},
    }


def predict(job, model, coefficients=None):
    """The costs of a step.

    Args:
      job: Job.
      model: Model.
      coefficients: `{cost: {term: number}}`. None: `COEFFICIENTS`.

    Returns:
      Dict. `chief_ms`, `worker_ms` and `server_ms` are the CPU milliseconds of
      the chief, of the worker whose step it is and of each server, for
      parameter servers; `worker_ms` of each worker, for synchronous ones.
      `bytes` and `packets` are what all tasks send for the step, for
      parameter servers, and what each worker sends, for synchronous ones.
      `delays` is how many one-way delays are in a step, one after another.

    Raises:
      ValueError: a number is out of its range.
    """
    coefficients = coefficients or COEFFICIENTS
    return {
        cost: sum(coefficients[cost][term] * x for term, x in of.items())
        for cost, of in terms(job, model).items()
    }


def limits(job, model, network, coefficients=None):
    """The samples per second that each part of a cluster allows.

    Args:
      job: Job.
      model: Model.
      network: Network.
      coefficients: as for `predict`.

    Returns:
      Dict `{part: samples per second}`; the least is what the cluster reaches
      at most.

    Raises:
      ValueError: a number is out of its range.
    """
    for name in Network._fields:
        value = getattr(network, name)
        if not (value > 0 or (name == "delay_ms" and value == 0)):
            raise ValueError(f"{name} must be positive. Received: {value}")
    cost = predict(job, model, coefficients)
    sending_ms = 1e3 * cost["bytes"] / network.bytes_per_second
    waiting_ms = cost["delays"] * network.delay_ms
    if not job.servers:
        step_ms = cost["worker_ms"] + sending_ms + waiting_ms
        return {"workers": 1e3 * job.workers * job.samples / step_ms}
    # What a worker waits for, one after another, with all tasks idle.
    step_ms = sum(cost[f"{role}_ms"] for role in ("chief", "worker", "server"))
    step_ms += sending_ms + waiting_ms
    milliseconds = {
        "workers": step_ms / job.workers,
        "CPU of servers": cost["server_ms"] / network.cores,
        "network of servers": sending_ms / 2 / job.servers,
        "CPU of the chief": cost["chief_ms"],
    }
    return {
        part: 1e3 * job.samples / value for part, value in milliseconds.items()
    }


def slowest_of(workers, spread):
    """How much longer the slowest of several workers takes than their mean.

    The expected largest of independent normal values, approximately:
    `sqrt(2 ln n)` standard deviations above their mean.

    Args:
      workers: int, at least 1.
      spread: float, the standard deviation of a worker's time, relative to its
        mean.

    Raises:
      ValueError: a number is out of its range.
    """
    if workers < 1 or spread < 0:
        raise ValueError(
            "workers must be at least 1, and spread at least 0. Received: "
            f"workers={workers}, spread={spread}"
        )
    return 1 + spread * math.sqrt(2 * math.log(workers))


def measured(lines):
    """The medians of epochs: `{(Job, Model): {cost: number}}`.

    `delays` is the slope of the time of a step over the delay, of jobs that
    were measured with several; all else is of epochs without.
    """
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in lines:
        model = Model(COLUMNS, line["signs"], line["weights"])
        job = found[Job(**line["job"]), model]
        if line["delay_seconds"] is None:
            for cost in set(COSTS) & line.keys():
                job[cost].append(line[cost])
        else:
            point = 1e3 * line["delay_seconds"], line["wall_ms"]
            job["delays"].append(point)
    return {
        key: {
            cost: _slope(v) if cost == "delays" else statistics.median(v)
            for cost, v in costs.items()
        }
        for key, costs in found.items()
    }


def _slope(points):
    """The median slope of pairs that are far apart (Theil and Sen)."""
    return statistics.median(
        (second[1] - first[1]) / (second[0] - first[0])
        for first, second in itertools.combinations(sorted(points), 2)
        if second[0] - first[0] > 1
    )


def fit(costs):
    """Coefficients with the least squares of relative errors.

    Args:
      costs: as `measured` returns them.

    Returns:
      `{cost: {term: number}}`, no number of which is negative.
    """
    coefficients = {}
    for cost in COSTS:
        rows = [
            (terms(*key)[cost], of[cost])
            for key, of in costs.items()
            if cost in of
        ]
        names = list(dict.fromkeys(name for x, _ in rows for name in x))
        matrix = np.array(
            [[x.get(name, 0.0) / y for name in names] for x, y in rows]
        )
        coefficients[cost] = dict(zip(names, _not_negative(matrix).tolist()))
    return coefficients


def _not_negative(matrix):
    """Makes `matrix @ x` near 1, x >= 0; leaves out the most negative."""
    kept = list(range(matrix.shape[1]))
    while True:
        some = matrix[:, kept]
        x, *_ = np.linalg.lstsq(some, np.ones(len(matrix)), rcond=None)
        if x.min() >= 0:
            break
        del kept[int(np.argmin(x * some.mean(axis=0)))]
    full = np.zeros(matrix.shape[1])
    full[kept] = x
    return full
