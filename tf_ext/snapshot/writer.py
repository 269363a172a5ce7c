# SPDX-License-Identifier: Apache-2.0
"""Rewrites snapshots: merged, or with another number of shards."""

import contextlib
import dataclasses
import functools
import os
import re
import secrets
import typing
import uuid
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext._checks import is_int, refuse
from tf_ext._version import __version__
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot.claims import CLAIM_FILE, Claim
from tf_ext.snapshot.files import (
    Chain,
    Progress,
    overlap,
    read_again_if_replaced,
    read_chain,
    read_manifest,
)
from tf_ext.snapshot.reader import latest_rows, read_counters, signs_of
from tf_ext.snapshot.storage import Storage, join, normalised, storage_of

# Each shard takes a chunk of memory and an open file. More shards take further
# passes.
_SHARDS_AT_ONCE = 128
_MAX_SHARDS = 100_000
_COUNTERS_AT_ONCE = 1 << 16

# What a process that was killed can have left in a directory.
_LEFT_FILE = re.compile(
    rf"{manifests.ROW_FILE}|{manifests.COUNTER_FILE}|{re.escape(manifests.NAME)}.part"
)
_LEFT = re.compile(f"{_LEFT_FILE.pattern}|{CLAIM_FILE}")


def reshard(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    shards: int,
    progress: Progress | None = None,
) -> manifests.Manifest:
    """Rewrites a snapshot with another number of shards.

    Any snapshot can be loaded into any number of shards; if the numbers are the
    same, each shard reads only its own files. A delta is merged with its bases.
    In memory are a chunk for each of up to 128 shards, and the signs of the
    deltas; then the counters of one shard, about 40 bytes each.

    Args:
      path: path-like, the snapshot.
      out: path-like, a directory that is empty or does not exist.
      shards: int, from 1 to 100,000.
      progress: optional function that is called with the bytes of each chunk
        that has been read.

    Returns:
      The Manifest of the new snapshot, which is full.

    Raises:
      DamagedSnapshotError: if the snapshot is damaged; names file and byte.
      SnapshotConflictError: if another process wrote to `out` at the same time,
        or repeatedly replaced the snapshot.
      OSError: if the file system fails, for example because the disk is full.
        No files are left in `out`.
      ValueError: if an argument is not as above.
    """
    if not is_int(shards) or not 1 <= shards <= _MAX_SHARDS:
        refuse("reshard", "shards", f"an int from 1 to {_MAX_SHARDS}", shards)
    return _rewrite(path, out, shards, progress)


def compact(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    progress: Progress | None = None,
) -> manifests.Manifest:
    """Merges a delta and its bases into a full snapshot.

    Args:
      path: path-like, the last delta.
      out: path-like, a directory that is empty or does not exist.
      progress: see `reshard`.

    Returns:
      The Manifest of the new snapshot, which has the shards of the last delta.

    Raises:
      The errors of `reshard`.
    """
    return _rewrite(path, out, None, progress)


