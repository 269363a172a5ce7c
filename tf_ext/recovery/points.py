# SPDX-License-Identifier: Apache-2.0
"""Recovery points: all state needed to continue training, in a directory.

point-0000001200/           # the step; see point_names
  table-000/                # a snapshot of each table
  variables-<id>.bin        # dense weights and optimizer state
  point.json                # written last; ends with its own CRC32C
"""

import contextlib
import dataclasses
import json
import posixpath
import typing
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import _core
from tf_ext._compat.optimizers import loss_scale_variables, parts_of
from tf_ext._keras import keras
from tf_ext._version import __version__
from tf_ext.layers import adapted
from tf_ext.ops.snapshot import snapshot_ops
from tf_ext.optimizers.accumulator import TableAccumulators
from tf_ext.recovery.beside import Parts
from tf_ext.recovery.files import (
    NAME,
    Described,
    directories,
    point_of,
    read_arrays,
    read_point,
    table_path,
)
from tf_ext.regimes import regime_of_tables
from tf_ext.snapshot.claims import Claim
from tf_ext.snapshot.files import BASE, read_chain, read_manifest
from tf_ext.snapshot.manifest import Manifest, SnapshotConflictError
from tf_ext.snapshot.point_names import end_directory
from tf_ext.snapshot.sealed_json import FORMAT, DamagedSnapshotError, seal
from tf_ext.snapshot.storage import storage_of
from tf_ext.tables import shadow
from tf_ext.tables.saving.snapshot_save import Save
from tf_ext.tables.sparse_table import SparseTable

# Prefix of the names of the model's variables.
OF_MODEL = "model/"
# Prefix of the names of arrays of accumulated gradients.
_ACCUMULATED = "accumulated/"
_LOSS_SCALE = "loss_scale/"


@dataclasses.dataclass(frozen=True)
class Point:
    """The position of training.

    step: number of steps in total; epoch, step_in_epoch: the position in the
    data, with epochs from 0 and the steps completed in the epoch; path: the
    directory; streams: of each stream that is trained on, the state of its
    StreamProgress; shares: where workers are in the data that each reads, the
    state of SharePositions, or None; logs: those of the last step of the epoch,
    numbers or lists of them.
    """

    step: int
    epoch: int
    step_in_epoch: int
    path: str
    streams: tuple[dict[str, typing.Any], ...] = ()
    shares: dict[str, typing.Any] | None = None
    logs: dict[str, typing.Any] = dataclasses.field(default_factory=dict)


class SharePositions(typing.Protocol):
    """Where workers are in the data that each of them reads."""

    def state(self) -> dict[str, typing.Any]:
        """What JSON can hold, for `restore`."""

    def restore(self, state: Mapping[str, typing.Any]) -> None:
        """Has training begin where another process was."""


def claim(root: str, model: keras.Model) -> Claim | None:
    """Makes this process the writer of points in a directory.

    Args:
      root: string; it is made if it does not exist.
      model: a model with tables.

    Returns:
      The Claim on the first worker, None on others.
    """
    regime = regime_of_tables(model.tables)
    with regime.processes.together(f"Claiming {root}"):
        if regime.processes.rank != 0:
            return None
        storage_of(root).make_directory(root)
        taken = Claim(root, f"Writing recovery points in {root}")
        with taken.taken():
            return taken


