# SPDX-License-Identifier: Apache-2.0
"""Commands of `python -m tf_ext.serving` on stores, without TensorFlow."""

import argparse
import contextlib
import os
import pathlib
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext import _terminal as terminal
from tf_ext._sorted import find_sorted
from tf_ext.serving import folder
from tf_ext.serving.lookups.row_store import read_split_rows
from tf_ext.serving.sinks import row_bytes
from tf_ext.serving.sinks.directory_sink import DirectorySink
from tf_ext.serving.sinks.redis_sink import RedisSink
from tf_ext.serving.sinks.sink import (
    DamagedVersionError,
    Manifest,
    RowChanges,
    Sink,
    SinkError,
    TableChanges,
    checked,
)
from tf_ext.snapshot.changes import all_of
from tf_ext.snapshot.files import read_chain
from tf_ext.snapshot.manifest import DamagedSnapshotError
from tf_ext.snapshot.point_names import table_directory
from tf_ext.snapshot.storage import join, normalised

_PROGRAM = "python -m tf_ext.serving"
_SUFFIX = ".parquet"
_SINK = "a folder, or the address of a Redis and a name in it: " + (
    "redis://localhost:6379/0#NAME"
)
_NONE = np.empty(0, np.int64)
# Signs, and float32 weights.
_Weights: typing.TypeAlias = Iterator[
    tuple[npt.NDArray[np.int64], npt.NDArray[typing.Any]]
]


def main(arguments: Sequence[str]) -> int:
    """Runs one command; see `tf_ext.serving.cli.main`."""
    parser = terminal.new_parser(_PROGRAM, "Fills and checks stores.", "")
    add_commands(
        parser.add_subparsers(
            metavar="COMMAND", required=True, title="commands"
        )
    )
    return terminal.run(
        parser,
        arguments,
        (DamagedSnapshotError, DamagedVersionError),
        (RuntimeError, TypeError),
    )


def add_commands(commands: typing.Any) -> None:
    """Adds the commands of stores to those of a parser."""
    command = _add(
        commands,
        "load-redis",
        _load,
        "load a version of `export --split` into a store",
    )
    command.add_argument("path", metavar="PATH", help="the folder of a version")
    command.add_argument("sink", metavar="SINK", type=_sink, help=_SINK)
    command.add_argument(
        "--dtype",
        choices=row_bytes.DTYPES,
        default="float32",
        help="type in which rows are stored",
    )
    command = _add(
        commands,
        "verify-redis",
        _verify,
        "read all rows and files of a version in a store, and compare them",
    )
    command.add_argument("sink", metavar="SINK", type=_sink, help=_SINK)
    command.add_argument("--version", type=int, help="default: the current one")
    command.add_argument(
        "--against",
        metavar="PATH",
        help="the folder of a version of `export --split`, or a folder of "
        "recovery points, with that of the version: what rows must be",
    )
    command = _add(
        commands,
        "rollback",
        _rollback,
        "make an earlier version the current one",
    )
    command.add_argument("sink", metavar="SINK", type=_sink, help=_SINK)
    command.add_argument("version", type=int, metavar="VERSION")
    command.add_argument(
        "--points",
        metavar="PATH",
        help="the folder of recovery points: training continues from that of "
        "the version. Else nothing is published until `unpin`",
    )
    command = _add(
        commands, "unpin", _unpin, "let versions follow a rollback again"
    )
    command.add_argument("sink", metavar="SINK", type=_sink, help=_SINK)


COMMANDS = ("load-redis", "rollback", "unpin", "verify-redis")


