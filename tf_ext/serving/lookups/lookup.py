# SPDX-License-Identifier: Apache-2.0
"""Answers requests from the rows of a store, without TensorFlow."""

import os
import pathlib
import threading
import typing
from collections.abc import Mapping

from tf_ext._checks import check_count, check_mapping, refuse
from tf_ext.serving import folder
from tf_ext.serving.background import BackgroundUpdates, check_interval
from tf_ext.serving.lookups import dense as dense_parts
from tf_ext.serving.lookups.cache import CachedRows, RowCache
from tf_ext.serving.lookups.features import Array, batch_size_of
from tf_ext.serving.lookups.row_store import (
    RowStore,
    SinkRows,
    rows_of_sink,
    rows_of_split,
)
from tf_ext.serving.lookups.served import ServedVersion
from tf_ext.serving.sinks.sink import Manifest, Sink, SinkError, checked

_OWNER = "tf_ext.serving.Lookup"
# How often a request begins anew, as its version was removed meanwhile.
_ATTEMPTS = 10


class _Served(typing.NamedTuple):
    """A version, and what computes its outputs."""

    version: ServedVersion
    rows: RowStore
    dense: dense_parts.Dense | None

    @property
    def id(self) -> tuple[int, str | None]:
        """What tells it from others, also of a store that was emptied."""
        manifest = self.version.manifest
        return manifest["version"], manifest.get("id")


