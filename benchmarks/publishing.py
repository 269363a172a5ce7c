"""Publishes results, which are JSON lines, as a plot and in README.md."""

import collections
import pathlib

from harness import read_json

_HERE = pathlib.Path(__file__).parent
_BEGIN = "<!-- results: written by `run.py publish` -->\n"
_END = "<!-- end of results -->"
# What results that name no type were measured with.
_DEFAULTS = {"dtype": "float32", "slot_dtype": "float32"}
# What tells the lines of a benchmark apart; the last one of each counts.
_IDENTITY = (
    *("keys", "rule", "rows", "threads", "case"),
    *("workers", "servers", "dim", "batch", "machine"),
    *_DEFAULTS,
)
# What was measured: {key: (heading, format)}. All else are settings.
_MEASURES = {
    "cpu_ms": ("CPU ms", "{cpu_ms:,.2f} ±{cpu_spread_ms:,.2f}"),
    "wall_ms": ("wall ms", "{wall_ms:,.2f} ±{wall_spread_ms:,.2f}"),
    "million_items_per_cpu_s": ("M {unit} / CPU s", "{:.3g}"),
    "million_items_per_wall_s": ("M {unit} / s", "{:.3g}"),
    "cpu_ratio": ("CPU ratio", "{:.2f}"),
    "wall_ratio": ("wall ratio", "{:.2f}"),
    "repeats": ("repeats", "{}"),
    "bytes_a_row": ("bytes a row", "{:.1f}"),
    "raw_ratio": ("of raw", "{:.2f}"),
    "peak_bytes_a_row": ("at the peak", "{:.1f}"),
    "peak_raw_ratio": ("of raw", "{:.2f}"),
    "float32_ratio": ("of float32", "{:.3f}"),
    "worst_batch_ms": ("worst batch, ms", "{:.1f}"),
    "max_probe_length": ("most buckets read", "{}"),
}
_UNSEEN = ("benchmark", "items", "unit", "cpu_spread_ms", "wall_spread_ms")


def plot(args):
    """Plots pull throughput over table size, one line per number of threads."""
    lines = [r for r in read_json(args.json) if r["benchmark"] == "scale"]
    if not lines:
        raise SystemExit(f"{args.json} has no results of `scale`.")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    curves = collections.defaultdict(dict)
    for line in lines:
        name = line["case"].split(",")[0]
        rate = line["million_items_per_wall_s"]
        curves[name, line["threads"]][line["rows"]] = rate
    figure, axes = pyplot.subplots(figsize=(7.5, 4.5))
    for (name, threads), rates in sorted(curves.items(), reverse=True):
        sizes = sorted(rates)
        axes.plot(
            sizes,
            [rates[size] for size in sizes],
            marker="o",
            color={1: "tab:orange", 2: "tab:blue"}.get(threads),
            linestyle="-" if name.startswith("tf_ext") else "--",
            label=f"{name}, {threads} thread{'s' if threads > 1 else ''}",
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=" "))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows in the table")
    axes.set_ylabel("rows read a second, wall time (millions)")
    axes.set_title(
        f"Reading {lines[0]['batch']:,} uniform existing keys, "
        f"dim {lines[0]['dim']}\n{lines[0]['machine']}",
        fontsize=10,
    )
    axes.grid(alpha=0.3)
    axes.legend()
    path = pathlib.Path(args.output or _HERE, "scale.png")
    figure.savefig(path, dpi=100, bbox_inches="tight")
    pyplot.close(figure)
    print(f"wrote {path}")


def publish(args):
    """Writes the last results of each kind into README.md, as tables."""
    benchmarks = {}
    for line in read_json(args.json):
        if "against" in line:
            continue
        lines = benchmarks.setdefault(line["benchmark"], {})
        identity = (line.get(key, _DEFAULTS.get(key)) for key in _IDENTITY)
        lines[tuple(identity)] = line
    text = "\n".join(
        _section(name, list(lines.values()))
        for name, lines in benchmarks.items()
    )
    readme = (_HERE / "README.md").read_text()
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not end:
        raise SystemExit(f"README.md has no lines {_BEGIN.strip()} and {_END}")
    path = pathlib.Path(args.output or _HERE, "README.md")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")
    print(f"wrote {path}")


def _section(name, lines):
    """A heading, the settings all lines share, and a table of the rest."""
    keys = list(dict.fromkeys(key for line in lines for key in line))
    settings = [k for k in keys if k not in _MEASURES and k not in _UNSEEN]
    shared = [k for k in settings if len({line.get(k) for line in lines}) == 1]
    varying = [k for k in settings if k not in shared]
    measures = [k for k in _MEASURES if k in keys]
    unit = lines[0].get("unit")
    headings = [k.replace("_", " ") for k in varying]
    headings += [_MEASURES[k][0].format(unit=unit) for k in measures]
    table = [headings, ["---"] * len(headings)]
    for line in lines:
        row = [_text(line.get(k)) for k in varying]
        row += [
            _MEASURES[k][1].format(line[k], **line) if k in line else ""
            for k in measures
        ]
        table.append(row)
    said = "; ".join(
        f"{k.replace('_', ' ')} {_text(lines[0][k])}" for k in shared
    )
    rows = "".join(f"| {' | '.join(row)} |\n" for row in table)
    return f"### {name}\n\n{said[:1].upper()}{said[1:]}.\n\n{rows}"


def _text(value):
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)