def write(
    point: Point,
    model: keras.Model,
    save_of: Callable[[int, SparseTable, str], Save],
    claim: Claim | None,
) -> Parts:
    """Writes a point.

    The state of training is taken before the first part.

    Args:
      point: Point; an unreadable point in its directory, which was skipped, is
        replaced.
      model: a compiled model with tables.
      save_of: function of (index, table, path) that returns the Save of a
        table, which has not begun.
      claim: what `claim` returned; only the first worker writes.

    Yields:
      Parts, see `beside`.

    Raises:
      SnapshotConflictError: another process has claimed the directory since.
    """
    what = f"Saving the recovery point {point.path}"
    regime = regime_of_tables(model.tables)
    with regime.processes.together(what):
        if claim is not None:
            with claim.held():
                storage_of(point.path).make_directory(point.path)
                with contextlib.suppress(tf.errors.NotFoundError):
                    tf.io.gfile.remove(posixpath.join(point.path, NAME))
    saves: list[Save] = []
    try:
        for index, table in enumerate(model.tables):
            with regime.processes.together(what):
                # The table's directory may belong to the other process as well.
                if claim is not None:
                    claim.check()
            save = save_of(index, table, table_path(point.path, index))
            saves.append(save)
            save.begin()
            with regime.processes.together(what):
                save.write_own_rows()
            save.gather()
        tables = [
            {"label": table.name, "id": save.manifest.id}
            for table, save in zip(model.tables, saves, strict=True)
        ]
        state = _State(model) if claim is not None else None
        yield lambda: _each(saves, Save.sync)

        def commit() -> None:
            _each(saves, Save.commit)
            if state is not None and claim is not None:
                with claim.held():
                    state.write(point, tables)

        yield commit
        _each(saves, Save.end)
    except BaseException:
        _each(saves, Save.abandon)
        raise
    yield lambda: _each(saves, Save.remove_leftovers)


def write_whole(saves: Sequence[Save]) -> Parts:
    """Writes full snapshots of tables, while rows may change.

    Args:
      saves: list of Save, with the id of the last snapshot of each chain.

    Yields:
      Parts, see `beside`.
    """
    try:
        _each(saves, Save.begin)
        yield lambda: _each(saves, Save.write_own_rows)
        _each(saves, Save.gather)
        yield lambda: _each(saves, Save.sync)
        yield lambda: _each(saves, Save.commit)
        _each(saves, Save.end)
    except BaseException:
        _each(saves, Save.abandon)
        raise
    yield lambda: _each(saves, Save.remove_leftovers)


def _each(saves: Sequence[Save], step: Callable[[Save], object]) -> None:
    for save in saves:
        step(save)


class _State:
    """Everything of a model but the tables, as it is now.

    Args:
      model: a compiled model.
    """

    def __init__(self, model: keras.Model) -> None:
        arrays = _state(model)
        paths = {
            name: variable_path(variable)
            for name, variable in model_variables(model).items()
        }
        # Copies: variables change while they are written.
        self._data = b"".join(array.tobytes() for array in arrays.values())
        self._variables = [
            {"name": key, "dtype": a.dtype.name, "shape": list(a.shape)}
            | ({"path": paths[key]} if key in paths else {})
            for key, a in arrays.items()
        ]

    def write(self, point: Point, tables: list[dict[str, str]]) -> None:
        """Writes it, and the point's file.

        Args:
          point: Point.
          tables: list of dicts with the names and ids of the tables.
        """
        data = self._data
        name = f"variables-{uuid.uuid4().hex[:16]}.bin"
        snapshot_ops.write_file_atomically(
            posixpath.join(point.path, name), data
        )
        members = {
            "format": FORMAT,
            "tf_ext_version": __version__,
            "step": point.step,
            "epoch": point.epoch,
            "step_in_epoch": point.step_in_epoch,
            "streams": [{"state": json.dumps(one)} for one in point.streams],
            "shares": point.shares,
            "logs": json.dumps(point.logs),
            "tables": tables,
            "variables_file": name,
            "variables_crc32c": f"{_core.crc32c(data):08x}",
            "variables": self._variables,
        }
        snapshot_ops.write_file_atomically(
            posixpath.join(point.path, NAME), seal(members)
        )


def read(
    path: str,
    model: keras.Model,
    load_table: Callable[[SparseTable, str], Manifest],
) -> Point:
    """Restores a model from a point.

    Args:
      path: string, the directory.
      model: the model, built and compiled as it was when saved.
      load_table: function of (table, path) that loads a snapshot and returns
        its manifest.

    Returns:
      The Point.

    Raises:
      DamagedSnapshotError: the point cannot be read; the tables are then empty.
      ValueError: the point is of another model.
    """
    file = posixpath.join(path, NAME)
    saved_point = read_point(path)
    tables = model.tables
    names = [table.name for table in tables]
    saved = [name for name, _ in saved_point.tables]
    if names != saved:
        raise ValueError(
            f"The model cannot be restored from {path}: it has {len(names)} "
            f"tables, {names}, but was saved with {len(saved)}, {saved}. Make "
            "the model as it was saved."
        )
    saved_variables = {
        name: value
        for name, value in saved_point.variables.items()
        if not name.startswith(_ACCUMULATED)
    }
    check_variables(
        _saved_variables(model, saved_variables), saved_variables, path
    )
    arrays = read_arrays(saved_point, path)
    places = [table_path(path, index) for index in range(len(tables))]
    for where, (_, wanted) in zip(places, saved_point.tables, strict=True):
        check_id(read_manifest(where), wanted, where, file)
    try:
        for table, where, (_, wanted) in zip(
            tables, places, saved_point.tables, strict=True
        ):
            check_id(load_table(table, where), wanted, where, file)
        _restore_state(model, arrays, path)
    except BaseException:
        for table in tables:
            table.clear()
        raise
    return Point(
        saved_point.step,
        saved_point.epoch,
        saved_point.step_in_epoch,
        path,
        tuple(saved_point.streams),
        saved_point.shares,
        saved_point.logs,
    )