class Lookup(BackgroundUpdates):
    """Computes embeddings and predictions from the rows of a store.

    It does what the model's `EmbeddingFeatures` do: features to signs, signs to
    rows, rows to one embedding for each column; with all columns of
    `tf_ext.feature_column`, their combiners, weights and sequences, and for
    signs without a row what the table's initializer or `unknown` says. Results
    are those of the model. It needs no TensorFlow; `dense="tensorflow"` does.
    `dense="onnx"` needs onnxruntime, and a version with an ONNX model.

    A request is answered from one version, the sink's current one. A thread
    looks for another every few seconds; a request whose version was removed
    begins anew with the current one. A request reads all its rows in one round
    trip from a RedisSink, or a sink of your own with `find_rows`; the rows of
    others, and of split exports, are in memory.

    Methods may be called from several threads.

    Args:
      store: the `Sink` into which `tf_ext.serving.publish` or `python -m
        tf_ext.serving load-redis` write; or path-like, the folder of a version
        of `tf_ext.serving.export_split`.
      dense: what computes the rest of the model: "onnx" or "tensorflow"; None
        for `embed` alone.
      every: float, how often to look for a new version, in seconds. None for no
        thread: call `update` instead.
      cache_bytes: int, what the rows take at most that are kept of those that a
        sink has found. From one version to the next, those stay that have not
        changed. 0 for none.

    Attributes:
      error: Exception or None, the reason why the last attempt could not load
        the current version.

    Raises:
      ValueError: an argument is not as above.
      SinkError: the store has no version, cannot be read, or is damaged.
      FileNotFoundError: there is no export in the folder.

    Example:
      >>> import tempfile
      >>> table = tf_ext.SparseTable("deep", dim=2)
      >>> layer = tf_ext.layers.EmbeddingFeatures(
      ...     [tf_ext.feature_column.category_column("user")], table)
      >>> inputs = {"user": keras.Input([1], dtype="string", name="user")}
      >>> outputs = keras.layers.Dense(1)(layer(inputs))
      >>> model = tf_ext.Model(inputs, outputs)
      >>> folder = tf_ext.serving.export_split(model, tempfile.mkdtemp())
      >>> lookup = tf_ext.serving.Lookup(folder, dense="tensorflow")
      >>> users = ["ann", "bob"]
      >>> lookup.embed({"user": users})["deep__user"].shape
      (2, 2)
      >>> found = lookup.predict({"user": users})["output_0"]
      >>> column = tf.constant([[one] for one in users])
      >>> bool(np.allclose(found, model({"user": column})))
      True
    """

    def __init__(
        self,
        store: Sink | str | os.PathLike[str],
        *,
        dense: str | None = None,
        every: float | None = 1.0,
        cache_bytes: int = 64 << 20,
    ) -> None:
        if not isinstance(store, Sink | str | os.PathLike):
            refuse(
                _OWNER,
                "store",
                "a tf_ext.serving.Sink, or the folder of a version of "
                "tf_ext.serving.export_split",
                store,
            )
        if dense is not None and dense not in dense_parts.LOADERS:
            known = ", ".join(map(repr, dense_parts.LOADERS))
            refuse(_OWNER, "dense", f"one of {known}, or None", dense)
        check_interval(_OWNER, every)
        check_count(_OWNER, "cache_bytes", cache_bytes, 0)
        super().__init__()
        self._store, self._dense = store, dense
        self._cache = RowCache(cache_bytes) if cache_bytes else None
        self._lock = threading.Lock()
        self._served = self._load(None)
        self._start(_OWNER, every if isinstance(store, Sink) else None)

    @property
    def version(self) -> int:
        """The number of the version from which requests are answered."""
        return int(self.manifest["version"])

    @property
    def manifest(self) -> Manifest:
        """The manifest of that version."""
        return self._served.version.manifest

    def embed(self, features: Mapping[str, typing.Any]) -> dict[str, Array]:
        """The embeddings of a batch.

        Args:
          features: dict of the features that the model's columns read, by the
            names of its inputs: arrays or lists `[batch_size, ...]` of
            strings, bytes, integers, booleans or floats, lists of lists, or
            `tf_ext.serving.Ragged`. Those that the model computes itself have
            the keys of the columns. Others are ignored.

        Returns:
          dict of arrays: for each entry of the manifest's `embeddings`, its
          `input`, float32 `[batch_size, dim]`; of a sequence `[batch_size,
          length, dim]` and its `mask`, or `[n, dim]` and its `row_splits`.

        Raises:
          ValueError: a feature is missing, or not what its column takes.
          SinkError: the store cannot be read now.
        """
        return self._answer(features, lambda served, inputs: inputs)

    def predict(self, features: Mapping[str, typing.Any]) -> dict[str, Array]:
        """The outputs of the model for a batch.

        Args:
          features: as of `embed`; with those that the rest of the model reads.

        Returns:
          dict of arrays, by the names of the manifest's `outputs`.

        Raises:
          ValueError: as of `embed`; or without `dense`.
          SinkError: as of `embed`.
        """

        def run(served: _Served, inputs: dict[str, Array]) -> dict[str, Array]:
            if served.dense is None:
                refuse(_OWNER, "dense", "given for `predict`", self._dense)
            manifest = served.version.manifest
            others = dense_parts.other_inputs(manifest, features)
            return served.dense(inputs | others)

        return self._answer(features, run)

    def update(self) -> bool:
        """Loads the sink's current version, if another one is served.

        Returns:
          bool, whether there was another one.

        Raises:
          SinkError: it cannot be loaded; the one before is served.
        """
        before = self._served
        try:
            after = self._moved(before)
        except Exception as error:
            self.error = error
            raise
        self.error = None
        return after is not before

    def _answer(
        self,
        features: Mapping[str, typing.Any],
        run: typing.Callable[[_Served, dict[str, Array]], dict[str, Array]],
    ) -> dict[str, Array]:
        check_mapping(_OWNER, features, "features")
        served = self._served
        for _ in range(_ATTEMPTS):
            try:
                read = served.version.read(features)
                size = batch_size_of(read)
                return run(served, served.version.embed(read, size))
            except SinkError:
                # If the version is gone, there is another one.
                after = self._moved(served)
                if after is served:
                    raise
                served = after
        raise SinkError(
            "Versions were removed faster than a request was answered: retain "
            "more of them, by `keep` of the sink."
        )

    def _complaint(self) -> str:
        return (
            f"Version {self.version} is served on, as the current one cannot "
            "be loaded."
        )

    def _moved(self, before: _Served) -> _Served:
        """What is served in the place of something, loading it if need be."""
        with self._lock:
            if self._served is before:
                self._served = self._load(before)
            return self._served

    def _load(self, before: _Served | None) -> _Served:
        """The current version."""
        if not isinstance(self._store, Sink):
            return before or self._load_folder(pathlib.Path(self._store))
        for _ in range(_ATTEMPTS):
            current = self._store.versions().current
            try:
                return self._load_version(self._store, current, before)
            except SinkError:
                # If it was removed meanwhile, there is another one.
                if self._store.versions().current == current:
                    raise
        raise SinkError("Versions are removed faster than they are loaded.")

    def _load_version(
        self, sink: Sink, version: int, before: _Served | None
    ) -> _Served:
        if not version:
            raise SinkError("There is no version yet.")
        manifest = sink.manifest(version)
        if before and before.id == (manifest["version"], manifest.get("id")):
            return before
        where = f"The manifest of version {version}"
        rows = rows_of_sink(sink, manifest)
        cache = self._cache if isinstance(rows, SinkRows) else None
        if cache is not None:
            rows = CachedRows(rows, cache)

        def read_file(name: str) -> bytes:
            return sink.read_file(version, name)

        made = self._made(manifest, rows, where, read_file)
        if cache is not None:
            changed = None
            if before is not None:
                earlier = before.version.manifest
                changed = sink.changed_signs(earlier, manifest, cache.size)
            cache.move(rows, made.version.widths, changed)
        return made

    def _load_folder(self, path: pathlib.Path) -> _Served:
        manifest = {"version": 0, **folder.read_manifest(path)}
        where = str(path / folder.EXTRA / folder.MANIFEST)
        rows = rows_of_split(path, manifest)

        def read_file(name: str) -> bytes:
            return (path / name).read_bytes()

        return self._made(manifest, rows, where, read_file)

    def _made(
        self,
        manifest: Manifest,
        rows: RowStore,
        where: str,
        read_file: typing.Callable[[str], bytes],
    ) -> _Served:
        version = ServedVersion(manifest, rows, where)
        if self._dense is None:
            return _Served(version, rows, None)
        about = {one["name"]: one for one in manifest["files"]}

        def read(name: str) -> bytes:
            return checked(read_file(name), about[name], manifest["version"])

        load = dense_parts.LOADERS[self._dense]
        return _Served(version, rows, load(manifest, read))
