# SPDX-License-Identifier: Apache-2.0
"""The command line of exports: `python -m tf_ext.serving`."""

import argparse
import importlib
import os
import typing
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_ext import _terminal as terminal
from tf_ext import ops
from tf_ext._keras import keras
from tf_ext.serving import folder, replay, row_dtypes, store_cli
from tf_ext.serving.exporting import export
from tf_ext.serving.snapshots import export_snapshots
from tf_ext.serving.split import export_split
from tf_ext.snapshot.manifest import (
    DamagedSnapshotError,
    SnapshotConflictError,
)
from tf_ext.snapshot.reader import open_snapshot
from tf_ext.tables.find import tables_of

_PROGRAM = "python -m tf_ext.serving"
_STATUS = """\
exit status:
  0  done, and nothing wrong was found
  1  files are damaged, or what is served differs from the trained model
  2  anything else: no such folder, the disk is full, a wrong argument, ...
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      arguments: list of strings, the command line. None for `sys.argv`.

    Returns:
      int, the exit status: 0 for success, 1 for damage or outputs that differ,
      2 for other errors, each of which is one line on standard error.
    """
    return terminal.run(
        _parser(),
        arguments,
        DamagedSnapshotError,
        (SnapshotConflictError, RuntimeError, TypeError, tf.errors.OpError),
    )


def _parser() -> argparse.ArgumentParser:
    parser = terminal.new_parser(
        _PROGRAM, "Exports models for serving, and checks exports.", _STATUS
    )
    commands = parser.add_subparsers(
        metavar="COMMAND", required=True, title="commands"
    )
    _add_export(commands)
    store_cli.add_commands(commands)
    about = "the folder of a version, or of all versions for the latest"
    for name, run, text in (
        ("inspect", _inspect, "print what an export contains"),
        (
            "verify",
            _verify,
            "check every byte, load the model, and compare its outputs for "
            "the warm-up batches with those of the trained model",
        ),
    ):
        command = _add(commands, name, run, text)
        command.add_argument("path", metavar="PATH", help=about)
    command.add_argument(
        "--limit",
        type=float,
        metavar="X",
        help="largest allowed difference of an output, relative to the output "
        "where that is above 1; the default depends on the dtype: "
        + ", ".join(f"{v:g} ({k})" for k, v in replay.LIMITS.items()),
    )
    return parser


def _add_export(commands: typing.Any) -> None:
    command = _add(
        commands, "export", _export, "export a saved model for serving"
    )
    command.add_argument("model", metavar="MODEL", help="a .keras file")
    command.add_argument("path", metavar="PATH", help="folder of all versions")
    command.add_argument(
        "--snapshot",
        action="append",
        default=[],
        type=_pair,
        metavar="TABLE=DIRECTORY",
        help="take a table's rows from a snapshot; once for each table",
    )
    command.add_argument(
        "--dtype",
        choices=row_dtypes.NAMES,
        default="float32",
        help="type in which rows are stored",
    )
    command.add_argument(
        "--unknown",
        choices=["zeros"],
        help="rows of untrained ids; default: the same as in the model",
    )
    command.add_argument(
        "--version", type=int, metavar="N", help="default: the latest plus one"
    )
    command.add_argument(
        "--warmup",
        metavar="FILE",
        help="a batch, as written by numpy.savez: an array for each input",
    )
    command.add_argument(
        "--split",
        action="store_true",
        help="write rows as Parquet files, and the rest as a model "
        "(pip install 'tf_ext[parquet]')",
    )
    command.add_argument(
        "--onnx",
        action="store_true",
        help="with --split: write the rest as ONNX, too "
        "(pip install 'tf_ext[onnx]')",
    )
    command.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module that defines layers of the model",
    )


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


