"""Snapshots at a terminal: `python -m tf_ext.snapshot`."""

import argparse
import contextlib
import os
import sys

from tf_ext._snapshot_manifest import (
    DamagedSnapshotError,
    SnapshotConflictError,
)
from tf_ext.snapshot import parquet, reader, writer

_PROGRAM = "python -m tf_ext.snapshot"
_OK, _DAMAGED, _FAILED, _INTERRUPTED = 0, 1, 2, 130
_STATUS = """\
exit status:
  0  done, and no damage was found
  1  the snapshot is damaged; file and byte are named
  2  anything else: no snapshot there, the disk is full, a wrong argument, ...
"""


def main(arguments=None):
    """Runs one command.

    Args:
      arguments: list of strings, the command line. None: this process's.

    Returns:
      int, the status to exit with: 0 for success, 1 for damage, 2 for other
      errors, which take one line of standard error.
    """
    options = _parser().parse_args(arguments)
    try:
        status = options.run(options)
        sys.stdout.flush()  # Here, where a pipe that is closed is expected.
        return status
    except DamagedSnapshotError as error:
        return _fail(error, _DAMAGED)
    except BrokenPipeError:
        # `... | head` has seen enough. The interpreter flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _OK
    except (
        ModuleNotFoundError,
        OSError,
        SnapshotConflictError,
        ValueError,
    ) as error:
        return _fail(error, _FAILED)
    except MemoryError:
        return _fail("there is not enough memory.", _FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted; nothing was written.", _INTERRUPTED)


def _parser():
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="Looks at, checks and rewrites snapshots of tables.",
        epilog=_STATUS,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=16
        ),
    )
    commands = parser.add_subparsers(
        metavar="COMMAND", required=True, title="commands"
    )
    _add(commands, "inspect", _inspect, "tell what a snapshot holds")
    _add(commands, "verify", _verify, "read all files and check every byte")
    reshard = _add(
        commands,
        "reshard",
        _reshard,
        "write a snapshot in another number of shards",
        ("out", "a directory that does not exist yet, or is empty"),
    )
    reshard.add_argument(
        "--shards", type=int, required=True, metavar="N", help="how many"
    )
    _add(
        commands,
        "compact",
        _compact,
        "merge a delta and all that it continues into a full snapshot",
        ("out", "a directory that does not exist yet, or is empty"),
    )
    _add(
        commands,
        "to-parquet",
        _to_parquet,
        "write the rows to a Parquet file (pip install 'tf_ext[parquet]')",
        ("out", "the file"),
    )
    return parser


def _add(commands, name, run, text, *arguments):
    command = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    for argument, about in (("path", "the snapshot's directory"), *arguments):
        command.add_argument(argument, metavar=argument.upper(), help=about)
    command.set_defaults(run=run)
    return command


def _inspect(options):
    snapshot = reader.open_snapshot(options.path)
    manifest = snapshot.manifest
    config = _config(manifest)
    erased = f", {manifest.erased:,} erased signs" if manifest.erased else ""
    base = f", of {manifest.base[0]}" if manifest.base else ""
    lines = {
        "snapshot": snapshot.path,
        "kind": manifest.kind + base,
        "table": manifest.label,
        "dim": config.pop("dim"),
        "fields": ", ".join(
            f"{name} {dtype}[{count}]"
            for name, (dtype, count) in snapshot.fields.items()
        ),
        "rows": f"{manifest.rows:,} of {manifest.row_bytes:,} bytes{erased}",
        "size": f"{_size(manifest.bytes)} in {_count(manifest.files, 'file')}",
        "shards": manifest.shards,
        "step": "unknown" if manifest.step is None else f"{manifest.step:,}",
        "versions": f"tf_ext {manifest.tf_ext_version}, TensorFlow "
        f"{manifest.tensorflow_version}",
        "id": manifest.id,
    }
    for key in ("name", "dtype"):  # which are above already
        config.pop(key, None)
    lines["config"] = ", ".join(f"{k}={v}" for k, v in config.items())
    for name, value in lines.items():
        print(f"{name:9} {value}")
    if len(snapshot.chain) > 1:
        print(f"\nchain of {len(snapshot.chain)}, {_size(snapshot.bytes)}")
        _print_chain(snapshot.chain)
    return _OK


def _print_chain(chain):
    rows = [("", "kind", "step", "rows", "erased", "size", "directory")]
    for path, manifest in chain:
        rows.append(
            (
                str(manifest.sequence),
                manifest.kind,
                "-" if manifest.step is None else f"{manifest.step:,}",
                f"{manifest.rows:,}",
                f"{manifest.erased:,}",
                _size(manifest.bytes),
                path,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        *numbers, path = (
            cell.ljust(width) if column in (1, 6) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        )
        print("  ".join([*numbers, path]).rstrip())


def _verify(options):
    snapshot = reader.open_snapshot(options.path)
    damaged = 0
    with _progress("verifying", snapshot.bytes) as progress:
        for error in snapshot.damage(progress):
            damaged += 1
            _fail(error, _DAMAGED)
    files = sum(len(manifest.files) for _, manifest in snapshot.chain)
    if damaged:
        message = f"{damaged} of {files} files of {snapshot.path} are damaged."
        return _fail(message, _DAMAGED)
    chain = len(snapshot.chain)
    of = f" of a chain of {chain} snapshots" if chain > 1 else ""
    print(
        f"{snapshot.path} is whole: {files} file{'s' * (files != 1)}"
        f"{of}, {_size(snapshot.bytes)}."
    )
    return _OK


def _reshard(options):
    total = reader.open_snapshot(options.path).bytes
    passes = writer.passes(options.shards)
    with _progress("resharding", total * passes) as progress:
        manifest = writer.reshard(
            options.path, options.out, options.shards, progress
        )
    return _written(manifest, options.out)


def _compact(options):
    snapshot = reader.open_snapshot(options.path)
    total = snapshot.bytes * writer.passes(snapshot.manifest.shards)
    with _progress("compacting", total) as progress:
        manifest = writer.compact(options.path, options.out, progress)
    return _written(manifest, options.out)


def _to_parquet(options):
    total = reader.open_snapshot(options.path).bytes
    with _progress("converting", total) as progress:
        rows = parquet.to_parquet(options.path, options.out, progress)
    size = os.path.getsize(options.out)
    print(f"{options.out}: {rows:,} rows, {_size(size)}.")
    return _OK


def _written(manifest, out):
    shards = _count(range(manifest.shards), "shard")
    print(
        f"{out}: {manifest.rows:,} rows in {shards}, {_size(manifest.bytes)}."
    )
    return _OK


def _fail(error, status):
    text = " ".join(str(error).split())
    print(f"{_PROGRAM}: error: {text}", file=sys.stderr)
    return status


@contextlib.contextmanager
def _progress(what, total):
    """A function that is called with bytes, and moves a bar on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import console, progress

    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=console.Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda size: bar.advance(task, size)


def _config(manifest):
    return dict(line.split("=", 1) for line in manifest.config.splitlines())


def _count(things, noun):
    n = len(things)
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _size(size):
    if size < 1000:
        return f"{size} bytes"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:,.1f} TB"