def check_id(manifest: Manifest, wanted: str, path: str, file: str) -> None:
    """Raises DamagedSnapshotError unless a snapshot is that of a point.

    Args:
      manifest: Manifest of the snapshot.
      wanted: string, the id that the point names.
      path: string, the snapshot's directory.
      file: string, the point's file.
    """
    if manifest.id != wanted:
        raise DamagedSnapshotError(
            f"{path} must be the snapshot {wanted}, which {file} names, but "
            f"is {manifest.id}."
        )


def pass_over(paths: Sequence[str], claim: Claim | None) -> None:
    """Has points that cannot be read be points no more.

    Those that training then writes may have lower steps, and would seem older.

    Args:
      paths: list of strings, the directories.
      claim: what `claim` returned; only the first worker removes.

    Raises:
      SnapshotConflictError: another process has claimed the directory since.
    """
    if claim is None or not paths:
        return
    with claim.held():
        for path in paths:
            with contextlib.suppress(tf.errors.NotFoundError):
                tf.io.gfile.remove(posixpath.join(path, NAME))


def prune(root: str, keep: int, claim: Claim | None) -> None:
    """Removes points except the newest `keep` and those that they continue.

    The remains of interrupted saves are removed as well. Nothing is removed if
    another process has claimed the directory.

    Args:
      root: string.
      keep: int.
      claim: what `claim` returned; only the first worker removes.
    """
    if claim is None:
        return
    with contextlib.suppress(SnapshotConflictError, TimeoutError):
        with claim.held():
            _prune(root, keep)


def _prune(root: str, keep: int) -> None:
    every = directories(root)
    complete = [path for path, whole in every if whole]
    newest = [one for one in complete if end_directory(one) not in complete]
    kept = newest[-keep:]
    # Points, and those of which only the full snapshot of a table is needed.
    needed = set(kept)
    bases: set[str] = set()
    for path in kept:
        for name in tf.io.gfile.listdir(path):
            if not name.startswith("table-"):
                continue
            # An unreadable snapshot does not keep its base.
            with contextlib.suppress(OSError, ValueError):
                table = posixpath.join(path, name.rstrip("/"))
                for where, _ in read_chain(table):
                    is_base = posixpath.basename(where) == BASE
                    (bases if is_base else needed).add(point_of(where))
    for path, whole in every:
        if path in needed:
            continue
        # Remove point.json first, so that an interrupted removal does not leave
        # what looks like a point.
        if whole:
            tf.io.gfile.remove(posixpath.join(path, NAME))
        if path not in bases:
            tf.io.gfile.rmtree(path)


def model_variables(model: keras.Model) -> dict[str, typing.Any]:
    """What training changes of a model itself: `{name in points: variable}`.

    Without metrics, which are reset in each epoch.
    """
    metrics = {id(v) for metric in model.metrics for v in metric.variables}
    return {
        f"{OF_MODEL}{index}": variable
        for index, variable in enumerate(
            v
            for v in model.variables
            if shadow.holds_values(v) and id(v) not in metrics
        )
    }


def variable_path(variable: typing.Any) -> str:
    """What tells a variable from others in a program that makes it again."""
    return str(getattr(variable, "path", None) or variable.name)


def described(variables: dict[str, typing.Any]) -> Described:
    """Type and shape of `{name: variable}`."""
    return {
        name: (
            np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype),
            list(variable.shape),
        )
        for name, variable in variables.items()
    }