def passes(shards: int) -> int:
    """How many times a snapshot is read to rewrite it with `shards` shards."""
    return -(-shards // _SHARDS_AT_ONCE)


@dataclasses.dataclass(frozen=True)
class Content:
    """What is written.

    Attributes:
      what: string, what it is of, for messages.
      manifest: Manifest of the new snapshot, but for what describes its files.
      rows: function of a Progress that yields the rows as they are stored,
        uint8 `[n, row_bytes]`; the last of several of one sign counts. Each
        pass calls it.
      counters: function of (shard, shards, Progress) that returns the counters
        of a shard, uint8 `[n, COUNTER_BYTES]`, in any order.
    """

    what: str
    manifest: manifests.Manifest
    rows: Callable[[Progress], Iterator[npt.NDArray[np.uint8]]]
    counters: Callable[[int, int, Progress], npt.NDArray[np.uint8]]


def _rewrite(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    shards: int | None,
    progress: Progress | None,
) -> manifests.Manifest:
    """Rewrites a snapshot; `shards` of None keeps its number of shards."""
    path, out = normalised(path), normalised(out)

    def rewrite(chain: Chain) -> manifests.Manifest:
        where, manifest = chain[-1]
        content = Content(
            where,
            manifest,
            lambda progress: latest_rows(chain, progress, repeated=True),
            functools.partial(counters_of_shard, where, manifest),
        )
        return write(content, out, shards or manifest.shards, progress)

    return read_again_if_replaced(path, lambda: read_chain(path), rewrite)


def write(
    content: Content, out: str, shards: int, progress: Progress | None
) -> manifests.Manifest:
    """Writes a full snapshot, which is whole or absent.

    Args:
      content: Content.
      out: string, as returned by `storage.normalised`, where nothing is but
        what a killed process has left, which is removed.
      shards: int.
      progress: see `reshard`.

    Returns:
      The Manifest.

    Raises:
      The errors of `reshard`; no files are left in `out`.
    """
    storage = storage_of(out)
    if not all(map(_LEFT.fullmatch, storage.names(out))):
        raise ValueError(
            "Argument `out` must be a directory that is empty or does not "
            f"exist yet. Received: out={out!r}, which holds files"
        )
    progress = progress or (lambda _: None)
    made = storage.make_directory(out)
    claim = Claim(out, f"Writing {content.what} to {out}")
    snapshot_id = uuid.uuid4().hex
    files = [
        _RowFile(
            out,
            f"rows-{snapshot_id[:16]}-{shard:05d}-000.chunks",
            content.manifest.row_bytes,
            shard,
        )
        for shard in range(shards)
    ]
    counters = [
        _RowFile(
            out,
            f"counters-{snapshot_id[:16]}-{shard:05d}.chunks",
            _core.COUNTER_BYTES,
            shard,
        )
        for shard in range(shards if content.manifest.counters else 0)
    ]
    try:
        with claim.taken():
            for name in storage.names(out):
                if _LEFT_FILE.fullmatch(name):
                    storage.remove(join(out, name))
        for first in range(0, shards, _SHARDS_AT_ONCE):
            some = files[first : first + _SHARDS_AT_ONCE]
            with contextlib.ExitStack() as stack:
                for file in some:
                    file.open(storage, stack)
                _write_rows(content.rows(progress), some, shards)
        for file in counters:
            with contextlib.ExitStack() as stack:
                file.open(storage, stack)
                _write_counters(
                    content.counters(file.shard, shards, progress), file
                )
        manifest = _manifest(content.manifest, snapshot_id, files, counters)
        with claim.held():
            _commit(storage, join(out, manifests.NAME), manifest)
    except BaseException:
        with contextlib.suppress(OSError, ValueError):
            # An interrupt may have come when all was done.
            if read_manifest(out).id == snapshot_id:
                storage.remove(join(out, manifests.NAME))
        for file in files + counters:
            with contextlib.suppress(OSError):
                storage.remove(file.path)
        claim.release()
        if made:
            with contextlib.suppress(OSError):
                storage.remove(out)
        raise
    claim.release()
    return manifest


def _commit(storage: Storage, name: str, manifest: manifests.Manifest) -> None:
    try:
        storage.commit(name, manifests.encode(manifest))
    except BaseException:
        for left in (name, f"{name}.part"):
            with contextlib.suppress(OSError):
                storage.remove(left)
        raise


def _write_rows(
    rows: Iterator[npt.NDArray[np.uint8]],
    files: list["_RowFile"],
    shards: int,
) -> None:
    """Writes the rows of some of the shards."""
    numbers = [file.shard for file in files]
    for some in rows:
        owners = _core.shard_of(signs_of(some), shards)
        # Stable, so that repeated rows of a sign stay in order.
        order = np.argsort(owners, kind="stable")
        begins = np.searchsorted(owners[order], [*numbers, numbers[-1] + 1])
        for file, begin, end in zip(
            files, begins[:-1], begins[1:], strict=True
        ):
            if begin < end:
                file.write(some[order[begin:end]])
    for file in files:
        file.finish()


def counters_of_shard(
    path: str,
    manifest: manifests.Manifest,
    shard: int,
    shards: int,
    progress: Progress,
) -> npt.NDArray[np.uint8]:
    """The counters of a snapshot that belong to a shard of another one.

    Args:
      path: string, the snapshot's directory.
      manifest: its Manifest.
      shard: int, of the other one.
      shards: int, how many the other one has.
      progress: see `reshard`.

    Returns:
      uint8 `[n, COUNTER_BYTES]`.
    """
    parts = [np.zeros([0, _core.COUNTER_BYTES], np.uint8)]
    for file in manifest.of_counters.files:
        if not overlap(file.shard, manifest.shards, shard, shards):
            continue
        for counters in read_counters(path, manifest, file, progress):
            owners = _core.shard_of(signs_of(counters), shards)
            parts.append(counters[owners == shard])
    return np.concatenate(parts)


def _write_counters(counters: npt.NDArray[np.uint8], out: "_RowFile") -> None:
    order = np.argsort(_core.counter_keys(signs_of(counters)))
    for begin in range(0, len(order), _COUNTERS_AT_ONCE):
        out.write(counters[order[begin : begin + _COUNTERS_AT_ONCE]])
    out.finish()


class _RowFile:
    """A file of rows, or of counters, that is being written."""

    def __init__(
        self, directory: str, name: str, row_bytes: int, shard: int
    ) -> None:
        self._name = name
        self._row_bytes = row_bytes
        self._encoder: typing.Any = None
        self._write: typing.Any = None
        self.described: typing.Any = None
        self.shard = shard
        self.path = join(directory, self._name)

    def open(self, storage: Storage, stack: contextlib.ExitStack) -> None:
        """Opens the file, which is durable when the stack is closed."""
        self._write = stack.enter_context(storage.writer(self.path))
        self._tag = secrets.randbits(64)
        self._encoder = _core.RowFileEncoder(self._row_bytes, self._tag)

    def write(self, rows: npt.NDArray[np.uint8]) -> None:
        self._write(self._encoder.add_rows(rows))

    def finish(self) -> None:
        self._write(self._encoder.finish())
        self.described = manifests.RowFile(
            self._name,
            self.shard,
            self._tag,
            self._encoder.rows,
            0,
            self._encoder.bytes,
            self._encoder.crc32c,
        )
        self._encoder = self._write = None  # frees a chunk of memory


def _manifest(
    manifest: manifests.Manifest,
    snapshot_id: str,
    files: list[_RowFile],
    counters: list[_RowFile],
) -> manifests.Manifest:
    saved = manifest.counters
    return dataclasses.replace(
        manifest,
        id=snapshot_id,
        base=None,
        sequence=0,
        tf_ext_version=__version__,
        chunk_bytes=_core.chunk_bytes_for(manifest.row_bytes),
        shards=len(files),
        files=tuple(file.described for file in files),
        counters=saved
        and dataclasses.replace(
            saved, files=tuple(file.described for file in counters)
        ),
    )
