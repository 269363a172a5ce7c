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
from collections.abc import Sequence

import tensorflow as tf

from tf_ext._checks import check_max_bytes_per_second, is_int, refuse
from tf_ext._version import __version__
from tf_ext.ops.snapshot import snapshot_ops
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot.claims import Claim
from tf_ext.snapshot.files import CHANGES, read_manifest
from tf_ext.snapshot.manifest import SnapshotConflictError
from tf_ext.snapshot.storage import join, normalised, storage_of
from tf_ext.tables import row_counters
from tf_ext.tables.rows import TableRows
from tf_ext.tables.saving.chain import Links, check_exists

_LEFT_FILE = re.compile(manifests.LEFT_FILE)

# The files of a shard, and the bytes of a chunk of rows.
_Saved: typing.TypeAlias = tuple[list[manifests.RowFile], int]


class Save:
    """A snapshot that is written by `run`; see `SparseTable.save`.

    Args:
      table_rows: TableRows.
      path: path-like, the directory.
      incremental: bool, whether the snapshot starts a chain.
      base: path-like, the last snapshot of the chain, to write a delta; or
        None.
      step: int or None, for the manifest.
      max_bytes_per_second: int or None.
      id: string, of a snapshot of the same rows; "" for a new one.
    """

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
        # Of `_run`: the state of the rows, the chain that is continued, the
        # snapshot's id, the current period of counters, and the claim of the
        # first worker.
        self._state: dict[str, str] = {}
        self._links: Links = ()
        self._id = id
        self._period = -1
        self._claim: Claim | None = None

    def run(self) -> manifests.Manifest:
        """Writes the snapshot; returns its Manifest."""
        if not self._tracked:
            return self._run()
        with self._table_rows.chain.lock:
            self._table_rows.chain.settle(self._table_rows.on_each)
            return self._run()

    def _run(self) -> manifests.Manifest:
        table_rows, path = self._table_rows, self._path
        chain = table_rows.chain
        processes = table_rows.regime.processes
        self._state = table_rows.saved_state()
        with processes.together(self._what):
            self._check()
        self._id = self._id or processes.from_first(uuid.uuid4().hex)
        if table_rows.counting is not None:
            self._period = int(row_counters.current_period(table_rows))
        if processes.rank == 0:
            # It writes the manifest.
            self._claim = Claim(path, self._what)
        try:
            if self._tracked:
                chain.saving = self._id
            with processes.together(self._what):
                if self._claim is not None:
                    storage_of(path).make_directory(path)
                    with self._claim.taken():
                        _remove_leftovers(path)
            with processes.together(self._what):
                parts = self._save_shards()
            manifest = self._manifest(_of_all_processes(table_rows, parts))
            with processes.together(self._what):
                self._commit(manifest)
            if self._tracked:
                # From here on the save is one of the chain: see `settle`.
                chain.links = (*self._links, (path, self._id))
                chain.settle(table_rows.on_each)
        except BaseException:
            if self._tracked:
                # The first error says more than one of its consequences.
                with contextlib.suppress(tf.errors.OpError):
                    chain.settle(table_rows.on_each)
            if self._claim is not None:
                with contextlib.suppress(OSError):
                    _remove_leftovers(path, self._id)
                self._claim.release()
            raise
        if self._claim is not None:
            # A writer that has claimed the directory since has removed them.
            with contextlib.suppress(SnapshotConflictError, TimeoutError):
                with self._claim.held():
                    _remove_leftovers(path, manifest=manifest)
            self._claim.release()
        return manifest

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

    def _save_shards(self) -> list[_Saved]:
        """Writes this process's shards."""
        limit = (self._max_bytes_per_second or 0) // self._table_rows.num_shards
        base = self._links[-1][1] if self._links else ""
        try:
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
        finally:
            if self._claim is not None:
                # If another writer has removed the files, say so: the op's
                # error only reports missing files.
                self._claim.check()
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
        return parts

    def _commit(self, manifest: manifests.Manifest) -> None:
        """Writes the manifest, if this is the first worker."""
        table_rows = self._table_rows
        if self._tracked and table_rows.chain.saving != self._id:
            raise RuntimeError(
                f"{self._what} was aborted: its thread has begun another "
                "incremental save of the table, in a signal handler."
            )
        if self._claim is not None:
            name, data = (
                join(self._path, manifests.NAME),
                manifests.encode(manifest),
            )
            with self._claim.held():
                snapshot_ops.write_file_atomically(name, data)
                # Checked last, as the snapshot's bases may be replaced while it
                # is written.
                check_exists(table_rows.name, self._links)

    def _manifest(self, parts: Sequence[_Saved]) -> manifests.Manifest:
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
            state=self._state,
            row_bytes=row_bytes,
            fields=fields,
            chunk_bytes=parts[0][1],
            shards=table_rows.num_shards,
            files=tuple(file for file in files if file not in counters),
            counters=None
            if self._period < 0
            else manifests.Counters(self._period, tuple(counters)),
        )


def save_anew(
    table_rows: TableRows,
    path: str,
    step: int | None = None,
    max_bytes_per_second: int | None = None,
) -> manifests.Manifest:
    """Begins a new chain with a full snapshot, and writes how it continues.

    The last delta of the old chain is in `files.CHANGES` in the directory, and
    has the same id: who holds the old chain applies that, and then what
    continues the full one.

    Args:
      table_rows: TableRows with a chain, none of whose snapshots is in `path`.
      path: string, the directory.
      step: see `Save`.
      max_bytes_per_second: see `Save`.

    Returns:
      The Manifest of the full snapshot.
    """
    chain = table_rows.chain
    with chain.lock:
        base, options = chain.links[-1][0], (step, max_bytes_per_second)
        changes = join(normalised(path), CHANGES)
        saved = Save(table_rows, changes, False, base, *options).run()
        # Changes are marked from the delta on: those that come meanwhile may be
        # in the full snapshot, and are in the delta that continues it.
        whole = Save(table_rows, path, False, None, *options, saved.id).run()
        chain.links = ((normalised(path), whole.id),)
        return whole


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
    return os.path.relpath(base, path)
