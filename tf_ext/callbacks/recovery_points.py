"""Recovery points: all that training needs to go on, in one directory.

point-0000001200/           # the step
  table-000/                # a snapshot of each table
  variables-<id>.bin        # dense weights and optimizer state
  point.json                # written last; ends with its own CRC32C
"""

import contextlib
import dataclasses
import math
import posixpath
import re
import uuid

import numpy as np
import tensorflow as tf

from tf_ext import _core, ops
from tf_ext import _snapshot_manifest as manifests
from tf_ext._sealed_json import (
    FORMAT,
    INT64_MAX,
    DamagedSnapshotError,
    seal,
    unseal,
)
from tf_ext._snapshot_manifest import SnapshotConflictError
from tf_ext._version import __version__
from tf_ext.snapshot.claims import Claim
from tf_ext.snapshot.files import read_chain, read_manifest
from tf_ext.snapshot.storage import storage_of
from tf_ext.tables import shadow

_NAME = "point.json"
_DIRECTORY = re.compile(r"point-[0-9]{10,}")
_VARIABLES_FILE = r"variables-[0-9a-f]{16}\.bin"
_READ_BYTES = 64 << 20
# Before the names of arrays of gradients that wait for a step to be whole.
_ACCUMULATED = "accumulated/"


@dataclasses.dataclass(frozen=True)
class Point:
    """Where training was.

    step: steps made in all; epoch, step_in_epoch: where in the data, epochs
    from 0, steps of the epoch that are done; path: the directory.
    """

    step: int
    epoch: int
    step_in_epoch: int
    path: str


def path_of(root, step):
    """The directory of the point of a step."""
    return posixpath.join(root, f"point-{step:010d}")


def table_path(path, index):
    """The directory of a table's snapshot in a point."""
    return posixpath.join(path, f"table-{index:03d}")


def list_points(root):
    """The directories of whole points, the oldest first."""
    return [path for path, whole in _directories(root) if whole]


def _directories(root):
    """`(path, whether it has a point)` of all, the oldest first."""
    if not tf.io.gfile.isdir(root):
        return []
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(root)]
    paths = [
        posixpath.join(root, name)
        for name in sorted(names, key=lambda n: (len(n), n))
        if _DIRECTORY.fullmatch(name)
    ]
    return [
        (path, tf.io.gfile.exists(posixpath.join(path, _NAME)))
        for path in paths
    ]


def claim(root, model):
    """Makes this process the one that writes points in a directory.

    Args:
      root: string; it is made if it does not exist.
      model: a model with tables.

    Returns:
      The Claim; of several workers the first has it, and others have None.
    """
    with _one_of_all_workers(model, f"Claiming {root}") as writes:
        if not writes:
            return None
        storage_of(root).make_directory(root)
        taken = Claim(root, f"Writing recovery points in {root}")
        with taken.taken():
            return taken


def write(point, model, save_table, claim):
    """Writes a point.

    Args:
      point: Point; one that is in its directory, and was passed over, is
        replaced.
      model: a compiled model with tables.
      save_table: function of (index, table, path) that saves a snapshot.
      claim: what `claim` returned.

    Raises:
      SnapshotConflictError: another process has claimed the directory since.
    """
    what = f"Saving the recovery point {point.path}"
    with _one_of_all_workers(model, what) as writes:
        if writes:
            with claim.held():
                storage_of(point.path).make_directory(point.path)
                with contextlib.suppress(tf.errors.NotFoundError):
                    tf.io.gfile.remove(posixpath.join(point.path, _NAME))
    tables = []
    for index, table in enumerate(model.tables):
        with _one_of_all_workers(model, what) as writes:
            # The table's directory may be that of the other process, too.
            if writes:
                claim.check()
        manifest = save_table(index, table, table_path(point.path, index))
        tables.append({"label": table.name, "id": manifest.id})
    with _one_of_all_workers(model, what) as writes:
        if writes:
            with claim.held():
                _write_state(point, model, tables)


