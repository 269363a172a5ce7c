# SPDX-License-Identifier: Apache-2.0
"""The methods of a table that save and load snapshots."""

import os

from tf_ext.snapshot.manifest import Manifest
from tf_ext.tables.saving import snapshot_load, snapshot_save
from tf_ext.tables.table_attributes import TableAttributes


class SnapshotMethods(TableAttributes):
    """Snapshot methods of `SparseTable`; see docs/snapshots.md."""

    def _state(self) -> dict[str, str]:
        return {
            "optimizer": self.optimizer.state(),
            "columns": self.column_record.state(),
        }

    def _check_state(self, state: dict[str, str]) -> None:
        if "optimizer" in state and not self.rows.weights_only:
            self.optimizer.read_state(state["optimizer"])

    def _restore_state(self, state: dict[str, str]) -> None:
        if "optimizer" in state and not self.rows.weights_only:
            self.optimizer.resume(state["optimizer"], self.name)
        if "columns" in state:
            self.column_record.restore(state["columns"])

    def save(
        self,
        path: str | os.PathLike[str],
        incremental: bool = False,
        base: str | os.PathLike[str] | None = None,
        step: int | None = None,
        max_bytes_per_second: int | None = None,
    ) -> Manifest:
        """Writes a snapshot: rows and slots, to a directory of its own.

        Training may continue meanwhile: each row is written atomically, and
        every row that exists during the whole save is included. An existing
        snapshot in the directory remains valid until the new one is complete
        and durable, and is then removed. A directory has one writer at a time:
        if another save to it starts before this one has finished, in this
        process or another, this one fails.

        With `incremental=True` the snapshot starts a chain: the table marks
        changed rows, and `save(another_path, base=path)` writes only these and
        the signs of erased rows. A table has at most one chain.

        Args:
          path: string or path-like, on any file system that TensorFlow
            supports. With shards on parameter servers, all of them write to it.
          incremental: bool, whether deltas will continue this snapshot.
          base: string or path-like, the last snapshot of the chain, to write
            the changes since then.
          step: int of at least 0, stored in the manifest.
          max_bytes_per_second: int, a limit that leaves disk and processor to
            training.

        Returns:
          The manifest: `id`, `kind`, `rows`, `erased`, `bytes`, `files`, ...

        Raises:
          ValueError: if the table already has a chain, or `base` is not the
            last snapshot of it.
          tf_ext.snapshot.SnapshotConflictError: if another save to the
            directory started meanwhile.
          OSError, tf.errors.OpError: if the file system fails, for example
            because the disk is full. The previous snapshot is unchanged.

        Example:
        >>> import tempfile
        >>> import tf_ext
        >>> table = tf_ext.SparseTable("user", dim=2)
        >>> _ = table.pull([7, 9], training=True)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     table.save(directory).rows
        2
        """
        return snapshot_save.save(
            self.rows,
            path,
            snapshot_save.Description(self.uid, self.name, self._state()),
            incremental,
            base,
            step,
            max_bytes_per_second,
        )

    def load(
        self,
        path: str | os.PathLike[str],
        weights_only: bool = False,
        incremental: bool = False,
        in_place: bool = False,
        convert: bool = False,
    ) -> Manifest:
        """Replaces all rows with those of a snapshot.

        The snapshot may have any number of shards. A non-empty table is changed
        only after the whole snapshot has been verified; an empty table is
        emptied again if damage is found. The table must have the saved table's
        dim, seed, initializer and optimizer, but may have another name.
        Hyperparameters are those of this program, and differences are logged.

        `weights_only=True` loads into a table of another seed, initializer or
        optimizer: only the weights are read, slots are reinitialized, and ids
        that are not in the snapshot get initial rows of this table. Rows are
        streamed, without a second copy in memory. The dim must be the same.

        `in_place=True` is for a table that is read meanwhile: rows are
        overwritten in place, and those that are not in the snapshot are erased
        last. A row that exists both before and after the load is never absent,
        and a reader sees either the old or the new one; the snapshots of a
        chain are applied one after the other. Without `in_place` all rows are
        absent for a while.

        `convert=True` is for a table of another `dtype` or `slot_dtype`: each
        value is rounded to the nearest one of the table's type. Only training
        rounds stochastically, because errors of many steps add up; here each
        value is rounded once, and the nearest value has the smallest error.
        The manifest's `conversion` counts the values that were rounded.

        Args:
          path: string or path-like, the directory. The bases of a delta are
            loaded first.
          weights_only: bool, whether only the weights are loaded.
          incremental: bool, whether deltas will continue this snapshot; not
            with `weights_only`.
          in_place: bool, whether existing rows are overwritten in place.
          convert: bool, whether weights and slots of other types are converted;
            not with `incremental`.

        Returns:
          The manifest, as returned by `save`. With `convert`, its `conversion`
          has the numbers `values`, those of another type than the table's;
          `rounded`, those of them that changed; and `saturated`, those of the
          latter that were limited to the largest finite value. A row that is in
          several snapshots of a chain counts several times. They are logged,
          too.

        Raises:
          FileNotFoundError: if there is no snapshot.
          DamagedSnapshotError: a ValueError that names file and byte.
          tf_ext.snapshot.SnapshotConflictError: if saves repeatedly replaced
            the snapshot while it was read.
          ValueError: if the saved table has another configuration; the message
            names both.

        Example:
        >>> import tempfile
        >>> import tf_ext
        >>> table = tf_ext.SparseTable("user", dim=2, seed=1)
        >>> _ = table.pull([7, 9], training=True)
        >>> other = tf_ext.SparseTable("user", dim=2, seed=2, optimizer="adam")
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = table.save(directory)
        ...     other.load(directory, weights_only=True).rows
        2
        >>> bool(tf.reduce_all(other.pull([7, 9]) == table.pull([7, 9])))
        True
        >>> small = tf_ext.SparseTable("user", 2, seed=1, dtype="float16")
        >>> _ = table.import_rows([7, 9], {"weights": [[1, 0.1], [1e9, -2]]})
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = table.save(directory)
        ...     small.load(directory, convert=True).conversion
        Conversion(values=4, rounded=2, saturated=1)
        >>> small.pull([7, 9]).numpy().tolist()
        [[1.0, 0.0999755859375], [65504.0, -2.0]]
        """
        manifest = snapshot_load.load(
            self.rows,
            path,
            self.name,
            weights_only,
            incremental,
            None if weights_only else self._check_state,
            in_place,
            convert,
        )
        state = dict(manifest.state)
        if weights_only:
            state.pop("optimizer", None)
        self._restore_state(state)
        return manifest

    def apply_delta(
        self, path: str | os.PathLike[str], convert: bool = False
    ) -> Manifest:
        """Applies the changes since the snapshot that the table holds.

        `path` is a snapshot that was saved with `base=`. The table must hold a
        snapshot of its chain, from the last `load` or `apply_delta`, and its
        rows must not have been changed in any other way since then. The deltas
        in between are applied first, in order; if the table already holds
        `path`, nothing happens.

        All files are read and checked before the first row changes. Rows are
        then overwritten in place, and erased rows are removed last, while the
        table may be read: an id that exists both before and after the update is
        never absent, and a reader sees either the old or the new row, never a
        mixture. (A row that is in several deltas takes on each of their values
        in turn.) Do not train the table meanwhile.

        With shards on parameter servers each server reads its own shard's
        files; under MultiWorkerMirroredStrategy all workers must call this
        method.

        Args:
          path: string or path-like, the directory.
          convert: bool, whether weights and slots of other types are converted,
            as by `load`.

        Returns:
          The manifest, as returned by `load`.

        Raises:
          FileNotFoundError: if there is no snapshot.
          DamagedSnapshotError: a ValueError that names file and byte; the table
            is unchanged.
          ValueError: if the delta does not continue the snapshot that the table
            holds, a delta in between is missing, or the saved table has another
            configuration.
          RuntimeError: if something else changed rows meanwhile, or a file was
            damaged after it was checked. Each row is old or new; `load` a
            snapshot, with `in_place=True` if the table is being read.

        Example:
        >>> import tempfile
        >>> import tf_ext
        >>> trained = tf_ext.SparseTable("user", dim=2)
        >>> served = tf_ext.SparseTable("user", dim=2)
        >>> _ = trained.pull([7, 9], training=True)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     _ = trained.save(directory + "/0", incremental=True)
        ...     _ = served.load(directory + "/0")
        ...     _ = trained.erase([7])
        ...     _ = trained.save(directory + "/1", base=directory + "/0")
        ...     served.apply_delta(directory + "/1").kind
        'delta'
        >>> served.size()
        1
        """
        manifest = snapshot_load.apply_delta(
            self.rows, path, self.name, self._check_state, convert
        )
        self._restore_state(dict(manifest.state))
        return manifest

    def end_incremental(self) -> None:
        """Ends the chain of incremental snapshots; its files are kept."""
        snapshot_save.end_chain(self.rows)
