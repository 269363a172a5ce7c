# SPDX-License-Identifier: Apache-2.0
"""Begins a model with what another one has learned, where they are alike.

A recovery point continues the same program; here tables and layers may have
been added, dropped or given another shape since.
"""

import dataclasses
import logging
import os
import posixpath
import typing
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._keras import keras
from tf_ext.layers import adapted
from tf_ext.recovery import points
from tf_ext.recovery.files import (
    NAME,
    SavedPoint,
    latest_point,
    read_arrays,
    read_point,
    table_path,
)
from tf_ext.regimes import regime_of_tables
from tf_ext.snapshot.clocks import ABSENT_STATE, encoded
from tf_ext.snapshot.compatibility import warn_of_lost_weights
from tf_ext.snapshot.counting import counting_of, entries_of
from tf_ext.snapshot.files import (
    Chain,
    no_progress,
    read_again_if_replaced,
    read_chain,
    read_manifest,
)
from tf_ext.snapshot.reader import latest_rows, read_counters, signs_of
from tf_ext.snapshot.row_mapping import RowMapping, SavedRows
from tf_ext.snapshot.row_values import stored
from tf_ext.snapshot.storage import normalised, storage_of
from tf_ext.tables import row_counters
from tf_ext.tables.sparse_table import SparseTable

_LOG = logging.getLogger("tf_ext")

Source: typing.TypeAlias = (
    str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]]
)

# Rows are imported so many bytes at once.
_BYTES_AT_ONCE = 32 << 20
# Names that a message lists.
_NAMED = 10
_ERROR, _INITIAL = "error", "initial"


class Parts(typing.NamedTuple):
    """What became of tables, or of variables: tuples of their names.

    Attributes:
      taken: those that have what was saved.
      made: those of the model that nothing was saved of; they are as they were.
      left: those that were saved, and are not in the model.
    """

    taken: tuple[str, ...]
    made: tuple[str, ...]
    left: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(
            f"{what} {_named(names)}"
            for what, names in zip(
                ("taken:", "initial:", "left out:"), self, strict=True
            )
        )


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """What a model has taken from another one.

    Attributes:
      path: string, the recovery point; "" for snapshots of tables.
      tables: `Parts`, of the names of tables.
      variables: `Parts`, of the paths of variables.
      rows: dict from the names of tables to how many rows they have taken.
      changes: dict from the names of tables to a list of strings: in what they
        differ from the saved ones, such as "dim=32 instead of 16", and which
        fields of their rows are those of new rows, such as "new accumulator".
    """

    path: str
    tables: Parts
    variables: Parts
    rows: dict[str, int]
    changes: dict[str, list[str]]

    def __str__(self) -> str:
        rows = ", ".join(
            f"{name!r} {count:,} rows" for name, count in self.rows.items()
        )
        changes = " ".join(
            f"Table {name!r} has {', '.join(changes)}."
            for name, changes in self.changes.items()
            if changes
        )
        return (
            f"Tables {self.tables} ({rows or 'no rows'}). "
            f"Variables {self.variables}.{' ' if changes else ''}{changes}"
        )


