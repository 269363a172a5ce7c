# SPDX-License-Identifier: Apache-2.0
"""The command line of snapshots: `python -m tf_ext.snapshot`."""

import argparse
import dataclasses
import os
from collections.abc import Callable, Sequence

import numpy as np

from tf_ext import _terminal as terminal
from tf_ext.snapshot import merging, parquet, reader, resharding, top, writer
from tf_ext.snapshot.counting import entries_of
from tf_ext.snapshot.manifest import (
    DamagedSnapshotError,
    Manifest,
    SnapshotConflictError,
)
from tf_ext.snapshot.transforming import bytes_to_read, transform

_PROGRAM = "python -m tf_ext.snapshot"
# How many weights of a row `top` prints.
_WEIGHTS = 4
_STATUS = """\
exit status:
  0  success, and no damage was found
  1  the snapshot is damaged; the message names file and byte
  2  any other error: no snapshot found, disk full, invalid argument, ...
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      arguments: list of strings, the command line. None: that of the process.

    Returns:
      int, the exit status: 0 for success, 1 for damage, 2 for other errors.
      Errors are printed to standard error, in one line each.
    """
    return terminal.run(
        _parser(), arguments, DamagedSnapshotError, (SnapshotConflictError,)
    )


def _parser() -> argparse.ArgumentParser:
    parser = terminal.new_parser(
        _PROGRAM, "Inspects, checks and rewrites snapshots of tables.", _STATUS
    )
    commands = parser.add_subparsers(
        metavar="COMMAND", required=True, title="commands"
    )
    _add(commands, "inspect", _inspect, "describe a snapshot")
    _add(commands, "verify", _verify, "read all files and check every byte")
    reshard = _add(
        commands,
        "reshard",
        _reshard,
        "write a snapshot with another number of shards",
        ("out", "a directory that does not exist yet, or is empty"),
    )
    reshard.add_argument(
        "--shards",
        type=int,
        required=True,
        metavar="N",
        help="the number of shards",
    )
    _add(
        commands,
        "compact",
        _compact,
        "merge a delta and its bases into a full snapshot",
        ("out", "a directory that does not exist yet, or is empty"),
    )
    _add_transform(commands)
    _add(
        commands,
        "to-parquet",
        _to_parquet,
        "write the rows to a Parquet file (pip install 'tf_ext[parquet]')",
        ("out", "the file"),
    )
    first = _add(
        commands,
        "top",
        _top,
        "print the largest, most shown or most recently pushed rows",
    )
    first.add_argument(
        "--by",
        choices=top.ORDERS,
        default=top.NORM,
        help="the Euclidean norm of the weights, or a field (default: norm)",
    )
    first.add_argument(
        "--count",
        type=int,
        default=20,
        metavar="N",
        help="the number of rows (default: 20)",
    )
    return parser


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
    *arguments: tuple[str, str],
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    for argument, about in (("path", "the snapshot's directory"), *arguments):
        command.add_argument(argument, metavar=argument.upper(), help=about)
    command.set_defaults(run=run)
    return command


def _add_transform(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> None:
    command = _add(
        commands,
        "transform",
        _transform,
        "write a snapshot for a table of another shape",
        ("out", "a directory that does not exist yet, or is empty"),
    )
    for option, metavar, text in (
        ("--name", "NAME", "the name of the table"),
        ("--optimizer", "RULE", "the update rule, such as adagrad"),
        ("--dtype", "TYPE", "the type of weights, such as float16"),
        ("--slot-dtype", "TYPE", "the type of slots, such as bfloat16"),
        ("--projection", "FILE", "a matrix [dim, N], of numpy.save"),
    ):
        command.add_argument(option, metavar=metavar, help=text)
    command.add_argument(
        "--dim",
        type=int,
        metavar="N",
        help="the first N positions, or with more of them, those of new rows",
    )
    condition = "a condition such as 'show>=3', or a file .npy with signs"
    for option, text in (
        ("--keep", f"only rows that are of all of these: {condition}"),
        ("--drop", f"no rows that are of any of these: {condition}"),
        (
            "--merge",
            "another snapshot, whose rows are merged into those",
        ),
    ):
        metavar = "PATH" if option == "--merge" else "CONDITION"
        command.add_argument(
            option, action="append", default=[], metavar=metavar, help=text
        )
    command.add_argument(
        "--by",
        choices=merging.RULES,
        default=merging.PRIORITY,
        help="which row of a sign stays: the first table's, the mean, or the "
        "most shown (default: priority)",
    )


def _transform(options: argparse.Namespace) -> int:
    total = bytes_to_read([options.path, *options.merge])
    with terminal.progress("transforming", total) as progress:
        manifest = transform(
            options.path,
            options.out,
            dim=options.dim,
            projection=options.projection,
            name=options.name,
            optimizer=options.optimizer,
            dtype=options.dtype,
            slot_dtype=options.slot_dtype,
            keep=options.keep,
            drop=options.drop,
            merge=options.merge,
            by=options.by,
            progress=progress,
        )
    if manifest.conversion is not None:
        _, rounded, saturated = dataclasses.astuple(manifest.conversion)
        print(f"{rounded:,} values were rounded, {saturated:,} to the largest.")
    return _written(manifest, options.out)


def _inspect(options: argparse.Namespace) -> int:
    snapshot = reader.open_snapshot(options.path)
    manifest = snapshot.manifest
    config = entries_of(manifest.config)
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
        **_counters(manifest),
        "size": f"{terminal.size(manifest.bytes)} in "
        f"{terminal.count(manifest.files, 'file')}",
        "shards": manifest.shards,
        "step": "unknown" if manifest.step is None else f"{manifest.step:,}",
        "versions": f"tf_ext {manifest.tf_ext_version}, TensorFlow "
        f"{manifest.tensorflow_version}",
        "id": manifest.id,
    }
    for key in ("name", "dtype"):  # printed as `table` and `fields`
        config.pop(key, None)
    lines["config"] = ", ".join(f"{k}={v}" for k, v in config.items())
    for name, value in lines.items():
        print(f"{name:9} {value}")
    if len(snapshot.chain) > 1:
        print(
            f"\nchain of {len(snapshot.chain)}, {terminal.size(snapshot.bytes)}"
        )
        _print_chain(snapshot.chain)
    return terminal.OK


