"""Exports for serving: their size, memory, latency and accuracy."""

import contextlib
import os
import pathlib
import statistics
import sys
import tempfile

import remote
from harness import heading, report, write_json

_PROGRAM = pathlib.Path(__file__).with_name("serving_worker.py")
_DTYPES = ("float32", "float16", "int8")
_OPS = "ops"
# Requests of 200 samples x 26 ids, and what a busy server looks up.
_LOOKUPS = (26, 5_200, 100_000)
_RELOADS = 20
_EXAMPLES = 300_000
# Of what `--data` names, the one that has held-out files.
_ADULT = "adult"


def serving(args):
    """All measurements; each in processes of its own."""
    settings = {"threads": args.threads, "rows": args.rows, "dim": args.dim}
    with tempfile.TemporaryDirectory(dir=args.output) as directory:
        sizes = _export(args, directory)
        folders = {name: one["folder"] for name, one in sizes.items()}
        for name, folder in folders.items():
            if name != _OPS:
                with _worker(args) as worker:
                    sizes[name]["resident"] = worker.call(
                        "resident", path=folder, rows=args.rows
                    )
        _report_sizes(sizes, settings, args)
        _lookups(args, directory, settings)
        # float32 is the subject: what the ops take is over its time.
        for samples in (200, 1):
            with _worker(args) as worker:
                results = worker.call(
                    "latency",
                    paths=folders,
                    rows=args.rows,
                    samples=samples,
                    repeats=args.repeats,
                )
            about = {**settings, "samples": samples, "unit": "samples"}
            report("serving latency", results, about, args.json)
        _reloads(args, directory, settings)
        _accuracy(args, directory, settings)


@contextlib.contextmanager
def _worker(args):
    """A new process, ready for calls."""
    environment = dict(os.environ)
    # Its modules are in its own folder.
    environment.pop("PYTHONSAFEPATH", None)
    with remote.start(
        "serving", sys.executable, _PROGRAM, args.threads, environment
    ) as worker:
        worker.ready()
        yield worker


def _export(args, directory):
    """Exports in all types and with the ops: `{name: dict}` of what it took."""
    sizes = {}
    # Anew for each: what an export has left would be there for the next one.
    for name in (*_DTYPES, _OPS):
        dtype = None if name == _OPS else name
        with _worker(args) as worker:
            worker.call("make", rows=args.rows, dim=args.dim)
            path = os.path.join(directory, name)
            sizes[name] = worker.call("export", path=path, dtype=dtype)
            if name != _OPS:
                worker.call(
                    "export_table", path=_table(directory, name), dtype=dtype
                )
    return sizes


def _table(directory, name):
    return os.path.join(directory, f"{name}_table")


def _report_sizes(sizes, settings, args):
    raw = args.rows * (8 + 4 * args.dim)
    weights = args.rows * 4 * args.dim
    print(heading("serving sizes", settings))
    print(
        f"  {'case':12} {'disk, of raw':>14} {'resident, of raw':>18} "
        f"{'peak of export, of weights':>28}"
    )
    lines = []
    for case, size in sizes.items():
        line = {
            "disk_ratio": size["bytes"] / raw,
            "resident_ratio": size.get("resident", float("nan")) / raw,
            "peak_ratio": size["peak"] / weights,
        }
        print(
            f"  {case:12} {line['disk_ratio']:14.3f} "
            f"{line['resident_ratio']:18.2f} {line['peak_ratio']:28.2f}"
        )
        about = {"benchmark": "serving sizes", **settings, "case": case}
        lines.append({**about, **size, **line})
    write_json(lines, args.json)


def _lookups(args, directory, settings):
    for count in _LOOKUPS:
        with _worker(args) as worker:
            results = worker.call(
                "lookups",
                paths={name: _table(directory, name) for name in _DTYPES},
                rows=args.rows,
                dim=args.dim,
                count=count,
                repeats=args.repeats,
            )
        about = {**settings, "ids": count, "unit": "ids"}
        report("serving lookups", results, about, args.json)


def _reloads(args, directory, settings):
    """Versions of a tenth of the rows, loaded after one another."""
    rows = max(1, args.rows // 10)
    path = os.path.join(directory, "reloaded")
    with _worker(args) as worker:
        worker.call("make", rows=rows, dim=args.dim)
        exported = worker.call("export", path=path, dtype="float32")
    with _worker(args) as worker:
        sizes = worker.call(
            "reload", path=exported["folder"], rows=rows, times=_RELOADS
        )
    growth = sizes[-1] / sizes[4] - 1
    about = {**settings, "rows": rows, "versions": _RELOADS}
    print(heading("serving reloads", about))
    print(
        f"  resident: 1st {sizes[0] / 1e6:.0f} MB, 5th {sizes[4] / 1e6:.0f} "
        f"MB, last {sizes[-1] / 1e6:.0f} MB; from the 5th on {growth:+.2%}, "
        f"median {statistics.median(sizes[4:]) / 1e6:.0f} MB"
    )
    line = {"case": "float32", "bytes": sizes, "growth": growth}
    write_json([{"benchmark": "serving reloads", **about, **line}], args.json)


def _accuracy(args, directory, settings):
    data = {"generated": None}
    if args.data and pathlib.Path(args.data, _ADULT).is_dir():
        data[_ADULT] = os.path.join(args.data, _ADULT)
    dtypes = ["float32", "float16", "bfloat16", "int8"]
    lines = []
    print(heading("serving accuracy", {"threads": settings["threads"]}))
    for name, path in data.items():
        with _worker(args) as worker:
            found = worker.call(
                "accuracy",
                directory=os.path.join(directory, name),
                dtypes=dtypes,
                examples=min(_EXAMPLES, args.rows),
                data=path,
            )
        for dtype, line in found.items():
            change = line["auc"] - found["float32"]["auc"]
            print(
                f"  {name:10} {dtype:10} AUC {line['auc']:.6f} ({change:+.1e}),"
                f" largest change of a probability {line['largest']:.1e}"
            )
            about = {"benchmark": "serving accuracy", "case": dtype}
            lines.append({**about, "data": name, **line, "auc_change": change})
    write_json(lines, args.json)
