"""Fits the model of scaling to what was measured, checks it, and draws it."""

import collections
import itertools
import pathlib
import pprint
import statistics

import numpy as np
from harness import read_json
from scaling_benchmarks import CHECKED
from scaling_model import Job, Model, Network, limits, predict, terms

COSTS = ("chief_ms", "worker_ms", "server_ms", "bytes", "packets", "delays")
_DECIMALS = {"bytes": 0, "packets": 1, "delays": 1}
_PLOT = pathlib.Path(__file__).parents[1] / "docs" / "scaling.png"
_COLUMNS = 26
# What docs/scaling.md extrapolates: steps of 2,048 samples, dim 16.
LARGE = Model(_COLUMNS, 14_353, 28_801)
NETWORK = Network(cores=8, bytes_per_second=1.25e9, delay_ms=0.1)


def fit_scaling(args):
    """Fits to the lines of `scaling`; prints tables and draws the plot."""
    lines = [r for r in read_json(args.json) if r["benchmark"] == "scaling"]
    if not lines:
        raise SystemExit(f"{args.json} has no results of `scaling`.")
    costs = measured(lines)
    coefficients = fit(
        {key: of for key, of in costs.items() if key[0] not in CHECKED}
    )
    rounded = {
        cost: {name: float(f"{x:.4g}") for name, x in of.items()}
        for cost, of in coefficients.items()
    }
    print("COEFFICIENTS = " + pprint.pformat(rounded, sort_dicts=False))
    _print_table(costs, rounded)
    _print_large(rounded)
    _plot(costs, rounded, args.output)


def measured(lines):
    """The medians of epochs: `{(Job, Model): {cost: number}}`.

    `delays` is the slope of the time of a step over the delay, of jobs that
    were measured with several; all else is of epochs without.
    """
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in lines:
        model = Model(_COLUMNS, line["signs"], line["weights"])
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


def name_of(job):
    """Workers, servers, and what a step is."""
    kind = f"{job.workers} + {job.servers}" if job.servers else job.workers
    reads = ", the chief reads" if job.chief_reads else ""
    execution = f", {job.execution} at once" if job.execution > 1 else ""
    execution += " that overlap" if job.overlap else ""
    return (
        f"| {kind} | {job.samples:,} | {job.tables} | {job.dim}"
        f"{execution}{reads} |"
    )


def _print_table(costs, coefficients):
    for checked in (False, True):
        print("\nchecked" if checked else "\nfitted")
        for key, of in sorted(costs.items(), key=_order):
            if (key[0] in CHECKED) != checked:
                continue
            predicted = predict(*key, coefficients)
            cells = [
                f" {of[cost]:,.{_DECIMALS.get(cost, 2)}f} "
                f"({predicted[cost] / of[cost]:.2f}) |"
                if cost in of
                else " |"
                for cost in COSTS
            ]
            print(name_of(key[0]) + "".join(cells))


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


def _order(item):
    (job, _), _ = item
    return job.servers == 0, job


def total_cpu(job, of):
    """CPU milliseconds of all tasks for a worker's step."""
    if not job.servers:
        return of["worker_ms"]
    return of["chief_ms"] + of["worker_ms"] + job.servers * of["server_ms"]


def _plot(costs, coefficients, output):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (check, cpu, rates) = pyplot.subplots(1, 3, figsize=(15, 4.5))
    _plot_check(check, costs, coefficients)
    _plot_cpu(cpu, coefficients)
    _plot_limits(rates, coefficients)
    for axes in (check, cpu, rates):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.tight_layout()
    path = pathlib.Path(output, _PLOT.name) if output else _PLOT
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    print(f"wrote {path}")


def _plot_check(axes, costs, coefficients):
    from matplotlib import ticker

    for checked, marker in ((False, "x"), (True, "o")):
        for servers, color in ((True, "tab:blue"), (False, "tab:orange")):
            points = [
                (
                    total_cpu(job, of),
                    total_cpu(job, predict(job, model, coefficients)),
                )
                for (job, model), of in costs.items()
                if (job in CHECKED, job.servers > 0) == (checked, servers)
                and "worker_ms" in of
            ]
            if not points:
                continue
            what = "parameter servers" if servers else "synchronous workers"
            use = "checked" if checked else "fitted"
            axes.scatter(
                *zip(*points),
                marker=marker,
                color=color,
                label=f"{what}, {use}",
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        # Plain numbers, few enough not to touch each other.
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(ticker.NullFormatter())
    ends = np.array(axes.get_xlim())
    axes.plot(ends, ends, color="gray")
    axes.fill_between(ends, 0.8 * ends, 1.2 * ends, color="gray", alpha=0.15)
    axes.set_xlim(ends)
    axes.set_xlabel("CPU ms of a step, all its tasks: measured")
    axes.set_ylabel("predicted (band: 20 %)")


def large_jobs():
    """The clusters that are compared: `{name: function of workers}`."""

    def servers(execution):
        return lambda n: Job(n, max(1, n // 4), 2048, 1, 16, execution)

    return {
        "servers: a quarter of the workers": servers(1),
        "the same, 8 steps at once": servers(8),
        "synchronous workers": lambda n: Job(n, 0, 2048, 1, 16),
    }


def _plot_cpu(axes, coefficients):
    workers = [1, 2, 4, 8, 16, 32, 64]
    for name, make in large_jobs().items():
        jobs = [make(n) for n in workers if make(n).servers or n > 1]
        values = [
            1e3
            * total_cpu(job, predict(job, LARGE, coefficients))
            / job.samples
            for job in jobs
        ]
        axes.plot([j.workers for j in jobs], values, marker=".", label=name)
    _set_workers(axes, workers)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("workers (predicted; measured up to 4)")
    axes.set_ylabel("CPU microseconds of a sample")


def _set_workers(axes, workers):
    axes.set_xscale("log", base=2)
    axes.set_xticks(workers, [str(n) for n in workers])


def _plot_limits(axes, coefficients):
    workers = [1, 2, 4, 8, 16, 32, 64, 128]
    for execution, style in ((1, "-"), (8, "--")):
        found = [
            limits(
                Job(n, 16, 2048, 1, 16, execution), LARGE, NETWORK, coefficients
            )
            for n in workers
        ]
        colors = itertools.cycle(["tab:blue", "tab:green", "tab:red", "black"])
        for part, color in zip(found[0], colors):
            axes.plot(
                workers,
                [1e-3 * one[part] for one in found],
                style,
                color=color,
                label=part if execution == 1 else None,
            )
    _set_workers(axes, workers)
    axes.set_yscale("log")
    axes.set_xlabel("workers, with 16 servers (dashed: 8 steps at once)")
    axes.set_ylabel("thousand samples a second at most")
