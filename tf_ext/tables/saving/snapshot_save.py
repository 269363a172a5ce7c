# SPDX-License-Identifier: Apache-2.0
"""Saves snapshots of a table on TensorFlow's file systems.

docs/snapshots.md describes the format and the order of the writes. Each shard
writes its own files, with an op on its own device.
"""

import contextlib
import dataclasses
import os
import re
import typing
import uuid
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tf_ext._checks import check_max_bytes_per_second, is_int, refuse
from tf_ext._version import __version__
from tf_ext.ops.snapshot import snapshot_ops
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot.claims import Claim
from tf_ext.snapshot.files import read_manifest
from tf_ext.snapshot.manifest import SnapshotConflictError
from tf_ext.snapshot.storage import (
    join,
    normalised,
    resolved,
    storage_of,
)
from tf_ext.tables import row_counters
from tf_ext.tables.rows import TableRows
from tf_ext.tables.saving.chain import Links, check_exists
from tf_ext.tables.shard import TableShard

_LEFT_FILE = re.compile(manifests.LEFT_FILE)

# The files of a shard, and the bytes of a chunk of rows.
_Saved: typing.TypeAlias = tuple[list[manifests.RowFile], int]


class Save:
    """A snapshot of a table; see `SparseTable.save`.

    `run` takes all of the steps that follow it here, in this order, on all
    processes. `begin`, `gather` and `end` are not to be called beside other
    collectives; the others can be: they act on what this process has, and may
    raise on one process alone.

    Args:
      table_rows: TableRows.
      path: path-like, the directory.
      incremental: bool, whether the snapshot starts a chain.
      base: path-like, the last snapshot of the chain, to write a delta; or
        None.
      step: int or None, for the manifest.
      max_bytes_per_second: int or None.
      id: string, the last snapshot of the table's chain: this one holds all
        rows, and the next delta continues it. It may be written while rows
        change: each row is as it was at some time since that snapshot, and what
        has changed since is in the delta. "" for a snapshot of its own.

    Attributes:
      manifest: the Manifest; set by `gather`.
    """

    manifest: manifests.Manifest

    def __init__(
        self,
        table_rows: TableRows,
        path: str | os.PathLike[str],
        incremental: bool = False,
        base: str | os.PathLike[str] | None = None,
        step: int | None = None,
        max_bytes_per_second: int | None = None,
        id: str = "",
    ) -> None:
        self._table_rows = table_rows
        self._path = normalised(path)
        self._what = f"Saving table {table_rows.name!r} in {self._path!r}"
        self._incremental = incremental
        self._base = base
        self._step = step
        self._max_bytes_per_second = max_bytes_per_second
        # Whether shards mark what changes after this snapshot.
        self._tracked = incremental or base is not None
        # Of `begin`: the chain that is continued, the snapshot's id, the
        # current period of counters, and the claim of the first worker.
        self._links: Links = ()
        self._id = id
        self._replaces_chain = bool(id)
        self._period = -1
        self._claim: Claim | None = None
        # Of `write_own_rows`: the shards of this process.
        self._parts: list[_Saved] = []

    def run(self) -> manifests.Manifest:
        """Writes the snapshot; returns its Manifest."""
        processes = self._table_rows.regime.processes
        with self._locked():
            try:
                self.begin()
                with processes.together(self._what):
                    self.write_own_rows()
                self.gather()
                with processes.together(self._what):
                    self.sync()
                with processes.together(self._what):
                    self.commit()
                self.end()
            except BaseException:
                self.abandon()
                raise
        self.remove_leftovers()
        return self.manifest

    def _locked(self) -> contextlib.AbstractContextManager[object]:
        if self._tracked:
            return self._table_rows.chain.lock
        return contextlib.nullcontext()

    def begin(self) -> None:
        """Checks the arguments and claims the directory; on all processes."""
        table_rows, path = self._table_rows, self._path
        processes = table_rows.regime.processes
        if self._tracked:
            table_rows.chain.settle(table_rows.on_each)
        with processes.together(self._what):
            self._check()
        self._id = self._id or processes.from_first(uuid.uuid4().hex)
        if table_rows.counting is not None:
            self._period = int(row_counters.current_period(table_rows))
        if processes.rank == 0:
            # It writes the manifest.
            self._claim = Claim(path, self._what)
        if self._tracked:
            table_rows.chain.saving = self._id
        with processes.together(self._what):
            if self._claim is not None:
                storage_of(path).make_directory(path)
                with self._claim.taken():
                    _remove_leftovers(path)

    def write_own_rows(self) -> None:
        """Writes the shards of this process to files."""
        limit = (self._max_bytes_per_second or 0) // self._table_rows.num_shards
        base = self._links[-1][1] if self._links else ""
        with self._naming_other_writers():
            saved = self._table_rows.on_each(
                lambda index, shard: shard.run(
                    snapshot_ops.sparse_table_save,
                    self._path,
                    self._id,
                    base,
                    self._tracked,
                    index,
                    limit,
                    self._period,
                ),
            )
        parts = []
        for index, (names, numbers, chunk_bytes) in enumerate(
            saved, self._table_rows.first_shard
        ):
            files = [
                manifests.RowFile(
                    name.decode(), index, tag % 2**64, count, erased, size, crc
                )
                for name, (tag, count, erased, size, crc) in zip(
                    names.numpy(), numbers.numpy().tolist(), strict=True
                )
            ]
            parts.append((files, int(chunk_bytes)))
        self._parts = parts

    def gather(self) -> None:
        """Makes the manifest, from what all processes have written."""
        parts = _of_all_processes(self._table_rows, self._parts)
        # Read after the rows: those that were pushed meanwhile must not be
        # ahead of the clocks in it.
        state = self._table_rows.saved_state()
        self.manifest = self._manifest(parts, state)

    def sync(self) -> None:
        """Makes the files of this process durable."""

        def sync(index: int, shard: TableShard) -> None:
            names = [file.name for file in self._files_of(index)]
            with tf.device(shard.device):
                snapshot_ops.sync_files(self._path, names)

        with self._naming_other_writers():
            self._table_rows.on_each(sync)

    @contextlib.contextmanager
    def _naming_other_writers(self) -> Iterator[None]:
        """Raises SnapshotConflictError if another writer has removed files.

        The errors of ops only report missing files.
        """
        try:
            yield
        finally:
            if self._claim is not None:
                self._claim.check()

    def _files_of(self, shard: int) -> list[manifests.RowFile]:
        return self._parts[shard - self._table_rows.first_shard][0]

    def end(self) -> None:
        """Lets the chain go on from here, once the manifest was written."""
        chain = self._table_rows.chain
        if self._replaces_chain:
            with chain.lock:
                if chain.links and chain.links[-1][1] == self._id:
                    chain.links = ((self._path, self._id),)
        if not self._tracked:
            return
        with chain.lock:
            self._check_saving()
            # From here on the save is one of the chain: see `settle`.
            chain.links = (*self._links, (self._path, self._id))
            chain.settle(self._table_rows.on_each)

    def abandon(self) -> None:
        """Undoes what was done, after an error."""
        chain = self._table_rows.chain
        if self._tracked and chain.saving in ("", self._id):
            # The first error says more than one of its consequences.
            with contextlib.suppress(tf.errors.OpError), chain.lock:
                chain.settle(self._table_rows.on_each)
        if self._claim is not None:
            with contextlib.suppress(OSError):
                _remove_leftovers(self._path, self._id)
            self._claim.release()

    def remove_leftovers(self) -> None:
        """Removes the files that the new manifest does not name."""
        if self._claim is None:
            return
        # A writer that has claimed the directory since has removed them.
        with contextlib.suppress(SnapshotConflictError, TimeoutError):
            with self._claim.held():
                _remove_leftovers(self._path, manifest=self.manifest)
        self._claim.release()

    def _check(self) -> None:
        """Checks the arguments, and finds the chain that is continued."""
        table_rows, owner = self._table_rows, "SparseTable.save"
        self._links = table_rows.chain.continued_by(
            table_rows.name, self._path, self._incremental, self._base
        )
        step = self._step
        if step is not None and not (is_int(step) and 0 <= step < 2**63):
            allowed = "an integer from 0 to 2^63 - 1, or None"
            refuse(owner, "step", allowed, step)
        check_max_bytes_per_second(owner, self._max_bytes_per_second)
        if self._tracked and not self._links:
            # Shards may have one that this process was interrupted to note.
            table_rows.chain.end(table_rows.on_each)

    def _check_saving(self) -> None:
        if self._tracked and self._table_rows.chain.saving != self._id:
            raise RuntimeError(
                f"{self._what} was aborted: another incremental save of the "
                "table has begun meanwhile, or its chain has ended."
            )

    def commit(self) -> None:
        """Writes the manifest, if this is the first worker."""
        table_rows = self._table_rows
        self._check_saving()
        if self._claim is not None:
            name, data = (
                join(self._path, manifests.NAME),
                manifests.encode(self.manifest),
            )
            with self._claim.held():
                snapshot_ops.write_file_atomically(name, data)
                # Checked last, as the snapshot's bases may be replaced while it
                # is written.
                check_exists(table_rows.name, self._links)

    def _manifest(
        self, parts: Sequence[_Saved], state: dict[str, str]
    ) -> manifests.Manifest:
        table_rows = self._table_rows
        files = [file for some, _ in parts for file in some]
        counters = [
            f for f in files if re.fullmatch(manifests.COUNTER_FILE, f.name)
        ]
        fields, row_bytes = manifests.row_fields(table_rows.stored_fields)
        base = self._links[-1] if self._links else None
        return manifests.Manifest(
            id=self._id,
            base=base and (_relative_path(self._path, base[0]), base[1]),
            sequence=len(self._links),
            step=None if self._step is None else int(self._step),
            tf_ext_version=__version__,
            tensorflow_version=tf.__version__,
            table_id=table_rows.table_config.uid,
            label=table_rows.name,
            config=table_rows.config,
            state=state,
            row_bytes=row_bytes,
            fields=fields,
            chunk_bytes=parts[0][1],
            shards=table_rows.num_shards,
            files=tuple(file for file in files if file not in counters),
            counters=None
            if self._period < 0
            else manifests.Counters(self._period, tuple(counters)),
        )