def _counters(manifest: Manifest) -> dict[str, str]:
    if manifest.counters is None:
        return {}
    count, size = manifest.counters.count, manifest.counters.bytes
    return {
        "counters": f"{count:,} in period {manifest.counters.period:,}, "
        f"{terminal.size(size)}"
    }


def _print_chain(chain: Sequence[tuple[str, Manifest]]) -> None:
    rows = [("", "kind", "step", "rows", "erased", "size", "directory")]
    for path, manifest in chain:
        rows.append(
            (
                str(manifest.sequence),
                manifest.kind,
                "-" if manifest.step is None else f"{manifest.step:,}",
                f"{manifest.rows:,}",
                f"{manifest.erased:,}",
                terminal.size(manifest.bytes),
                path,
            )
        )
    terminal.print_columns(rows, left=(1, 6))


def _verify(options: argparse.Namespace) -> int:
    snapshot = reader.open_snapshot(options.path)
    damaged = 0
    total = snapshot.bytes + snapshot.counter_bytes
    with terminal.progress("verifying", total) as progress:
        for error in snapshot.damage(progress):
            damaged += 1
            terminal.fail(_PROGRAM, error, terminal.DAMAGED)
    files = sum(len(manifest.all_files) for _, manifest in snapshot.chain)
    if damaged:
        message = f"{damaged} of {files} files of {snapshot.path} are damaged."
        return terminal.fail(_PROGRAM, message, terminal.DAMAGED)
    chain = len(snapshot.chain)
    of = f" of a chain of {chain} snapshots" if chain > 1 else ""
    print(
        f"{snapshot.path} is whole: {files} file{'s' * (files != 1)}"
        f"{of}, {terminal.size(total)}."
    )
    return terminal.OK


def _reshard(options: argparse.Namespace) -> int:
    snapshot = reader.open_snapshot(options.path)
    total = _bytes_to_rewrite(snapshot, options.shards)
    with terminal.progress("resharding", total) as progress:
        manifest = resharding.reshard(
            options.path, options.out, options.shards, progress
        )
    return _written(manifest, options.out)


def _compact(options: argparse.Namespace) -> int:
    snapshot = reader.open_snapshot(options.path)
    total = _bytes_to_rewrite(snapshot, snapshot.manifest.shards)
    with terminal.progress("compacting", total) as progress:
        manifest = resharding.compact(options.path, options.out, progress)
    return _written(manifest, options.out)


def _bytes_to_rewrite(snapshot: reader.Snapshot, shards: int) -> int:
    parts = reader.common_shards(snapshot.chain)
    rows = snapshot.bytes * writer.times_read(parts, shards)
    return rows + resharding.counter_bytes(snapshot.manifest, shards)


def _to_parquet(options: argparse.Namespace) -> int:
    total = reader.open_snapshot(options.path).bytes
    with terminal.progress("converting", total) as progress:
        rows = parquet.to_parquet(options.path, options.out, progress)
    size = os.path.getsize(options.out)
    print(f"{options.out}: {rows:,} rows, {terminal.size(size)}.")
    return terminal.OK


def _top(options: argparse.Namespace) -> int:
    snapshot = reader.open_snapshot(options.path)
    unit = entries_of(snapshot.manifest.config).get("last_seen")
    with terminal.progress("reading", snapshot.bytes) as progress:
        found = top.top_rows(options.path, options.by, options.count, progress)
    rows = [("sign", options.by, "weights")]
    for sign, value, weights in zip(*map(np.ndarray.tolist, found)):
        shown = [f"{weight:.4g}" for weight in weights[:_WEIGHTS]]
        more = ["..."] * (len(weights) > _WEIGHTS)
        text = top.in_words(options.by, value, unit)
        rows.append((str(sign), text, " ".join(shown + more)))
    terminal.print_columns(rows, left=(2,))
    return terminal.OK


def _written(manifest: Manifest, out: str) -> int:
    shards = terminal.count(range(manifest.shards), "shard")
    size = terminal.size(manifest.bytes)
    print(f"{out}: {manifest.rows:,} rows in {shards}, {size}.")
    return terminal.OK
