# SPDX-License-Identifier: Apache-2.0
"""Rewrites snapshots: merged, or with another number of shards."""

import contextlib
import dataclasses
import os
import secrets
import typing
import uuid

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext._checks import is_int, refuse
from tf_ext._version import __version__
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot.claims import Claim
from tf_ext.snapshot.files import (
    Chain,
    Progress,
    overlap,
    read_again_if_replaced,
    read_chain,
    read_manifest,
)
from tf_ext.snapshot.reader import (
    Snapshot,
    latest_rows,
    read_counters,
    signs_of,
)
from tf_ext.snapshot.storage import Storage, join, normalised, storage_of

# Each shard takes a chunk of memory and an open file. More shards take further
# passes.
_SHARDS_AT_ONCE = 128
_MAX_SHARDS = 100_000
_COUNTERS_AT_ONCE = 1 << 16


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


def _rewrite(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    shards: int | None,
    progress: Progress | None,
) -> manifests.Manifest:
    """Rewrites a snapshot; `shards` of None keeps its number of shards."""
    path, out = normalised(path), normalised(out)

    def write(chain: Chain) -> manifests.Manifest:
        snapshot = Snapshot(chain)
        return _write(
            snapshot, out, shards or snapshot.manifest.shards, progress
        )

    return read_again_if_replaced(path, lambda: read_chain(path), write)


def _write(
    snapshot: Snapshot, out: str, shards: int, progress: Progress | None
) -> manifests.Manifest:
    storage = storage_of(out)
    if storage.names(out):
        raise ValueError(
            "Argument `out` must be a directory that is empty or does not "
            f"exist yet. Received: out={out!r}, which holds files"
        )
    made = storage.make_directory(out)
    claim = Claim(out, f"Writing {snapshot.path} to {out}")
    snapshot_id = uuid.uuid4().hex
    files = [
        _RowFile(
            out,
            f"rows-{snapshot_id[:16]}-{shard:05d}-000.chunks",
            snapshot.manifest.row_bytes,
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
        for shard in range(shards if snapshot.manifest.counters else 0)
    ]
    try:
        with claim.taken():
            pass
        for first in range(0, shards, _SHARDS_AT_ONCE):
            some = files[first : first + _SHARDS_AT_ONCE]
            with contextlib.ExitStack() as stack:
                for file in some:
                    file.open(storage, stack)
                _write_rows(snapshot, some, shards, progress)
        for file in counters:
            with contextlib.ExitStack() as stack:
                file.open(storage, stack)
                _write_counters(snapshot, file, shards, progress)
        manifest = _manifest(snapshot, snapshot_id, files, counters)
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
    snapshot: Snapshot,
    files: list["_RowFile"],
    shards: int,
    progress: Progress | None,
) -> None:
    """Writes the rows of some of the shards."""
    numbers = [file.shard for file in files]
    for rows in latest_rows(
        snapshot.chain, progress or (lambda _: None), repeated=True
    ):
        owners = _core.shard_of(signs_of(rows), shards)
        # Stable, so that repeated rows of a sign stay in order.
        order = np.argsort(owners, kind="stable")
        begins = np.searchsorted(owners[order], [*numbers, numbers[-1] + 1])
        for file, begin, end in zip(
            files, begins[:-1], begins[1:], strict=True
        ):
            if begin < end:
                file.write(rows[order[begin:end]])
    for file in files:
        file.finish()


def _write_counters(
    snapshot: Snapshot,
    out: "_RowFile",
    shards: int,
    progress: Progress | None,
) -> None:
    """Writes the counters of a shard, which are those of the last delta."""
    manifest = snapshot.manifest
    parts = [np.zeros([0, _core.COUNTER_BYTES], np.uint8)]
    for file in manifest.of_counters.files:
        if not overlap(file.shard, manifest.shards, out.shard, shards):
            continue
        for counters in read_counters(
            snapshot.path, manifest, file, progress or (lambda _: None)
        ):
            owners = _core.shard_of(signs_of(counters), shards)
            parts.append(counters[owners == out.shard])
    whole = np.concatenate(parts)
    del parts
    order = np.argsort(_core.counter_keys(signs_of(whole)))
    for begin in range(0, len(order), _COUNTERS_AT_ONCE):
        out.write(whole[order[begin : begin + _COUNTERS_AT_ONCE]])
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
    snapshot: Snapshot,
    snapshot_id: str,
    files: list[_RowFile],
    counters: list[_RowFile],
) -> manifests.Manifest:
    saved = snapshot.manifest.counters
    return dataclasses.replace(
        snapshot.manifest,
        id=snapshot_id,
        base=None,
        sequence=0,
        tf_ext_version=__version__,
        chunk_bytes=_core.chunk_bytes_for(snapshot.manifest.row_bytes),
        shards=len(files),
        files=tuple(file.described for file in files),
        counters=saved
        and dataclasses.replace(
            saved, files=tuple(file.described for file in counters)
        ),
    )