@contextlib.contextmanager
def _one_of_all_workers(model, what):
    """Yields whether this process writes; all raise if that one fails."""
    collectives = collectives_of_tables(model)
    if collectives is None:
        yield True
        return
    with collectives.together(what):
        yield collectives.rank == 0


def _write_state(point, model, tables):
    """Writes all but the tables, whose labels and ids are given."""
    arrays = _state(model)
    data = b"".join(array.tobytes() for array in arrays.values())
    name = f"variables-{uuid.uuid4().hex[:16]}.bin"
    ops.write_file_atomically(posixpath.join(point.path, name), data)
    members = {
        "format": FORMAT,
        "tf_ext_version": __version__,
        "step": point.step,
        "epoch": point.epoch,
        "step_in_epoch": point.step_in_epoch,
        "tables": tables,
        "variables_file": name,
        "variables_crc32c": f"{_core.crc32c(data):08x}",
        "variables": [
            {"name": key, "dtype": a.dtype.name, "shape": list(a.shape)}
            for key, a in arrays.items()
        ],
    }
    ops.write_file_atomically(posixpath.join(point.path, _NAME), seal(members))


def collectives_of_tables(model):
    """The collectives of workers over which tables are spread, or None."""
    return next((t.rows.collectives for t in model.tables), None)


def read(path, model, load_table):
    """Restores a model from a point.

    Args:
      path: string, the directory.
      model: the model, built and compiled as the one that was saved.
      load_table: function of (table, path) that loads a snapshot and returns
        its manifest.

    Returns:
      The Point.

    Raises:
      DamagedSnapshotError: it cannot be read; the tables are empty then.
      ValueError: of another model.
    """
    file = posixpath.join(path, _NAME)
    saved_point = _read_point(file)
    tables = model.tables
    names = [table.name for table in tables]
    saved = [label for label, _ in saved_point.tables]
    if len(names) != len(saved):
        raise ValueError(
            f"The model has {len(names)} tables, {names}; {path} was saved "
            f"with {len(saved)}, {saved}. Make the model as it was saved."
        )
    _check_variables(model, saved_point.variables, path)
    arrays = _read_arrays(saved_point, path)
    places = [table_path(path, index) for index in range(len(tables))]
    for where, (_, wanted) in zip(places, saved_point.tables, strict=True):
        _check_id(read_manifest(where), wanted, where, file)
    try:
        for table, where, (_, wanted) in zip(
            tables, places, saved_point.tables, strict=True
        ):
            _check_id(load_table(table, where), wanted, where, file)
        _restore_state(model, arrays, path)
    except BaseException:
        for table in tables:
            table.clear()
        raise
    return Point(
        saved_point.step, saved_point.epoch, saved_point.step_in_epoch, path
    )


def _check_id(manifest, wanted, path, file):
    if manifest.id != wanted:
        raise DamagedSnapshotError(
            f"{path} is not the snapshot that {file} names."
        )


def prune(root, keep, claim):
    """Removes points, the newest `keep` aside and what they continue.

    What a save that was killed has left is removed, too. Nothing is removed if
    another process has claimed the directory.

    Args:
      root: string.
      keep: int.
      claim: what `claim` returned; of several workers the first removes.
    """
    if claim is None:
        return
    with contextlib.suppress(SnapshotConflictError, TimeoutError):
        with claim.held():
            _prune(root, keep)


def _prune(root, keep):
    every = _directories(root)
    kept = [path for path, whole in every if whole][-keep:]
    needed = set(kept)
    for path in kept:
        for name in tf.io.gfile.listdir(path):
            if not name.startswith("table-"):
                continue
            # A snapshot that cannot be read keeps no base alive.
            with contextlib.suppress(OSError, ValueError):
                table = posixpath.join(path, name.rstrip("/"))
                chain = read_chain(table)
                needed |= {posixpath.dirname(where) for where, _ in chain}
    for path, whole in every:
        if path in needed:
            continue
        # A point without its first file is none: it must not look like one
        # if this is interrupted.
        if whole:
            tf.io.gfile.remove(posixpath.join(path, _NAME))
        tf.io.gfile.rmtree(path)


