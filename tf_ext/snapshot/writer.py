"""Writes snapshots anew: merged, or in another number of shards."""

import contextlib
import dataclasses
import secrets
import uuid

import numpy as np

from tf_ext import _core
from tf_ext import _snapshot_manifest as manifests
from tf_ext._checks import is_int
from tf_ext._version import __version__
from tf_ext.snapshot.claims import Claim
from tf_ext.snapshot.files import read_again_if_replaced, read_chain
from tf_ext.snapshot.reader import Snapshot, latest_rows, signs_of
from tf_ext.snapshot.storage import join, normalised, storage_of

# Each has a chunk in memory and an open file. More take another pass.
_SHARDS_AT_ONCE = 128
_MAX_SHARDS = 100_000


def reshard(path, out, shards, progress=None):
    """Writes a snapshot anew in another number of shards.

    A snapshot loads into any number of shards as it is; written in as many,
    each shard reads its own files alone. A delta is merged with those that it
    continues. A chunk of each of up to 128 shards is in memory, and of deltas
    the signs.

    Args:
      path: path-like, the snapshot.
      out: path-like, a directory that is empty or does not exist.
      shards: int, from 1 to 100,000.
      progress: function that is called with the bytes of each chunk that was
        read. None: nothing is.

    Returns:
      The Manifest of the new snapshot, a full one.

    Raises:
      DamagedSnapshotError: damage; file and byte are named.
      SnapshotConflictError: another process wrote to `out` at the same time,
        or replaced the snapshot again and again.
      OSError: the disk is full, ... Nothing is left in `out`.
      ValueError: an argument is not as above.
    """
    if not is_int(shards) or not 1 <= shards <= _MAX_SHARDS:
        raise ValueError(
            f"Argument `shards` must be an int from 1 to {_MAX_SHARDS}. "
            f"Received: shards={shards!r}"
        )
    return _rewrite(path, out, shards, progress)


def compact(path, out, progress=None):
    """Merges a snapshot and those that it continues into a full one.

    Args:
      path: path-like, the last delta.
      out: path-like, a directory that is empty or does not exist.
      progress: see `reshard`.

    Returns:
      The Manifest of the new snapshot, in as many shards as the last delta.

    Raises:
      As `reshard`.
    """
    return _rewrite(path, out, None, progress)


def passes(shards):
    """How often a snapshot is read to be written in so many shards."""
    return -(-shards // _SHARDS_AT_ONCE)


def _rewrite(path, out, shards, progress):
    """Writes a snapshot anew, in as many shards as it has if that is None."""
    path, out = normalised(path), normalised(out)

    def write(chain):
        snapshot = Snapshot(chain)
        return _write(
            snapshot, out, shards or snapshot.manifest.shards, progress
        )

    return read_again_if_replaced(path, lambda: read_chain(path), write)


def _write(snapshot, out, shards, progress):
    storage = storage_of(out)
    if storage.names(out):
        raise ValueError(
            f"{out} is not empty. Name a directory that does not exist yet."
        )
    made = storage.make_directory(out)
    claim = Claim(out, f"Writing {snapshot.path} to {out}")
    snapshot_id = uuid.uuid4().hex
    files = [_RowFile(out, snapshot, snapshot_id, s) for s in range(shards)]
    try:
        with claim.taken():
            pass
        for first in range(0, shards, _SHARDS_AT_ONCE):
            some = files[first : first + _SHARDS_AT_ONCE]
            with contextlib.ExitStack() as stack:
                for file in some:
                    file.open(storage, stack)
                _write_rows(snapshot, some, shards, progress)
        manifest = _manifest(snapshot, snapshot_id, files)
        with claim.held():
            _commit(storage, join(out, manifests.NAME), manifest)
    except BaseException:
        for file in files:
            with contextlib.suppress(OSError):
                storage.remove(file.path)
        claim.release()
        if made:
            with contextlib.suppress(OSError):
                storage.remove(out)
        raise
    claim.release()
    return manifest


def _commit(storage, name, manifest):
    try:
        storage.commit(name, manifests.encode(manifest))
    except BaseException:
        for left in (name, f"{name}.part"):
            with contextlib.suppress(OSError):
                storage.remove(left)
        raise


def _write_rows(snapshot, files, shards, progress):
    """Writes the rows of some of the shards."""
    numbers = [file.shard for file in files]
    for rows in latest_rows(
        snapshot.chain, progress or (lambda _: None), repeated=True
    ):
        owners = _core.shard_of(signs_of(rows), shards)
        # Stable: of a sign that is there twice, the later row stays the later.
        order = np.argsort(owners, kind="stable")
        begins = np.searchsorted(owners[order], [*numbers, numbers[-1] + 1])
        for file, begin, end in zip(
            files, begins[:-1], begins[1:], strict=True
        ):
            if begin < end:
                file.write(rows[order[begin:end]])
    for file in files:
        file.finish()


class _RowFile:
    """A file of rows that is being written."""

    def __init__(self, directory, snapshot, snapshot_id, shard):
        self._name = f"rows-{snapshot_id[:16]}-{shard:05d}-000.chunks"
        self._row_bytes = snapshot.manifest.row_bytes
        self._encoder = self._write = self.described = None
        self.shard = shard
        self.path = join(directory, self._name)

    def open(self, storage, stack):
        """Begins the file, which is durable when the stack is left."""
        self._write = stack.enter_context(storage.writer(self.path))
        self._tag = secrets.randbits(64)
        self._encoder = _core.RowFileEncoder(self._row_bytes, self._tag)

    def write(self, rows):
        self._write(self._encoder.add_rows(rows))

    def finish(self):
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
        self._encoder = self._write = None  # A chunk in memory less.


def _manifest(snapshot, snapshot_id, files):
    return dataclasses.replace(
        snapshot.manifest,
        id=snapshot_id,
        base=None,
        sequence=0,
        tf_ext_version=__version__,
        chunk_bytes=_core.chunk_bytes_for(snapshot.manifest.row_bytes),
        shards=len(files),
        files=tuple(file.described for file in files),
    )