def warm_start(
    model: keras.Model, source: Source, missing: str = _ERROR
) -> WarmStart:
    """Begins a model with the rows and weights of another one.

    The model may have tables and layers that the other one has not, and may
    lack some. Tables are found by their names. A table of another dim, rule,
    type, seed or with other statistics than the saved one takes what both have,
    as by `tf_ext.snapshot.transform`: the first positions, and the slots of a
    rule if the saved rows have all of them; all else is as in new rows.
    Existing rows of tables that take some are replaced.

    Weights of layers come from a recovery point. If the model has as many as
    were saved, of the same shapes, all are taken in their order; otherwise,
    those whose path (the names of layer and weight), shape and type are equal:
    name your layers. The state of the dense optimizer is not taken, and
    training begins at step 0.

    To begin `fit` in this way, and continue it after an interruption, give
    `tf_ext.callbacks.TableSnapshot` the argument `warm_start`.

    Args:
      model: a `tf_ext.Model` that is built.
      source: path-like, the directory of the points of a `TableSnapshot`, of
        which the newest is taken, or of one point; or a dict from the names of
        tables of the model to directories of snapshots.
      missing: "error", or "initial": tables of the model that were not saved
        stay as they are, so that a new one begins with initial rows.

    Returns:
      A `WarmStart`: which tables and variables were taken, made and left. It is
      logged, too.

    Raises:
      DamagedSnapshotError: a file is damaged. If rows had been taken before it
        was found, all tables that take some are empty.
      FileNotFoundError: there is no point, or no snapshot.
      ValueError: the model is not built, lacks all of the saved tables, or has
        tables that were not saved, unless `missing` is "initial"; nothing is
        changed.

    Example:
      >>> import tempfile
      >>> def make(dim, *names):
      ...     inputs = {
      ...         name: keras.Input((), dtype="int64", name=name)
      ...         for name in names}
      ...     embed = tf_ext.layers.EmbeddingFeatures({
      ...         tf_ext.SparseTable(name, dim): [
      ...             tf_ext.feature_column.category_column(name)]
      ...         for name in names})
      ...     parts = [*embed(inputs).values()] * 2
      ...     hidden = keras.layers.Concatenate()(parts)
      ...     output = keras.layers.Dense(1, name="out")(hidden)
      ...     model = tf_ext.Model(inputs, output)
      ...     model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
      ...     return model
      >>> data = ({"user": np.arange(8)}, np.ones([8, 1]))
      >>> with tempfile.TemporaryDirectory() as root:
      ...     _ = make(2, "user").fit(
      ...         *data, verbose=0,
      ...         callbacks=[tf_ext.callbacks.TableSnapshot(root)])
      ...     found = tf_ext.callbacks.warm_start(
      ...         make(4, "user", "item"), root, missing="initial")
      >>> found.tables
      Parts(taken=('user',), made=('item',), left=())
      >>> found.rows, found.changes
      ({'user': 8}, {'user': ['dim=4 instead of 2']})
      >>> len(found.variables.made), len(found.variables.taken)
      (1, 1)
    """
    if missing not in (_ERROR, _INITIAL):
        allowed = f"{_ERROR!r} or {_INITIAL!r}"
        refuse("warm_start", "missing", allowed, missing)
    if not model.built:
        raise ValueError(
            f"Model {model.name!r} is not built: it has no variables yet that "
            "could be set. Call it on a batch first."
        )
    _check_names([table.name for table in model.tables], "The model")
    tables = {table.name: table for table in model.tables}
    regime = regime_of_tables(model.tables)
    what = f"Warm start of model {model.name!r}"
    with regime.processes.together(what):
        saved = _Saved(_where(source))
    # While points are written, processes may find different ones.
    saved = regime.processes.from_first(saved, _Saved.encode, _Saved.decode)
    with regime.processes.together(what):
        _check_tables(tables, saved, missing)
        taken = [
            _Taken(tables[name], path)
            for name, path in saved.paths.items()
            if name in tables
        ]
        saved.check_ids()
        weights = _Weights(model, saved.point)
        arrays = weights.read(saved.path)
    try:
        for each in taken:
            each.load()
        with regime.processes.together(what):
            weights.assign(arrays)
            adapted.finalize(model)
    except BaseException:
        for each in taken:
            each.table.clear()
        raise
    result = WarmStart(
        saved.path,
        Parts(
            tuple(each.table.name for each in taken),
            tuple(name for name in tables if name not in saved.paths),
            tuple(name for name in saved.paths if name not in tables),
        ),
        weights.parts,
        {each.table.name: int(each.table.size()) for each in taken},
        {each.table.name: each.changes for each in taken},
    )
    if regime.processes.rank == 0:
        # Not at the level of information, which Python does not show.
        _LOG.warning(
            "Warm start from %s: %s", saved.path or "snapshots", result
        )
    return result


