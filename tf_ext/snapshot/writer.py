# SPDX-License-Identifier: Apache-2.0
"""Writes full snapshots, in steps that a later process can go on with."""

import contextlib
import dataclasses
import hashlib
import json
import re
import secrets
import typing
import uuid
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext._version import __version__
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot import resuming
from tf_ext.snapshot.claims import CLAIM_FILE, Claim
from tf_ext.snapshot.files import (
    Progress,
    no_progress,
    read_chunks,
    read_manifest,
)
from tf_ext.snapshot.manifest import SnapshotConflictError
from tf_ext.snapshot.reader import signs_of
from tf_ext.snapshot.storage import Storage, join, storage_of

# Each shard takes a chunk of memory and an open file. More shards take further
# passes.
_SHARDS_AT_ONCE = 128
_COUNTERS_AT_ONCE = 1 << 16

# How much is read between two records of how far the work has come; and, as
# each of them ends a chunk of each open file, for each of these.
_BYTES_PER_RECORD = 256 << 20
_CHUNKS_PER_RECORD = 64

# What a process that was killed can have left in a directory.
_LEFT_FILE = re.compile(manifests.LEFT_FILE)
_Files = tuple[manifests.RowFile, ...]
_LEFT = re.compile(f"{_LEFT_FILE.pattern}|{CLAIM_FILE}")


