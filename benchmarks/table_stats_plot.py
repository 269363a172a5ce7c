"""Plots what `tf_ext.callbacks.TableStats` has written."""

import pathlib

import numpy as np
from harness import read_json

_PLOT = pathlib.Path(__file__).parents[1] / "docs" / "table_stats.png"


def plot_table_stats(args):
    """Plots the table with the widest rows of a file of reports."""
    reports = read_json(args.json)
    if not reports or "tables" not in reports[0]:
        raise SystemExit(f"{args.json} has no reports of TableStats.")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [report["step"] for report in reports]
    last = max(
        reports[-1]["tables"], key=lambda t: t["bytes"] / (t["rows"] or 1)
    )
    tables = [
        next(t for t in report["tables"] if t["table"] == last["table"])
        for report in reports
    ]
    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6), sharex=True)
    (memory, lifetime, updates), (load, norms, weights) = axes
    _lines(memory, steps, tables, ["rows", "waiting"], "ids")
    _lines(
        lifetime,
        steps,
        tables,
        ["interval.inserted", "interval.evicted"],
        "rows in an interval",
    )
    _lines(
        updates, steps, tables, ["interval.updated_per_step"], "rows in a step"
    )
    _lines(load, steps, tables, ["load", "interval.hits"], "share")
    load.set_ylim(0, 1)
    _lines(
        norms,
        steps,
        tables,
        ["weights.norm_mean", "weights.norm_max", "weights.std"],
        "weights",
    )
    _histograms(weights, steps, tables)
    for one in axes[1]:
        one.set_xlabel("step")
    figure.suptitle(f"table {last['table']}")
    figure.tight_layout()
    path = pathlib.Path(args.output, _PLOT.name) if args.output else _PLOT
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    print(f"wrote {path}")


def _lines(axes, steps, tables, names, unit):
    """Draws members of reports; `a.b` is the member b of a."""
    for name in names:
        axes.plot(steps, [_member(table, name) for table in tables], label=name)
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="best")


def _member(table, name):
    value = table
    for part in name.split("."):
        value = None if value is None else value[part]
    return np.nan if value is None else value


def _histograms(axes, steps, tables):
    """Draws the density of weights over the steps."""
    found = [table["weights"]["histogram"] for table in tables]
    # Without the few that are far away.
    largest = 3 * max(table["weights"]["std"] or 0 for table in tables)
    grid = np.linspace(-largest, largest, 80)
    densities = []
    for histogram in found:
        edges = np.array(histogram["edges"])
        # The weights below an edge, and between edges as if evenly spread.
        below = np.cumsum([0, *histogram["counts"]])
        shares = np.diff(np.interp(grid, edges, below)) / below[-1]
        densities.append(shares / np.diff(grid))
    axes.pcolormesh(
        [0, *steps], grid, np.transpose(densities), cmap="Blues", shading="flat"
    )
    axes.set_ylabel("weights, by density")