def _where(source: Source) -> dict[str, str] | str:
    """The directory of a point, or those of snapshots by the tables' names."""
    if isinstance(source, Mapping):
        return {
            name: normalised(path, "warm_start", "source")
            for name, path in source.items()
        }
    path = normalised(source, "warm_start", "source")
    if storage_of(path).exists(posixpath.join(path, NAME)):
        return path
    found = latest_point(path)
    if found is None:
        raise FileNotFoundError(
            f"There is no recovery point in {path!r}, of which a model could "
            "take rows. Give the directory of a TableSnapshot, or a dict from "
            "the names of tables to directories of SparseTable.save."
        )
    return found


class _Saved:
    """What was saved.

    Args:
      where: what `_where` returned.

    Attributes:
      path: string, the directory of the point, or "".
      point: SavedPoint, or None.
      paths: dict from the names of tables to directories of their snapshots.
    """

    def __init__(self, where: dict[str, str] | str) -> None:
        self._where = where
        self.path = ""
        self.point: SavedPoint | None = None
        self._ids: dict[str, str] = {}
        if isinstance(where, dict):
            self.paths = where
            return
        self.path = where
        self.point = read_point(where)
        _check_names([name for name, _ in self.point.tables], where)
        self.paths = {}
        for index, (name, number) in enumerate(self.point.tables):
            path = table_path(where, index)
            self.paths[name] = path
            self._ids[path] = number

    def encode(self) -> dict[str, str] | str:
        """What `decode` makes the same of in another process."""
        return self._where

    @classmethod
    def decode(cls, sent: dict[str, str] | str) -> typing.Self:
        """What `encode` was called of."""
        return cls(sent)

    def check_ids(self) -> None:
        """Raises DamagedSnapshotError unless snapshots are of the point."""
        file = posixpath.join(self.path, NAME)
        for path, number in self._ids.items():
            points.check_id(read_manifest(path), number, path, file)