def times_read(parts: int, shards: int) -> int:
    """How many times all rows are read to write a snapshot.

    Args:
      parts: int, see Content.
      shards: int, of the snapshot.
    """
    return 1 if parts == shards else -(-shards // _SHARDS_AT_ONCE)


@dataclasses.dataclass(frozen=True)
class Content:
    """What is written.

    Attributes:
      what: string, what it is of, for messages.
      manifest: Manifest of the new snapshot, but for what describes its files.
      parts: int, in how many parts rows can be read, each of them with files of
        its own: the shards of what is read.
      rows: function of `((part, parts), progress, skipped)`, the latter being
        the number of blocks that are left out. It yields blocks, the same ones
        in each call: iterators of the rows as they are stored, uint8
        `[n, row_bytes]`, to be used up before the next block. The last of
        several rows of one sign counts.
      counters: function of (shard, shards, Progress) that returns the counters
        of a shard, uint8 `[n, COUNTER_BYTES]`, in any order.
      made_of: JSON, equal for contents with the same rows and counters; None if
        that is not known.
      rounded: int64 `[3]`, counts that `rows` increases, and that are part of
        the result.
    """

    what: str
    manifest: manifests.Manifest
    parts: int
    rows: Callable[
        [tuple[int, int], Progress, int],
        Iterator[Iterator[npt.NDArray[np.uint8]]],
    ]
    counters: Callable[[int, int, Progress], npt.NDArray[np.uint8]]
    made_of: typing.Any
    rounded: npt.NDArray[np.int64] = dataclasses.field(
        default_factory=lambda: np.zeros([3], np.int64)
    )


def write(
    content: Content, out: str, shards: int, progress: Progress | None
) -> manifests.Manifest:
    """Writes a full snapshot, which is whole or absent.

    If a process was killed while it wrote the same content to the same
    directory, this one goes on where that one had come to.

    Args:
      content: Content.
      out: string, as returned by `storage.normalised`, where nothing is but
        what a killed process has left.
      shards: int.
      progress: see `reshard`.

    Returns:
      The Manifest.

    Raises:
      The errors of `reshard`; no files are left in `out`.
    """
    storage = storage_of(out)
    _check_left(storage, out)
    made = storage.make_directory(out)
    work = _Work(storage, content, out, shards, progress or no_progress)
    try:
        return work.run()
    except BaseException:
        work.discard()
        if made:
            with contextlib.suppress(OSError):
                storage.remove(out)
        raise


def _check_left(storage: Storage, out: str) -> None:
    """Raises ValueError if a directory has what no killed process leaves."""
    if not all(map(_LEFT.fullmatch, storage.names(out))):
        raise ValueError(
            "Argument `out` must be a directory that is empty or does not "
            f"exist yet. Received: out={out!r}, which holds files"
        )


class _NotThereError(Exception):
    """What a record names is not there, or damaged."""


class _Work:
    """A snapshot that is being written; see `write`."""

    def __init__(
        self,
        storage: Storage,
        content: Content,
        out: str,
        shards: int,
        progress: Progress,
    ) -> None:
        self._storage, self._content, self._out = storage, content, out
        self._shards, self._report = shards, progress
        self._claim = Claim(out, f"Writing {content.what} to {out}")
        # The names of files have it, too, so that no other process writes to
        # one of them: not even one that goes on with this work.
        self._id = uuid.uuid4().hex
        self._layout = dataclasses.replace(
            content.manifest,
            chunk_bytes=_core.chunk_bytes_for(content.manifest.row_bytes),
        )
        self._by_shard = content.parts == shards
        at_once = 1 if self._by_shard else _SHARDS_AT_ONCE
        self._passes = [
            range(shards)[first : first + at_once]
            for first in range(0, shards, at_once)
        ]
        self._counters = shards if content.manifest.counters else 0
        self._record = resuming.Record(self._identity())
        # The names of files that this process has created, and of those that
        # the record in the directory names.
        self._created: set[str] = set()
        self._recorded: set[str] = set()
        # Bytes: those read by this process, until now and until the last
        # record, and those that need not be read again.
        self._read = self._read_at_record = self._unreported = 0

    def _identity(self) -> str:
        """Equal for works with the same result."""
        of = self._content
        parts = [__version__, of.made_of, self._shards, len(self._passes)]
        found = hashlib.sha256(manifests.encode(of.manifest))
        found.update(json.dumps(parts).encode())
        return found.hexdigest()

    def run(self) -> manifests.Manifest:
        """Writes everything; returns the Manifest."""
        with self._claim.taken():
            # Once more: another process may have ended its work meanwhile.
            _check_left(self._storage, self._out)
            self._find_record()
            self._remove_others()
        try:
            self._write_passes()
        except _NotThereError:
            self._begin_anew()
            self._write_passes()
        for shard in range(len(self._record.counters), self._counters):
            self._write_counters(shard)
        if self._unreported:
            self._progress(0)
        manifest = _manifest(self._layout, self._id, self._shards, self._record)
        with self._claim.held():
            _commit(self._storage, join(self._out, manifests.NAME), manifest)
            self._remove(manifests.UNFINISHED)
        self._claim.release()
        return manifest

    def discard(self) -> None:
        """Removes everything but what another writer may go on with."""
        with contextlib.suppress(OSError, ValueError):
            # An interrupt may have come when all was done.
            if read_manifest(self._out).id == self._id:
                self._remove(manifests.NAME)
        with contextlib.suppress(OSError, SnapshotConflictError):
            with self._claim.held():
                self._remove(manifests.UNFINISHED)
                self._created |= self._recorded
                self._recorded = set()
        for name in self._created - self._recorded:
            self._remove(name)
        self._claim.release()

    def _find_record(self) -> None:
        if self._content.made_of is None:
            return
        found = resuming.read(
            self._storage,
            self._out,
            self._record.work,
            self._layout.row_bytes,
            self._passes,
            self._counters,
        )
        if found is not None:
            self._record, self._recorded = found, found.names
            self._content.rounded[:] = found.rounded
            self._unreported = found.bytes_read

    def _begin_anew(self) -> None:
        self._record = resuming.Record(self._record.work)
        self._recorded = set()
        self._unreported = 0
        self._content.rounded[:] = 0
        with self._claim.held():
            self._remove_others()

    def _remove_others(self) -> None:
        """Removes what other processes left, but for what the record names."""
        kept = set(self._recorded)
        if kept:
            kept.add(manifests.UNFINISHED)
        for name in self._storage.names(self._out):
            if _LEFT_FILE.fullmatch(name) and name not in kept:
                self._storage.remove(join(self._out, name))

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            self._storage.remove(join(self._out, name))

    def _progress(self, size: int) -> None:
        self._read += size
        size, self._unreported = size + self._unreported, 0
        self._report(size)

    def _write_passes(self) -> None:
        for number in range(self._record.passes, len(self._passes)):
            begun_at = self._read
            files = self._write_pass(number)
            self._complete(
                begun_at,
                passes=number + 1,
                files=self._record.files + files,
                blocks=0,
                begun=(),
            )

    def _write_pass(self, number: int) -> _Files:
        """Writes all rows of some of the shards."""
        shards = self._passes[number]
        part = (number, self._shards) if self._by_shard else (0, 1)
        with contextlib.ExitStack() as stack:
            files = [
                self._open(
                    f"rows-{self._id[:16]}-{shard:05d}-000.chunks",
                    self._layout.row_bytes,
                    shard,
                    stack,
                )
                for shard in shards
            ]
            if self._record.begun:
                self._take_over(files)
            blocks = self._record.blocks
            for block in self._content.rows(part, self._progress, blocks):
                for rows in block:
                    self._add(rows, files)
                blocks += 1
                if self._storage.keeps_open_files and self._is_due(len(files)):
                    self._save(files, blocks)
            return tuple(file.finish() for file in files)

    def _add(
        self, rows: npt.NDArray[np.uint8], files: Sequence["_RowFile"]
    ) -> None:
        if self._by_shard:
            files[0].write(rows)
            return
        owners = _core.shard_of(signs_of(rows), self._shards)
        # Stable, so that repeated rows of a sign stay in order.
        order = np.argsort(owners, kind="stable")
        numbers = [file.shard for file in files]
        begins = np.searchsorted(owners[order], [*numbers, numbers[-1] + 1])
        for file, begin, end in zip(
            files, begins[:-1], begins[1:], strict=True
        ):
            if begin < end:
                file.write(rows[order[begin:end]])

    def _take_over(self, files: Sequence["_RowFile"]) -> None:
        """Copies the rows of files that a killed process had begun.

        A process that is believed dead may still write to its files.
        """
        begun = self._record.begun
        try:
            for file, old in zip(files, begun, strict=True):
                if old.bytes == 0:
                    continue
                for chunk in read_chunks(
                    self._out, self._layout, old, no_progress, is_begun=True
                ):
                    file.write(chunk.rows)
        except (OSError, ValueError):
            raise _NotThereError from None
        self._save(files, self._record.blocks)
        for old in begun:
            self._remove(old.name)

    def _write_counters(self, shard: int) -> None:
        begun_at = self._read
        with contextlib.ExitStack() as stack:
            file = self._open(
                f"counters-{self._id[:16]}-{shard:05d}.chunks",
                _core.COUNTER_BYTES,
                shard,
                stack,
            )
            counters = self._content.counters(
                shard, self._shards, self._progress
            )
            order = np.argsort(_core.counter_keys(signs_of(counters)))
            for begin in range(0, len(order), _COUNTERS_AT_ONCE):
                some = order[begin : begin + _COUNTERS_AT_ONCE]
                file.write(counters[some])
            complete = file.finish()
        self._complete(begun_at, counters=(*self._record.counters, complete))

    def _open(
        self, name: str, row_bytes: int, shard: int, stack: contextlib.ExitStack
    ) -> "_RowFile":
        """Opens a file, which is durable when the stack is closed."""
        self._created.add(name)
        write = self._storage.writer(join(self._out, name))
        return _RowFile(name, row_bytes, shard, stack.enter_context(write))

    def _complete(self, begun_at: int, **changes: typing.Any) -> None:
        """Adds what is complete, and durable, to what is recorded next."""
        read = self._record.bytes_read + self._read - begun_at
        self._record = dataclasses.replace(
            self._record, bytes_read=read, **changes
        )
        if self._is_due(1):
            self._save()

    def _is_due(self, files: int) -> bool:
        """Whether so much has been read since the last record was written."""
        least = _CHUNKS_PER_RECORD * files * self._layout.chunk_bytes
        return (
            self._content.made_of is not None
            and self._read - self._read_at_record
            >= max(_BYTES_PER_RECORD, least)
        )

    def _save(self, files: Sequence["_RowFile"] = (), blocks: int = 0) -> None:
        """Records what is complete, and how far the next pass has come."""
        begun = tuple(file.begun() for file in files)
        try:
            for file in begun:
                self._storage.sync(join(self._out, file.name))
        except FileNotFoundError:
            self._claim.check()  # Another writer may have removed it.
            raise
        record = dataclasses.replace(
            self._record,
            begun=begun,
            blocks=blocks,
            rounded=tuple(self._content.rounded.tolist()),
        )
        with self._claim.held():
            self._recorded |= record.names
            resuming.write(self._storage, self._out, record)
        self._record, self._recorded = record, record.names
        self._read_at_record = self._read


def _commit(storage: Storage, name: str, manifest: manifests.Manifest) -> None:
    try:
        storage.commit(name, manifests.encode(manifest))
    except BaseException:
        for left in (name, f"{name}.part"):
            with contextlib.suppress(OSError):
                storage.remove(left)
        raise


class _RowFile:
    """A file of rows, or of counters, that is being written."""

    def __init__(
        self,
        name: str,
        row_bytes: int,
        shard: int,
        write: Callable[[bytes], object],
    ) -> None:
        self.shard = shard
        self._name = name
        self._write = write
        self._tag = secrets.randbits(64)
        self._encoder = _core.RowFileEncoder(row_bytes, self._tag)

    def write(self, rows: npt.NDArray[np.uint8]) -> None:
        self._write(self._encoder.add_rows(rows))

    def begun(self) -> manifests.RowFile:
        """Writes all rows so far; returns the file as if it ended here."""
        self._write(self._encoder.flush())
        return self._described()

    def finish(self) -> manifests.RowFile:
        self._write(self._encoder.finish())
        return self._described()

    def _described(self) -> manifests.RowFile:
        return manifests.RowFile(
            self._name,
            self.shard,
            self._tag,
            self._encoder.rows,
            0,
            self._encoder.bytes,
            self._encoder.crc32c,
        )


def _manifest(
    manifest: manifests.Manifest,
    snapshot_id: str,
    shards: int,
    record: resuming.Record,
) -> manifests.Manifest:
    saved = manifest.counters
    return dataclasses.replace(
        manifest,
        id=snapshot_id,
        base=None,
        sequence=0,
        tf_ext_version=__version__,
        shards=shards,
        files=record.files,
        counters=saved and dataclasses.replace(saved, files=record.counters),
    )
