# SPDX-License-Identifier: Apache-2.0
"""Publishes the recovery points of a training run into a store."""

import contextlib
import os
import posixpath
import threading
import time
import typing
from collections.abc import Iterator

import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._keras import keras
from tf_ext.distribute import training_counts
from tf_ext.recovery import files as points
from tf_ext.recovery.files import SavedPoint
from tf_ext.recovery.held import HeldFiles
from tf_ext.serving import folder
from tf_ext.serving.arguments import check_built
from tf_ext.serving.background import BackgroundUpdates, check_interval
from tf_ext.serving.following import UNUSABLE, check_model
from tf_ext.serving.published_model import PublishedModel
from tf_ext.serving.sinks import row_bytes
from tf_ext.serving.sinks.sink import (
    Manifest,
    Sink,
    SinkConflictError,
    SinkError,
)
from tf_ext.snapshot.storage import normalised

_OWNER = "tf_ext.serving.publish"
_SUFFIX = ".parquet"


def publish(
    model: keras.Model,
    directory: str | os.PathLike[str],
    sink: Sink,
    *,
    every: float | None = 10.0,
    dtype: str = "float32",
    signature: typing.Any = None,
    onnx: bool = False,
) -> "Publisher":
    """Publishes each new recovery point of a training run as a version.

    `directory` is the one to which a `tf_ext.callbacks.TableSnapshot` writes,
    in this process or another, under any strategy. The newest point becomes the
    sink's next version: the rows that have changed or were erased since the
    current one, and the dense part, as `tf_ext.serving.export_split` writes it.
    A reader sees all of a version or nothing of it. Rows are those of the point
    to the bit with `dtype="float32"`.

    Training neither waits for a store nor fails with it. While one is away,
    slow or full, no version appears; `error` says why, and the next attempt
    publishes the newest point then, with all that has changed since the last
    version. With `incremental=True` of the callback that is what deltas hold;
    where they do not go back to the version, all rows are read, and a sink
    writes those that differ, or a version with all rows. Files of a point are
    kept while they are read, by links, where its file system has them.

    One process publishes into a place: the one that began last.

    Args:
      model: a built Keras model with the same variables and tables as the one
        that is trained, which it may be, made outside of the scope of a
        strategy. It is traced once, and not changed.
        Layers with `cvm=True` are refused, and tables whose rows change while
        they are absent (`l2`, `l1`, `SparseAdam(absent="decay")`).
      directory: string or path-like, on any file system of TensorFlow.
      sink: tf_ext.serving.RedisSink, DirectorySink, or a Sink of your own.
      every: float, how often to look for a new point, in seconds, in a thread.
        None for no thread: call `update` instead.
      dtype: "float32"; "float16", rounded to the nearest; or "int8", 255 levels
        and a float32 scale a row.
      signature: as of `tf_ext.serving.export_split`.
      onnx: bool, as of `tf_ext.serving.export_split`. The dense part is
        converted once, and each version has its weights.

    Returns:
      A Publisher. At the end of a `with` block, it publishes the newest point.

    Raises:
      ValueError: if an argument is invalid, or the model cannot be split from
        its tables.

    Example:
    >>> import tempfile
    >>> from tf_ext._keras import keras
    >>> inputs = {"user": keras.Input((), dtype="int64", name="user")}
    >>> table = tf_ext.SparseTable("user", dim=1)
    >>> user = tf_ext.feature_column.category_column("user")
    >>> layer = tf_ext.layers.EmbeddingFeatures([user], table)
    >>> model = tf_ext.Model(inputs, layer(inputs))
    >>> model.compile(tf_ext.optimizers.Optimizer("sgd"), "mse")
    >>> points, store = tempfile.mkdtemp(), tempfile.mkdtemp()
    >>> sink = tf_ext.serving.DirectorySink(store)
    >>> with tf_ext.serving.publish(model, points, sink, every=1):
    ...     _ = model.fit({"user": np.arange(8)}, np.ones([8, 1]), verbose=0,
    ...         callbacks=[tf_ext.callbacks.TableSnapshot(points)])
    >>> version = sink.versions().current
    >>> sum(len(signs) for signs, _ in sink.read_rows(version, "user"))
    8
    """
    check_interval(_OWNER, every)
    if not isinstance(sink, Sink):
        refuse(_OWNER, "sink", "a tf_ext.serving.Sink", sink)
    if dtype not in row_bytes.DTYPES:
        allowed = f"one of {', '.join(map(repr, row_bytes.DTYPES))}"
        refuse(_OWNER, "dtype", allowed, dtype)
    check_model(_OWNER, model)
    check_built(model, _OWNER)
    directory = normalised(directory, _OWNER, "directory")
    published = PublishedModel(model, dtype, signature, onnx)
    return Publisher(published, directory, sink, every)