def _check_names(names: Sequence[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"{where} has several tables {name!r}, but a warm start finds "
                "tables by their names. Give each its own."
            )


def _check_tables(
    tables: Mapping[str, SparseTable], saved: _Saved, missing: str
) -> None:
    where = saved.path or "the argument `source`"
    found = _named(tuple(saved.paths))
    new = tuple(name for name in tables if name not in saved.paths)
    if len(new) == len(tables):
        raise ValueError(
            f"None of the tables of the model, {_named(new)}, are in {where}, "
            f"which has {found}. Tables are found by their names."
        )
    if new and missing == _ERROR:
        raise ValueError(
            f"The model has the tables {_named(new)}, which are not in "
            f"{where}: it has {found}. If they are to begin with initial rows, "
            "pass missing='initial'."
        )


class _Taken:
    """A table that takes rows.

    Args:
      table: SparseTable.
      path: string, the directory of the snapshot.
    """

    def __init__(self, table: SparseTable, path: str) -> None:
        self.table = table
        self._path = path
        chain = read_chain(path)
        config = chain[-1][1].config
        self.changes = _differences(table.rows.config, config)
        self._loads = True
        try:
            table.rows.check_config(config)
        except ValueError:
            self._loads = False
            mapping = RowMapping(*chain[-1], table.rows.config)
            self.changes += [f"new {name}" for name in mapping.new]
            warn_of_lost_weights(table.rows.name, mapping.new)

    def load(self) -> None:
        """Replaces the rows of the table."""
        if self._loads:
            rule = self.table.optimizer
            rate = rule.learning_rate
            self.table.load(self._path)
            # Training begins, and so does what changes the rate.
            if isinstance(rate, float):
                rule.learning_rate = rate
            return
        read_again_if_replaced(
            self._path, lambda: read_chain(self._path), self._convert
        )

    def _convert(self, chain: Chain) -> None:
        rows = self.table.rows
        what = f"Taking rows of table {rows.name!r} from {self._path!r}"
        with rows.together(what):
            # Rows are changed up to where the table begins.
            self.table.clear()
            path, manifest = chain[-1]
            saved = SavedRows(path, manifest)
            mapping = RowMapping(path, manifest, rows.config)
            if mapping.absent_state:
                state = encoded(mapping.absent_state)
                rows.restore_clocks({ABSENT_STATE: state})
            waiting: list[typing.Any] = []
            for some in mapping(map(saved, latest_rows(chain, no_progress))):
                waiting.append(some)
                if sum(each.nbytes for each in waiting) > _BYTES_AT_ONCE:
                    self._import(mapping, waiting)
            self._import(mapping, waiting)
            self._import_counters(chain)
        columns = manifest.state.get("columns")
        rows.restore_state({} if columns is None else {"columns": columns})

    def _import(self, mapping: RowMapping, waiting: list[typing.Any]) -> None:
        if not waiting:
            return
        made = np.concatenate(waiting)
        waiting.clear()
        values = {
            field.name: tf.constant(
                stored(made, field).view(
                    tf.as_dtype(field.dtype).as_numpy_dtype
                )
            )
            for field in mapping.fields[1:]
        }
        self.table.rows.import_rows(tf.constant(signs_of(made)), values)

    def _import_counters(self, chain: Chain) -> None:
        path, manifest = chain[-1]
        rows = self.table.rows
        if manifest.counters is None or rows.counting is None:
            return
        if not rows.counting.can_take(counting_of(manifest.config)):
            return
        for file in manifest.counters.files:
            for counters in read_counters(path, manifest, file, no_progress):
                counts = np.ascontiguousarray(counters[:, 8:]).view("<i4")
                row_counters.import_counters(
                    rows,
                    tf.constant(signs_of(counters)),
                    tf.constant(counts),
                    manifest.counters.period,
                )


def _differences(mine: str, theirs: str) -> list[str]:
    here, there = entries_of(mine), entries_of(theirs)
    return [
        f"{key}={here.get(key, 'none')} instead of {there.get(key, 'none')}"
        for key in sorted(here.keys() | there.keys())
        if here.get(key) != there.get(key)
    ]


class _Weights:
    """The variables of a model, and those of a point that they take.

    Args:
      model: the model.
      point: SavedPoint, or None.

    Attributes:
      parts: Parts.
    """

    def __init__(self, model: keras.Model, point: SavedPoint | None) -> None:
        self._point = point
        self._variables = points.model_variables(model)
        paths = {
            name: points.variable_path(variable)
            for name, variable in self._variables.items()
        }
        here = points.described(self._variables)
        saved = {
            name: described
            for name, described in (point.variables if point else {}).items()
            if name.startswith(points.OF_MODEL)
        }
        saved_paths = point.paths if point else {}
        # `{name in the model: name in the point}`.
        self._taken: dict[str, str] = {}
        if here.keys() == saved.keys() and all(
            points.takes(here[name], saved[name]) for name in here
        ):
            self._taken = {name: name for name in here}
        else:
            left = [name for name in saved if name in saved_paths]
            for name in here:
                for other in left:
                    is_same = saved_paths[other] == paths[name]
                    if is_same and points.takes(here[name], saved[other]):
                        self._taken[name] = other
                        left.remove(other)
                        break
        self.parts = Parts(
            tuple(paths[name] for name in self._taken),
            tuple(paths[n] for n in paths if n not in self._taken),
            tuple(
                saved_paths.get(name, name)
                for name in saved
                if name not in self._taken.values()
            ),
        )

    def read(self, path: str) -> dict[str, npt.NDArray[typing.Any]]:
        """The saved arrays, by their names in the point, which is at a path."""
        if self._point is None or not self._taken:
            return {}
        return read_arrays(self._point, path)

    def assign(self, arrays: Mapping[str, npt.NDArray[typing.Any]]) -> None:
        """Sets the variables that take what `read` returned."""
        for mine, theirs in self._taken.items():
            self._variables[mine].assign(arrays[theirs])


def _named(names: Sequence[str]) -> str:
    """Such as "'user', 'item'", or "none"."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more if names else "none"