@dataclasses.dataclass(frozen=True)
class _SavedPoint:
    """What `point.json` says.

    tables: list of `(label, id)`; variables: `{name: (dtype, shape)}`.
    """

    step: int
    epoch: int
    step_in_epoch: int
    tables: list
    variables_file: str
    variables_crc32c: int
    variables: dict


def _read_point(file):
    """The _SavedPoint in a file."""
    members = unseal(_read(file, manifests.MAX_BYTES), file)
    variables = {}
    for entry in members.objects("variables"):
        name = entry.text("name")
        if name in variables:
            entry.refuse("name", "that of no other variable")
        shape = entry.list("shape")
        if not all(type(n) is int and 0 <= n <= INT64_MAX for n in shape):
            entry.refuse("shape", "a list of sizes")
        variables[name] = (_dtype_of(entry), shape)
    return _SavedPoint(
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
    )


def _dtype_of(entry):
    """The NumPy dtype that a variable's entry names."""
    try:
        dtype = tf.as_dtype(entry.text("dtype"))
    except TypeError:
        dtype = tf.resource
    if not (dtype.is_floating or dtype.is_integer or dtype.is_complex):
        if not dtype.is_bool:
            entry.refuse("dtype", "a type of numbers")
    return np.dtype(dtype.as_numpy_dtype)


def _read(file, most):
    """The bytes of a file, of which there may be `most`."""
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


def _read_arrays(point, path):
    """The saved arrays of a _SavedPoint: `{name: array}`."""
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


def _variables(model):
    """What training changes besides rows: `{name: variable}`.

    Not metrics, which begin anew in each epoch.
    """
    metrics = {id(v) for metric in model.metrics for v in metric.variables}
    variables = {
        f"model/{index}": variable
        for index, variable in enumerate(
            v
            for v in model.variables
            if shadow.table_of(v) is None and id(v) not in metrics
        )
    }
    of_optimizer = list(model.optimizer.variables)
    rate = model.optimizer.learning_rate
    if hasattr(rate, "assign") and all(v is not rate for v in of_optimizer):
        of_optimizer.append(rate)  # tf_keras does not count it.
    for index, variable in enumerate(of_optimizer):
        variables[f"optimizer/{index}"] = variable
    return variables


def _accumulators(model):
    """The table gradients that wait for a step to be whole, or None."""
    optimizer = model.optimizer
    return getattr(optimizer, "_table_accumulators", None)


def _state(model):
    state = {
        name: np.asarray(tf.convert_to_tensor(variable))
        for name, variable in _variables(model).items()
    }
    accumulators = _accumulators(model)
    if accumulators is not None:
        store = {}
        accumulators.save(store)
        state |= {_ACCUMULATED + k: np.asarray(v) for k, v in store.items()}
    return state


def _check_variables(model, saved, path):
    """Raises unless the saved `{name: (dtype, shape)}` are the model's."""
    wanted = {
        name: (
            np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype),
            list(variable.shape),
        )
        for name, variable in _variables(model).items()
    }
    saved = {k: v for k, v in saved.items() if not k.startswith(_ACCUMULATED)}
    for name in sorted(wanted.keys() | saved.keys()):
        for index, what in ((1, "shape"), (0, "dtype")):
            mine, theirs = (
                None if found is None else str(found[index])
                for found in (wanted.get(name), saved.get(name))
            )
            if mine != theirs:
                raise ValueError(
                    f"The model cannot be restored from {path}: variable "
                    f"{name} has the {what} {mine} in the model and {theirs} "
                    "there. Make and compile the model as it was saved."
                )


def _restore_state(model, arrays, path):
    """Restores what `_state` has given."""
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
    for name, variable in _variables(model).items():
        variable.assign(arrays[name])


@contextlib.contextmanager
def naming(path):
    """Adds the point's directory to errors that lack it."""
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedSnapshotError(f"{path} is not whole: {error}") from None
