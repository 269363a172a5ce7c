# SPDX-License-Identifier: Apache-2.0
"""Served models that follow the recovery points of a training run."""

import os
import threading
import time

import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._keras import keras
from tf_ext.layers import adapted
from tf_ext.recovery.files import (
    SavedPoint,
    list_points,
    naming,
    read_arrays,
    read_point,
    table_path,
)
from tf_ext.recovery.points import (
    OF_MODEL,
    check_variables,
    model_variables,
)
from tf_ext.regimes import regime_of_tables
from tf_ext.serving import arguments
from tf_ext.serving.background import BackgroundUpdates, check_interval
from tf_ext.snapshot.files import read_manifest
from tf_ext.snapshot.manifest import (
    DamagedSnapshotError,
    SnapshotConflictError,
)
from tf_ext.snapshot.storage import normalised
from tf_ext.tables.find import tables_of
from tf_ext.tables.saving import snapshot_load
from tf_ext.tables.sparse_table import SparseTable

# Errors of a point that is damaged, or is removed or replaced while it is read.
# An older point may still be readable.
UNUSABLE = (
    DamagedSnapshotError,
    OSError,
    SnapshotConflictError,
    tf.errors.OpError,
)


def follow(
    model: keras.Model,
    directory: str | os.PathLike[str],
    *,
    every: float | None = 10.0,
) -> "Follower":
    """Keeps a serving model at the newest recovery point of a training run.

    `directory` is the one to which a `tf_ext.callbacks.TableSnapshot` in
    another process writes. The model is updated to the newest point before
    `follow` returns, and to each newer one while it serves. Calls of `predict`
    and of functions that were traced before, in any thread, see the update. But
    functions of your own have the statistics of an adapted
    `keras.layers.Normalization` as constants: trace them after `follow`, and
    after a point of a training with other statistics. Vocabularies and bins
    that `adapt` has found are not in points: build the model with them.

    A point is read and checked as a whole before anything changes. Then the
    deltas since the previous point are applied to each table in place, as by
    `SparseTable.apply_delta`, and then the dense weights are assigned. If
    deltas do not go back to that point, all rows are read, overwrite the
    existing ones, and rows that are not among them are erased: ids that remain
    are never absent, at the cost of two additional bits per row during the
    update. Between the change of the first table and that of the last weight, a
    reader may see values of both points; `last_window_seconds` is the length of
    this interval.

    Points that are being written are ignored until they are complete. A point
    that is damaged, or is removed while it is read, changes nothing: the
    newest readable point is used instead, if it is newer than the model's. The
    error is logged and stored in `error`, and the next update tries again. With
    `incremental=True` points are small, and `keep` of the callback must be
    large enough that a point is read before it is removed.

    Args:
      model: a built Keras model with the same variables and tables as the one
        that is trained. It need not be compiled. Tables created inside
        `tf_ext.serving.weights_only` take at most half of the memory.
      directory: string or path-like, on any file system of TensorFlow.
      every: float, the number of seconds between two updates, which run in a
        background thread. None for no thread: call `update` instead.

    Returns:
      A Follower, which keeps the model alive until it is closed. It can be used
      in a `with` statement.

    Raises:
      FileNotFoundError: if there is no point yet.
      DamagedSnapshotError: if no point can be read; the error names the file.
      ValueError: if an argument is invalid, or the points are those of another
        model.

    Example:
    >>> import tempfile
    >>> from tf_ext._keras import keras
    >>> def build():
    ...     inputs = {"user": keras.Input((), dtype="int64", name="user")}
    ...     table = tf_ext.SparseTable("user", dim=1)
    ...     user = tf_ext.feature_column.category_column("user")
    ...     layer = tf_ext.layers.EmbeddingFeatures([user], table)
    ...     return tf_ext.Model(inputs, layer(inputs))
    >>> trained = build()
    >>> trained.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    >>> features, labels = {"user": np.arange(8)}, np.ones([8, 1])
    >>> with tempfile.TemporaryDirectory() as points:
    ...     _ = trained.fit(features, labels, batch_size=4, verbose=0,
    ...         callbacks=[tf_ext.callbacks.TableSnapshot(points)])
    ...     with tf_ext.serving.weights_only():
    ...         served = build()
    ...     with tf_ext.serving.follow(served, points, every=1) as follower:
    ...         step = follower.step
    >>> step
    2
    >>> bool(np.all(served(features) == trained(features)))
    True
    """
    check_interval("tf_ext.serving.follow", every)
    check_model("tf_ext.serving.follow", model)
    directory = normalised(directory, "tf_ext.serving.follow", "directory")
    return Follower(model, directory, every)