def takes(
    variable: tuple[np.dtype[typing.Any], Sequence[int | None]],
    saved: tuple[np.dtype[typing.Any], Sequence[int]],
) -> bool:
    """Whether a variable, as `described`, can be assigned what was saved.

    Some of tf_keras have dimensions of any size, None.
    """
    return variable[0] == saved[0] and tf.TensorShape(
        variable[1]
    ).is_compatible_with(saved[1])


def _variables(model: keras.Model) -> dict[str, typing.Any]:
    """The state of training besides rows: `{name: variable}`."""
    variables = model_variables(model)
    of_optimizer: list[typing.Any] = []
    for part, _ in parts_of(model.optimizer, []):
        of_optimizer += _variables_of_optimizer(part)
    for index, variable in enumerate(of_optimizer):
        variables[f"optimizer/{index}"] = variable
    for name, variable in loss_scale_variables(model.optimizer).items():
        variables[_LOSS_SCALE + name] = variable
    return variables


def _saved_variables(
    model: keras.Model, names: Collection[str]
) -> dict[str, typing.Any]:
    """`_variables` but those that points did not have at first.

    Args:
      model: a compiled model.
      names: those of the variables of a point.
    """
    return {
        name: variable
        for name, variable in _variables(model).items()
        if name in names or not name.startswith(_LOSS_SCALE)
    }


def _variables_of_optimizer(optimizer: typing.Any) -> list[typing.Any]:
    if not hasattr(optimizer, "build"):
        raise ValueError(
            "TableSnapshot cannot save the state of "
            f"{type(optimizer).__name__}, a legacy optimizer, as part of a "
            "composed optimizer. Use tf_ext.optimizers.Optimizer around a "
            "keras.optimizers.Optimizer for each part."
        )
    variables = list(optimizer.variables)
    rate = optimizer.learning_rate
    if hasattr(rate, "assign") and all(v is not rate for v in variables):
        variables.append(rate)  # Not among the variables in tf_keras.
    return variables


def _accumulators(model: keras.Model) -> TableAccumulators | None:
    """The accumulated gradients of tables, or None."""
    optimizer = model.optimizer
    return getattr(optimizer, "_table_accumulators", None)


def _state(model: keras.Model) -> dict[str, npt.NDArray[typing.Any]]:
    state = {
        name: np.asarray(tf.convert_to_tensor(variable))
        for name, variable in _variables(model).items()
    }
    accumulators = _accumulators(model)
    if accumulators is not None:
        store: dict[str, typing.Any] = {}
        accumulators.save(store)
        state |= {_ACCUMULATED + k: np.asarray(v) for k, v in store.items()}
    return state


def check_variables(
    variables: dict[str, typing.Any], saved: Described, path: str
) -> None:
    """Raises ValueError unless `{name: variable}` are as they were saved.

    Args:
      variables: those of the model.
      saved: `{name: (dtype, shape)}`.
      path: string, the point's directory.
    """
    wanted = described(variables)
    for name in sorted(wanted.keys() | saved.keys()):
        if (
            name in wanted
            and name in saved
            and takes(wanted[name], saved[name])
        ):
            continue
        for index, what in ((1, "shape"), (0, "dtype")):
            mine, theirs = (
                None if found is None else str(found[index])
                for found in (wanted.get(name), saved.get(name))
            )
            if mine != theirs:
                raise ValueError(
                    f"The model cannot be restored from {path}: variable "
                    f"{name} has the {what} {mine} in the model, but {theirs} "
                    "there. Make and compile the model as it was saved."
                )


def _restore_state(
    model: keras.Model, arrays: dict[str, npt.NDArray[typing.Any]], path: str
) -> None:
    """Restores the state that `_state` returned."""
    accumulators = _accumulators(model)
    if accumulators is not None:
        sums = {
            name.removeprefix(_ACCUMULATED): array
            for name, array in arrays.items()
            if name.startswith(_ACCUMULATED)
        }
        try:
            accumulators.load(sums)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedSnapshotError(
                f"The accumulated gradients in {path} cannot be restored: "
                f"{error}"
            ) from None
    for name, variable in _saved_variables(model, arrays).items():
        variable.assign(arrays[name])
    adapted.finalize(model)