def _of_all_processes(
    table_rows: TableRows, parts: Sequence[_Saved]
) -> list[_Saved]:
    """Gathers the results of `Save._save_shard` for all shards."""
    mine = [
        ([dataclasses.astuple(file) for file in files], chunk_bytes)
        for files, chunk_bytes in parts
    ]
    return [
        ([manifests.RowFile(*file) for file in files], chunk_bytes)
        for its_parts in table_rows.regime.processes.gather_json(mine)
        for files, chunk_bytes in its_parts
    ]


def _remove_leftovers(
    path: str,
    snapshot_id: str = "",
    manifest: manifests.Manifest | None = None,
) -> None:
    """Removes files of saves that the manifest in the directory does not name.

    Args:
      path: string, the directory.
      snapshot_id: string, the snapshot whose files are removed; "" for the
        leftovers of all saves.
      manifest: Manifest in the directory; None to read it.
    """
    try:
        manifest = manifest or read_manifest(path)
    except FileNotFoundError:
        kept = set()
    except ValueError:
        return  # It is unknown which files the manifest names.
    else:
        kept = {file.name for file in manifest.all_files}
    storage = storage_of(path)
    for name in storage.names(path):
        if (
            _LEFT_FILE.fullmatch(name)
            and name not in kept
            and (not snapshot_id or f"-{snapshot_id[:16]}-" in name)
        ):
            # A failing save may be removing its own files.
            with contextlib.suppress(FileNotFoundError):
                storage.remove(join(path, name))


def _relative_path(path: str, base: str) -> str:
    """The path of a base in a delta, so that both can be moved together."""
    if "://" in path or "://" in base:
        return base
    return os.path.relpath(resolved(base), resolved(path))