def check_model(function: str, model: keras.Model) -> None:
    """Raises ValueError or TypeError unless a model can follow points.

    Args:
      function: string, the function or class whose argument `model` it is.
      model: keras.Model.
    """
    arguments.check_model(model, function)
    tables = tables_of(model)
    if not tables:
        refuse(function, "model", "a built model with tables", model)
    if regime_of_tables(tables).processes.count > 1:
        allowed = (
            "made outside of the scope of MultiWorkerMirroredStrategy, whose "
            "workers each have only a part of the rows"
        )
        refuse(function, "model", allowed, model)


class Follower(BackgroundUpdates):
    """A model that is kept at the newest recovery point: see `follow`.

    Attributes:
      step: int, the training step of the model's current point.
      path: string, the directory of that point.
      last_window_seconds: float, the duration of the last update, from the
        first change of a row to that of the last dense weight.
      error: Exception or None, the reason why the last attempt could not use
        the newest point.
    """

    step: int
    path: str
    last_window_seconds: float

    def __init__(
        self,
        model: keras.Model,
        directory: str,
        every: float | None,
    ) -> None:
        super().__init__()
        self._model = model
        self._tables = tables_of(model)
        self._directory = directory
        self._saved: SavedPoint | None = None
        self._lock = threading.Lock()
        self.update()
        self._start("tf_ext.serving.follow", every)

    def update(self) -> bool:
        """Updates the model to the newest readable point, if that is newer.

        Returns:
          bool, whether the model was updated.

        Raises:
          DamagedSnapshotError, OSError, tf.errors.OpError: if no point that is
            newer than the model's can be read. The model is unchanged.
          RuntimeError: if a file was damaged, or rows were changed otherwise,
            after the point was checked. Each row has its old or its new value;
            the next update brings all rows to one point.
          ValueError: if a point belongs to another model.
        """
        with self._lock:
            if self._closed.is_set():
                return False
            try:
                moved, self.error = self._move()
            except Exception as error:
                self.error = error
                raise
        return moved

    def _complaint(self) -> str:
        return (
            f"{self._directory} cannot be followed to its newest point; the "
            f"model serves that of step {self.step}."
        )

    def _move(self) -> tuple[bool, Exception | None]:
        """Updates the model.

        Returns:
          `(moved, error)`: whether the model was updated, and why the newest
          point was not used, or None.
        """
        failure: Exception | None = None
        paths = list_points(self._directory)
        if not paths and self._saved is None:
            raise FileNotFoundError(
                f"There is no recovery point in {self._directory!r}. Train "
                "with tf_ext.callbacks.TableSnapshot of that directory first."
            )
        for path in reversed(paths):
            try:
                with naming(path):
                    saved = read_point(path)
                    if not self._is_newer(saved, newest=path == paths[-1]):
                        break
                    change = _Change(self._model, self._tables, path, saved)
            except UNUSABLE as error:
                failure = failure or error
                continue
            self._saved = None  # Until all changes are applied.
            self.last_window_seconds = change.apply()
            self._saved, self.step, self.path = saved, saved.step, path
            return True, failure
        if failure is not None:
            raise failure
        return False, None

    def _is_newer(self, saved: SavedPoint, newest: bool) -> bool:
        if self._saved is None:
            return True
        # After training has started over in the directory, steps are lower.
        return saved.step > self._saved.step or (
            newest and saved != self._saved
        )


class _Change:
    """The changes that update a model to a point, read and checked."""

    def __init__(
        self,
        model: keras.Model,
        tables: list[SparseTable],
        path: str,
        saved: SavedPoint,
    ) -> None:
        names = [name for name, _ in saved.tables]
        if len(tables) != len(names):
            raise ValueError(
                "Argument `model` of follow must have the tables of the "
                f"model from which {path} was saved, {names}. Received: a "
                f"model with {[table.name for table in tables]}."
            )
        self._model = model
        self._variables = model_variables(model)
        described = {
            name: value
            for name, value in saved.variables.items()
            if name.startswith(OF_MODEL)
        }
        check_variables(self._variables, described, path)
        self._arrays = read_arrays(saved, path)
        self._updates = [
            _update_of(table, table_path(path, index), wanted)
            for index, (table, (_, wanted)) in enumerate(
                zip(tables, saved.tables, strict=True)
            )
        ]

    def apply(self) -> float:
        """Changes the model; returns the duration in seconds."""
        begin = time.monotonic()
        for update in self._updates:
            update.apply()
        for name, variable in self._variables.items():
            variable.assign(self._arrays[name])
        adapted.finalize(self._model)
        return time.monotonic() - begin


def _update_of(
    table: SparseTable, path: str, wanted: str
) -> snapshot_load.Update:
    """The checked update of a table to the snapshot with the id `wanted`."""
    manifest = read_manifest(path)
    if manifest.id != wanted:
        raise DamagedSnapshotError(
            f"{path} is not the snapshot that its point names, {wanted}, but "
            f"{manifest.id}."
        )
    update = snapshot_load.update_to(table.rows, path)
    update.check()
    update.verify()
    if update.whole and "columns" in manifest.state:
        table.column_record.restore(manifest.state["columns"])
    return update