def _pair(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not TABLE=DIRECTORY")
    return name, path


def _export(options: argparse.Namespace) -> int:
    snapshots = dict(options.snapshot)
    if len(snapshots) < len(options.snapshot):
        names = ", ".join(name for name, _ in options.snapshot)
        raise ValueError(
            "Argument `--snapshot` must name each table once. Received: "
            f"{names}"
        )
    warmup = None if options.warmup is None else _read_batch(options.warmup)
    ops.library()  # Registers the classes of tf_ext with Keras.
    for name in options.modules:
        importlib.import_module(name)
    model = keras.models.load_model(options.model)
    with terminal.progress("exporting", _total(model, snapshots)) as progress:
        if options.split:
            _refuse(options, "--split", "dtype", "unknown", "warmup")
            version = export_split(
                model,
                options.path,
                version=options.version,
                snapshots=snapshots,
                progress=progress,
                onnx=options.onnx,
            )
        elif options.onnx:
            raise ValueError(
                "Argument `--onnx` must be given with `--split`. Received: "
                "--onnx without it"
            )
        else:
            version = _export_whole(model, snapshots, warmup, options, progress)
    manifest = folder.read_manifest(version)
    rows = sum(table["rows"] for table in manifest["tables"])
    print(f"{version}: {rows:,} rows, {terminal.size(_bytes_of(manifest))}.")
    return terminal.OK


def _total(model: keras.Model, snapshots: Mapping[str, str]) -> int:
    """The size in bytes of the rows that will be read."""
    total = 0
    for table in tables_of(model):
        rows = table.size()
        if table.name in snapshots:
            chain = open_snapshot(snapshots[table.name]).chain
            rows = sum(manifest.rows for _, manifest in chain)
        total += rows * table.rows.served.bytes_per_row
    return total


def _export_whole(
    model: keras.Model,
    snapshots: Mapping[str, str],
    warmup: typing.Any,
    options: argparse.Namespace,
    progress: Callable[[int], object],
) -> str:
    arguments = {
        "dtype": options.dtype,
        "unknown": options.unknown,
        "version": options.version,
        "warmup": warmup,
        "progress": progress,
    }
    if snapshots:
        return export_snapshots(model, snapshots, options.path, **arguments)
    return export(model, options.path, **arguments)


def _refuse(options: argparse.Namespace, why: str, *names: str) -> None:
    """Raises ValueError for options that cannot be combined with `why`."""
    for name in names:
        found = getattr(options, name)
        if found not in (None, "float32"):
            raise ValueError(
                f"Argument `--{name}` must be left out with `{why}`, whose "
                f"rows are float32. Received: --{name}={found}"
            )


def _read_batch(path: str) -> dict[str, typing.Any]:
    try:
        arrays = np.load(path)
        if isinstance(arrays, np.ndarray):
            raise ValueError("it is a file of numpy.save, of a single array")
        with arrays:
            return {name: arrays[name] for name in arrays.files}
    except (EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"Argument `--warmup` must be a file of numpy.savez, without "
            f"Python objects. Received: --warmup={path} ({error})"
        ) from None


def _version(path: str) -> str:
    """`path` if it is the folder of a version, else its latest version."""
    if os.path.exists(os.path.join(path, folder.EXTRA)):
        return path
    versions = folder.versions(path)
    if not versions:
        raise FileNotFoundError(
            f"There is no export in {path!r}: it has no versions, and no "
            f"{folder.EXTRA}/{folder.MANIFEST}."
        )
    return os.path.join(path, str(versions[-1]))


def _bytes_of(manifest: Mapping[str, typing.Any]) -> int:
    return sum(file["bytes"] for file in manifest["files"])


def _inspect(options: argparse.Namespace) -> int:
    path = _version(options.path)
    manifest = folder.read_manifest(path)
    files = manifest["files"]
    step = manifest.get("step")
    lines = {
        "served": path,
        "kind": manifest.get("kind", "model"),
        "model": manifest["model"],
        "step": "unknown" if step is None else f"{step:,}",
        "size": f"{terminal.size(_bytes_of(manifest))} in "
        f"{terminal.count(files, 'file')}",
        "versions": f"tf_ext {manifest['tf_ext_version']}, TensorFlow "
        f"{manifest['tensorflow_version']}",
    }
    for name, value in lines.items():
        print(f"{name:9} {value}")
    if manifest["tables"]:
        print()
        _print_tables(manifest["tables"])
    return terminal.OK


def _print_tables(tables: Sequence[Mapping[str, typing.Any]]) -> None:
    rows = [
        ("table", "dtype", "unknown ids", "dim", "rows", "size", "snapshot")
    ]
    for table in tables:
        rows.append(
            (
                table["name"],
                table.get("dtype", "float32"),
                table.get("unknown", "initial"),
                str(table["dim"]),
                f"{table['rows']:,}",
                terminal.size(table["bytes"]),
                table.get("snapshot") or "-",
            )
        )
    terminal.print_columns(rows, left=(0, 1, 2, 6))


def _verify(options: argparse.Namespace) -> int:
    path = _version(options.path)
    manifest = folder.read_manifest(path)
    files, total = manifest["files"], _bytes_of(manifest)
    with terminal.progress("verifying", total) as progress:
        damaged = folder.damaged_files(path, progress)
    for sentence in damaged:
        terminal.fail(_PROGRAM, sentence, terminal.DAMAGED)
    if damaged:
        message = f"{len(damaged)} of {len(files)} files of {path} are damaged."
        return terminal.fail(_PROGRAM, message, terminal.DAMAGED)
    whole = (
        f"{path} is whole: {terminal.count(files, 'file')}, "
        f"{terminal.size(total)}"
    )
    if manifest.get("kind", "model") != "model":
        tf.saved_model.load(os.path.join(path, manifest["dense"]))
        print(f"{whole}. Its dense part loads.")
        return terminal.OK
    dtype = manifest.get("dtype")
    if dtype not in replay.LIMITS:
        raise ValueError(f"{path} has rows of the unknown dtype {dtype!r}.")
    return _compare(path, dtype, options.limit, whole)


def _compare(path: str, dtype: str, limit: float | None, whole: str) -> int:
    limit = replay.LIMITS[dtype] if limit is None else limit
    found = replay.replay(path)
    if not found.batches:
        print(f"{whole}. It loads; there is no warm-up request to replay.")
        return terminal.OK
    batches = terminal.count(range(found.batches), "warm-up request")
    if not found.largest <= limit:
        return terminal.fail(
            _PROGRAM,
            f"{path} differs from the trained model: output "
            f"{found.output!r} of {batches} differs by {found.largest:.3g}, "
            f"and for {dtype} rows {limit:g} is allowed.",
            terminal.DAMAGED,
        )
    print(
        f"{whole}. {batches}: its outputs are those of the trained model, "
        f"within {found.largest:.2g} ({limit:g} is allowed)."
    )
    return terminal.OK
