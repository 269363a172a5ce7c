# SPDX-License-Identifier: Apache-2.0
"""Files of recovery points: where they are, and what they say.

A right CRC tells that a file is as it was written, not by whom: what it says
is checked before anything is allocated or changed.
"""

import contextlib
import dataclasses
import json
import math
import os
import posixpath
import typing
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import _core
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot.files import BASE
from tf_ext.snapshot.point_names import (
    POINT_FILE,
    point_directories,
    point_directory,
    table_directory,
)
from tf_ext.snapshot.sealed_json import (
    INT64_MAX,
    DamagedSnapshotError,
    Members,
    unseal,
)
from tf_ext.snapshot.storage import normalised, storage_of

NAME = POINT_FILE
_VARIABLES_FILE = r"variables-[0-9a-f]{16}\.bin"
_READ_BYTES = 64 << 20

# Type and shape of variables, by name.
Described: typing.TypeAlias = dict[str, tuple[np.dtype[typing.Any], list[int]]]


def path_of(root: str, step: int) -> str:
    """The directory of the point of a step."""
    return posixpath.join(root, point_directory(step))


def table_path(path: str, index: int) -> str:
    """The directory of a table's snapshot in a point."""
    return posixpath.join(path, table_directory(index))


def base_path(path: str, index: int) -> str:
    """The directory of all of a table's rows, beside its snapshot."""
    return posixpath.join(table_path(path, index), BASE)


def point_of(snapshot: str) -> str:
    """The point's directory of what `table_path` or `base_path` returned."""
    table, name = posixpath.split(snapshot)
    return posixpath.dirname(table) if name == BASE else table


def list_points(root: str) -> list[str]:
    """The directories of complete points, the oldest first."""
    return [path for path, whole in directories(root) if whole]


def latest_point(directory: str | os.PathLike[str]) -> str | None:
    """Finds the newest complete recovery point of `TableSnapshot`.

    That is the one from which `fit` continues, unless rows or weights in it
    turn out to be damaged when they are read. Points that are being written, or
    whose `point.json` is damaged, are passed over. Where each day has a
    directory of its own, the last day with a point is found without reading
    rows.

    Args:
      directory: string or path-like, the `directory` of `TableSnapshot`; it
        need not exist.

    Returns:
      string, the directory of the point, such as `directory/point-0000001200`
      after 1,200 steps, or `point-0000001200-end` after the end of their epoch
      if its last step already had a point. It has a snapshot of each table in
      `table-000`, `table-001` and so on. None if there is no point.

    Raises:
      TypeError: `directory` is no path.

    Example:
    >>> import pathlib, tempfile
    >>> inputs = {"user": keras.Input((), dtype="int64", name="user")}
    >>> table = tf_ext.SparseTable("user", dim=1)
    >>> user = tf_ext.feature_column.category_column("user")
    >>> layer = tf_ext.layers.EmbeddingFeatures([user], table)
    >>> model = tf_ext.Model(inputs, layer(inputs))
    >>> model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    >>> data = tf.data.Dataset.from_tensor_slices(
    ...     ({"user": np.arange(8)}, np.ones([8, 1]))).batch(4)
    >>> days = pathlib.Path(tempfile.mkdtemp())
    >>> point = tf_ext.callbacks.TableSnapshot(days / "monday")
    >>> _ = model.fit(data, verbose=0, callbacks=[point])
    >>> path = tf_ext.callbacks.latest_point(days / "monday")
    >>> pathlib.Path(path).name
    'point-0000000002'
    >>> tf_ext.callbacks.latest_point(days / "tuesday") is None
    True
    """
    for path in reversed(list_points(normalised(directory))):
        with contextlib.suppress(DamagedSnapshotError):
            read_point(path)
            return path
    return None


def directories(root: str) -> list[tuple[str, bool]]:
    """`(path, whether it has a point)` of all directories, oldest first."""
    if not tf.io.gfile.isdir(root):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(root)]
    paths = [posixpath.join(root, name) for name in point_directories(names)]
    return [
        (path, tf.io.gfile.exists(posixpath.join(path, NAME))) for path in paths
    ]


@dataclasses.dataclass(frozen=True)
class SavedPoint:
    """The contents of `point.json`.

    tables: list of `(name, id)`; variables: `{name: (dtype, shape)}`; paths:
    `{name: path}` of those of layers; streams: states of StreamProgress;
    shares: state of SharePositions, or None; logs: see Point. Earlier versions
    did not write the last four.
    """

    step: int
    epoch: int
    step_in_epoch: int
    tables: list[tuple[str, str]]
    variables_file: str
    variables_crc32c: int
    variables: Described
    paths: dict[str, str]
    streams: list[dict[str, typing.Any]]
    shares: dict[str, typing.Any] | None
    logs: dict[str, typing.Any]


