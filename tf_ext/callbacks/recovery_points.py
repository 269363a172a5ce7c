"""Recovery points: all that training needs to go on, in one directory.

point-0000001200/           # the step
  table-000/                # a snapshot of each table
  variables-<id>.bin        # dense weights and optimizer state
  point.json                # written last; ends with its own CRC32C
"""

import contextlib
import dataclasses
import posixpath
import re
import uuid

import numpy as np
import tensorflow as tf

from tf_ext import _core, ops
from tf_ext import _snapshot_manifest as manifests
from tf_ext._snapshot_manifest import (
    DamagedSnapshotError,
    SnapshotConflictError,
)
from tf_ext._version import __version__
from tf_ext.snapshot.claims import Claim
from tf_ext.snapshot.files import read_chain
from tf_ext.snapshot.storage import storage_of
from tf_ext.tables import shadow

_NAME = "point.json"
_DIRECTORY = re.compile(r"point-\d{10,}")


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
        "format": manifests.FORMAT,
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
    ops.write_file_atomically(
        posixpath.join(point.path, _NAME), manifests.seal(members)
    )


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
    members = manifests.unseal(_read(file), file)
    arrays = _arrays(members, path)
    tables = model.tables
    names = [table.name for table in tables]
    saved = [table["label"] for table in members["tables"]]
    if len(names) != len(saved):
        raise ValueError(
            f"The model has {len(names)} tables, {names}; {path} was saved "
            f"with {len(saved)}, {saved}. Make the model as it was saved."
        )
    check = _check_state(model, arrays, path)
    try:
        for index, table in enumerate(tables):
            where = table_path(path, index)
            found = load_table(table, where).id
            if found != members["tables"][index]["id"]:
                raise DamagedSnapshotError(
                    f"{where} is not the snapshot that {file} names."
                )
    except BaseException:
        for table in tables:
            table.clear()
        raise
    check()
    return Point(
        members["step"], members["epoch"], members["step_in_epoch"], path
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
            # What cannot be read needs nothing any more.
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


def _read(path):
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read()
    except tf.errors.NotFoundError:
        raise DamagedSnapshotError(f"{path} is missing.") from None


def _arrays(members, path):
    """The saved arrays: `{name: array}`."""
    file = posixpath.join(path, members["variables_file"])
    data = _read(file)
    crc = f"{_core.crc32c(data):08x}"
    if crc != members["variables_crc32c"]:
        raise DamagedSnapshotError(
            f"{file} is damaged: the CRC32C of its {len(data)} bytes should be "
            f"{members['variables_crc32c']} and is {crc}."
        )
    arrays, offset = {}, 0
    for entry in members["variables"]:
        dtype = np.dtype(tf.as_dtype(entry["dtype"]).as_numpy_dtype)
        count = int(np.prod(entry["shape"], dtype=np.int64))
        array = np.frombuffer(data, dtype, count, offset)
        arrays[entry["name"]] = array.reshape(entry["shape"])
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
        state |= {f"accumulated/{k}": np.asarray(v) for k, v in store.items()}
    return state


def _check_state(model, arrays, path):
    """Checks that saved arrays fit; returns a function that restores them."""
    variables = _variables(model)
    saved = {k: a for k, a in arrays.items() if "accumulated/" not in k}
    for name in sorted(variables.keys() | saved.keys()):
        shapes = [
            None if found is None else list(found.shape)
            for found in (variables.get(name), saved.get(name))
        ]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"The model cannot be restored from {path}: variable {name} "
                f"has the shape {shapes[0]} in the model and {shapes[1]} "
                "there. Make and compile the model as it was saved."
            )

    def restore():
        for name, variable in variables.items():
            variable.assign(saved[name])
        accumulators = _accumulators(model)
        if accumulators is not None:
            accumulators.load(
                {
                    name.removeprefix("accumulated/"): array
                    for name, array in arrays.items()
                    if name not in saved
                }
            )

    return restore


@contextlib.contextmanager
def naming(path):
    """Adds the point's directory to errors that lack it."""
    try:
        yield
    except FileNotFoundError as error:
        raise DamagedSnapshotError(f"{path} is not whole: {error}") from None