class Publisher(BackgroundUpdates):
    """Publishes the points of a directory: see `publish`.

    `tf_ext.utils.serve_metrics` of the same process has the lag, the version
    and its step, rows that were published and failures.

    Attributes:
      version: int, the version that was published last; 0 before the first.
      step: int, the training step of it; -1 before the first.
      path: string, the directory of its point.
      point_time: float, when the point was written, in seconds since 1970;
        None before the first.
      published_rows: int, rows that were read for all versions, with erased
        ones.
      failures: int, attempts that published nothing, though there was a newer
        point.
      error: Exception or None, the reason why the last attempt could not
        publish the newest point.
    """

    def __init__(
        self,
        published: PublishedModel,
        directory: str,
        sink: Sink,
        every: float | None,
    ) -> None:
        super().__init__()
        self.version, self.step, self.path = 0, -1, ""
        self.point_time: float | None = None
        self.published_rows = self.failures = 0
        self._published, self._directory = published, directory
        self._sink = sink
        self._behind_since: float | None = None
        self._lock = threading.Lock()
        training_counts.add_publisher(self)
        self._start(_OWNER, every)

    @property
    def lag_seconds(self) -> float:
        """How long there has been a point that is newer than the version."""
        since = self._behind_since
        return 0.0 if since is None else max(0.0, time.time() - since)

    def update(self) -> bool:
        """Publishes the newest readable point, if the sink does not have it.

        Returns:
          bool, whether a version was published.

        Raises:
          SinkError: if the sink cannot be used now; nothing was published.
          SinkConflictError: if another process has begun to publish there.
          DamagedSnapshotError, OSError, tf.errors.OpError: if no point that is
            newer than the version can be read.
          ValueError: if a point belongs to another model, or `dtype` cannot
            represent a weight.
        """
        with self._lock:
            try:
                done, self.error = self._move()
            except Exception as error:
                self.error = error
                self.failures += 1
                raise
        return done

    def close(self) -> None:
        """Stops the thread; a version under way is completed."""
        training_counts.remove_publisher(self)
        super().close()

    def _end_block(self) -> None:
        self._attempt()

    def _attempt(self) -> None:
        # Training continues, and the next attempt carries what this one lacks.
        super()._attempt()
        if isinstance(self.error, SinkConflictError):
            self._closed.set()  # Another process publishes there.

    def _complaint(self) -> str:
        return (
            f"The newest point of {self._directory} is not published; version "
            f"{self.version}, of step {self.step}, was."
        )

    def _move(self) -> tuple[bool, Exception | None]:
        """Publishes the newest point.

        Returns:
          `(done, error)`: whether one was published, and why the newest point
          was not, or None.
        """
        paths = points.list_points(self._directory)
        if not paths:
            return False, None
        # Before the sink is asked, which may be away.
        if self._behind_since is None and paths[-1] != self.path:
            self._behind_since = _written(paths[-1])
        versions = self._sink.versions()
        base: Manifest = {}
        if versions.current:
            base = self._sink.manifest(versions.current)
        failure: Exception | None = None
        for path in reversed(paths):
            try:
                with points.naming(path):
                    saved = points.read_point(path)
                    if not self._is_newer(saved, base, path == paths[-1]):
                        self._note(versions.current, base, path)
                        break
                    if versions.pinned:
                        raise SinkError(
                            f"A rollback has pinned version {versions.current}."
                        )
                    self._write(path, saved, base, versions.current)
            except UNUSABLE as error:
                failure = failure or error
                continue
            return True, failure
        if failure is not None:
            raise failure
        return False, None

    def _is_newer(
        self, saved: SavedPoint, base: Manifest, newest: bool
    ) -> bool:
        if not base:
            return True
        there = {t["file"]: t.get("snapshot") for t in base["tables"]}
        differs = self._published.ids(saved) != there
        # After training has started over in the directory, steps are lower.
        step = base["step"]  # None if it was loaded from an export.
        return (step is not None and saved.step > step) or (newest and differs)

    def _write(
        self, path: str, saved: SavedPoint, base: Manifest, current: int
    ) -> None:
        self._published.check(saved, path)
        rows = 0

        def count(some: int) -> None:
            nonlocal rows
            rows += some

        with self._holding() as held:
            changes = self._published.changes(
                path, saved, base, self._sink, held, count
            )
            manifest, contents = self._published.version_of(
                path, saved, _written(path)
            )
            version = self._sink.write(manifest, contents, changes, current)
        self.published_rows += rows
        self._note(version, manifest, path)

    def _note(self, version: int, manifest: Manifest, path: str) -> None:
        """Notes that the sink is at a point."""
        self.version = version
        self.step = -1 if manifest["step"] is None else manifest["step"]
        self.point_time = manifest.get("point_time")
        self.path, self._behind_since = path, None

    @contextlib.contextmanager
    def _holding(self) -> Iterator[HeldFiles]:
        if "://" in self._directory:
            yield HeldFiles(None)
            return
        with folder.temporary_folder(self._directory) as path:
            yield HeldFiles(path)


def _written(path: str) -> float:
    """When a point was completed, in seconds since 1970."""
    file = posixpath.join(path, points.NAME)
    if "://" not in file:
        return os.stat(file).st_mtime
    return float(tf.io.gfile.stat(file).mtime_nsec) / 1e9