def read_point(path: str) -> SavedPoint:
    """What the file of a point's directory says.

    Raises:
      DamagedSnapshotError: it is missing, or damaged.
    """
    file = posixpath.join(path, NAME)
    members = unseal(_read(file, manifests.MAX_BYTES), file)
    variables: Described = {}
    paths = {}
    for entry in members.objects("variables"):
        name = entry.text("name")
        if name in variables:
            entry.refuse("name", "a name that no other variable has")
        shape = entry.list("shape")
        if not all(type(n) is int and 0 <= n <= INT64_MAX for n in shape):
            entry.refuse("shape", "a list of sizes")
        variables[name] = (_dtype_of(entry), shape)
        if "path" in entry.names():
            paths[name] = entry.text("path", "(?s:.*)", "a text")
    return SavedPoint(
        step=members.integer("step", 0, INT64_MAX),
        epoch=members.integer("epoch", 0, INT64_MAX),
        step_in_epoch=members.integer("step_in_epoch", 0, INT64_MAX),
        tables=[
            (table.text("label"), table.hexadecimal("id", 32))
            for table in members.objects("tables")
        ],
        variables_file=members.text(
            "variables_file", _VARIABLES_FILE, "a name variables-....bin"
        ),
        variables_crc32c=members.number("variables_crc32c", 8),
        variables=variables,
        paths=paths,
        streams=_streams(members),
        shares=_shares(members),
        logs=_logs(members),
    )


def _streams(members: Members) -> list[dict[str, typing.Any]]:
    """The states of streams that a point has."""
    states = []
    entries = members.objects("streams") if "streams" in members.names() else ()
    for entry in entries:
        state = _json_of(entry, "state")
        if not isinstance(state, dict) or "positions" not in state:
            entry.refuse("state", "the JSON of a StreamProgress")
        states.append(state)
    return states


def _shares(members: Members) -> dict[str, typing.Any] | None:
    """Where workers were in the data that each of them reads."""
    if "shares" not in members.names() or members.is_null("shares"):
        return None
    entry = members.object("shares")
    lists = {}
    for name in ("batches", "ended"):
        lists[name] = entry.list(name)
        if not all(type(n) is int and 0 <= n <= INT64_MAX for n in lists[name]):
            entry.refuse(name, "a list of numbers")
    return {
        "seed": entry.integer("seed", 0, INT64_MAX),
        "epoch": entry.integer("epoch", 0, INT64_MAX),
        **lists,
    }


def _logs(members: Members) -> dict[str, typing.Any]:
    """The logs of the last step before a point."""
    if "logs" not in members.names():
        return {}
    logs = _json_of(members, "logs")
    if not isinstance(logs, dict):
        members.refuse("logs", "the JSON of logs")
    return logs


def _json_of(members: Members, name: str) -> typing.Any:
    """What the JSON in a text says; None if that is damaged."""
    try:
        return json.loads(members.text(name, "(?s:.*)", "a text"))
    except (ValueError, RecursionError):
        return None


def _dtype_of(entry: Members) -> np.dtype[typing.Any]:
    """The NumPy dtype that a variable's entry names."""
    try:
        dtype = tf.as_dtype(entry.text("dtype"))
    except TypeError:
        dtype = tf.resource
    if not (dtype.is_floating or dtype.is_integer or dtype.is_complex):
        if not dtype.is_bool:
            entry.refuse("dtype", "a type of numbers")
    return np.dtype(dtype.as_numpy_dtype)


def _read(file: str, most: int) -> bytes:
    """The bytes of a file of at most `most` bytes."""
    try:
        with storage_of(file).reader(file) as (size, read):
            if size > most:
                raise DamagedSnapshotError(
                    f"{file} is damaged: it has {size} bytes, and may have "
                    f"{most} at most."
                )
            return b"".join(
                read(begin, min(_READ_BYTES, size - begin))
                for begin in range(0, size, _READ_BYTES)
            )
    except FileNotFoundError:
        raise DamagedSnapshotError(f"{file} is missing.") from None


def read_arrays(
    point: SavedPoint, path: str
) -> dict[str, npt.NDArray[typing.Any]]:
    """The saved arrays of a SavedPoint: `{name: array}`."""
    file = posixpath.join(path, point.variables_file)
    size = sum(
        dtype.itemsize * math.prod(shape)
        for dtype, shape in point.variables.values()
    )
    data = _read(file, size)
    crc = _core.crc32c(data)
    if len(data) != size or crc != point.variables_crc32c:
        raise DamagedSnapshotError(
            f"{file} is damaged: the CRC32C of its {size} bytes should be "
            f"{point.variables_crc32c:08x}, and that of the {len(data)} that "
            f"it has is {crc:08x}."
        )
    arrays, offset = {}, 0
    for name, (dtype, shape) in point.variables.items():
        array = np.frombuffer(data, dtype, math.prod(shape), offset)
        arrays[name] = array.reshape(shape)
        offset += array.nbytes
    return arrays


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Adds the point's directory to errors that lack it."""
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedSnapshotError(f"{path} is not whole: {error}") from None