def _add(
    commands: typing.Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    command.set_defaults(run=run)
    return command


def _sink(text: str) -> Sink:
    """The sink that a command names."""
    try:
        if "://" not in text:
            return DirectorySink(text)
        url, hash, name = text.rpartition("#")
        if not hash:
            raise ValueError(f"{text!r} has no #NAME")
        return RedisSink(url, name)
    except (ImportError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _load(options: argparse.Namespace) -> int:
    manifest, path = _split(options.path)
    sink, dtype = options.sink, options.dtype
    files = {
        one["name"]: (path / one["name"]).read_bytes()
        for one in manifest["files"]
        if one["name"].startswith(f"{manifest['dense']}/")
        or one["name"] == manifest.get("onnx", {}).get("file")
    }
    total = sum(one["bytes"] for one in manifest["tables"])
    with terminal.progress("loading", total) as progress:
        tables = [
            _changes(path, one, dtype, progress) for one in manifest["tables"]
        ]
        members = manifest | {
            "kind": "published",
            "dtype": dtype,
            "tables": [one | {"dtype": dtype} for one in manifest["tables"]],
            "files": [one for one in manifest["files"] if one["name"] in files],
        }
        version = sink.write(members, files, tables, sink.versions().current)
    rows = sum(table["rows"] for table in manifest["tables"])
    print(f"{options.path} is version {version}: {rows:,} rows.")
    return terminal.OK


def _changes(
    path: pathlib.Path,
    about: Mapping[str, typing.Any],
    dtype: str,
    progress: Callable[[int], object],
) -> TableChanges:
    def parts() -> Iterator[RowChanges]:
        for signs, weights in read_split_rows(path, about):
            progress(signs.nbytes + weights.nbytes)
            rows = row_bytes.encode(weights, dtype, about["name"])
            yield RowChanges(signs, rows, _NONE)

    name = about["file"].removesuffix(_SUFFIX)
    width = row_bytes.width(dtype, about["dim"])
    return TableChanges(name, width, True, parts)


def _verify(options: argparse.Namespace) -> int:
    sink: Sink = options.sink
    version = options.version or sink.versions().current
    if not version:
        raise SinkError("There is no version yet.")
    manifest = sink.manifest(version)
    for one in manifest["files"]:
        checked(sink.read_file(version, one["name"]), one, version)
    rows = 0
    for place in range(len(manifest["tables"])):
        rows += _verify_table(sink, version, manifest, place, options.against)
    what = "" if options.against is None else f", those of {options.against}"
    print(
        f"Version {version} is whole: {rows:,} rows{what}, and "
        f"{terminal.count(manifest['files'], 'file')}."
    )
    return terminal.OK


def _verify_table(
    sink: Sink,
    version: int,
    manifest: Manifest,
    place: int,
    against: str | None,
) -> int:
    """Compares a table; returns the number of its rows."""
    table, dtype = manifest["tables"][place], manifest["dtype"]
    name = table["file"].removesuffix(_SUFFIX)
    width = row_bytes.width(dtype, table["dim"])
    parts = [(np.empty(0, np.int64), np.empty([0, width], np.uint8))]
    for part in sink.read_rows(version, name):
        if part[1].shape[1] != width:
            raise DamagedVersionError(
                f"Rows of {name} in version {version} have {part[1].shape[1]} "
                f"bytes, but should have {width}."
            )
        parts.append(part)
    signs, rows = map(np.concatenate, zip(*parts, strict=True))
    if against is None:
        return len(signs)
    order = np.argsort(signs)
    signs, rows = signs[order], rows[order]
    seen = 0
    for expected, weights in _expected(against, manifest, place):
        wanted = row_bytes.encode(weights, dtype, name)
        places, there = find_sorted(signs, expected)
        right = there.copy()
        right[there] = (rows[places[there]] == wanted[there]).all(1)
        if not right.all():
            first = int(right.argmin())
            raise DamagedVersionError(
                f"The row of sign {expected[first]} of {name} in version "
                f"{version} is {'another' if there[first] else 'missing'}."
            )
        seen += len(expected)
    if len(signs) != seen:
        raise DamagedVersionError(
            f"{name} in version {version} has {len(signs):,} rows, but should "
            f"have {seen:,}."
        )
    return seen


def _expected(against: str, manifest: Manifest, place: int) -> _Weights:
    """The rows that a table of a version should have."""
    table = manifest["tables"][place]
    if os.path.exists(os.path.join(against, folder.EXTRA)):
        _, split = _split(against)
        yield from read_split_rows(split, table)
        return
    path = join(normalised(against), manifest.get("point", "point"))
    for index in range(1000):
        with contextlib.suppress(FileNotFoundError):
            chain = read_chain(join(path, table_directory(index)))
            if chain[-1][1].id == table.get("snapshot"):
                for part in all_of(chain):
                    yield part.signs, part.weights
                return
            continue
        break
    raise FileNotFoundError(
        f"{path} does not have the rows of {table['name']} in version "
        f"{manifest['version']}."
    )


def _split(path: str) -> tuple[Manifest, pathlib.Path]:
    """The manifest of a version of a split export, and its folder."""
    manifest = folder.read_manifest(path)
    if manifest.get("kind") != "split":
        raise ValueError(
            "Argument `PATH` must be a version of `export --split`. Received: "
            f"{path}, which is of kind {manifest.get('kind', 'model')!r}"
        )
    return manifest, pathlib.Path(path)


def _rollback(options: argparse.Namespace) -> int:
    if options.points is None:
        options.sink.select(options.version, pinned=True)
        print(
            f"Version {options.version} is the current one, until `unpin` or "
            "another rollback."
        )
        return terminal.OK
    from tf_ext.serving.rolling_back import rollback

    rollback(options.sink, options.version, options.points)
    print(
        f"Version {options.version} is the current one, and training continues "
        "from it."
    )
    return terminal.OK


def _unpin(options: argparse.Namespace) -> int:
    current = options.sink.versions().current
    options.sink.select(current, pinned=False)
    print(f"Version {current} is the current one, until the next.")
    return terminal.OK
