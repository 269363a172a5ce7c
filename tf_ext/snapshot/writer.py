"""Writes snapshots anew: merged, or in another number of shards."""

import contextlib
import dataclasses
import errno
import os
import secrets
import uuid

import numpy as np

from tf_ext import _core
from tf_ext import _snapshot_manifest as manifests
from tf_ext._version import __version__
from tf_ext.snapshot.files import absolute
from tf_ext.snapshot.reader import latest_rows, open_snapshot, signs_of

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
      OSError: the disk is full, ... Nothing is left in `out`.
      ValueError: an argument is not as above.
    """
    if not isinstance(shards, int) or not 1 <= shards <= _MAX_SHARDS:
        raise ValueError(
            f"Argument `shards` must be an int from 1 to {_MAX_SHARDS}. "
            f"Received: shards={shards!r}"
        )
    return _rewrite(open_snapshot(path), out, shards, progress)


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
    snapshot = open_snapshot(path)
    return _rewrite(snapshot, out, snapshot.manifest.shards, progress)


def passes(shards):
    """How often a snapshot is read to be written in so many shards."""
    return -(-shards // _SHARDS_AT_ONCE)


def _rewrite(snapshot, out, shards, progress):
    out = absolute(out)
    if os.path.isdir(out) and os.listdir(out):
        raise ValueError(
            f"{out} is not empty. Name a directory that does not exist yet."
        )
    created = not os.path.isdir(out)
    os.makedirs(out, exist_ok=True)
    snapshot_id = uuid.uuid4().hex
    files = []
    try:
        for first in range(0, shards, _SHARDS_AT_ONCE):
            end = min(first + _SHARDS_AT_ONCE, shards)
            with contextlib.ExitStack() as stack:
                some = [
                    stack.enter_context(_RowFile(out, snapshot, snapshot_id, s))
                    for s in range(first, end)
                ]
                files += some
                _write_rows(snapshot, some, shards, progress)
        manifest = _manifest(snapshot, snapshot_id, shards, files)
        _commit(out, manifests.encode(manifest))
    except BaseException:
        _remove(out, [file.name for file in files], created)
        raise
    return manifest


def _write_rows(snapshot, files, shards, progress):
    """Writes the rows of some of the shards."""
    for rows in latest_rows(
        snapshot.chain, progress or (lambda _: None), repeated=True
    ):
        owners = _core.shard_of(signs_of(rows), shards)
        # Stable: of a sign that is there twice, the later row stays the later.
        order = np.argsort(owners, kind="stable")
        numbers = [file.shard for file in files]
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
        self.name = f"rows-{snapshot_id[:16]}-{shard:05d}-000.chunks"
        self.shard = shard
        self._path = os.path.join(directory, self.name)
        self._tag = secrets.randbits(64)
        self._encoder = _core.RowFileEncoder(
            snapshot.manifest.row_bytes, self._tag
        )
        self._file = None

    def __enter__(self):
        self._file = open(self._path, "xb")
        return self

    def __exit__(self, *_):
        # What could not be written is the error that is on its way already.
        with contextlib.suppress(OSError):
            self._file.close()

    def write(self, rows):
        with _naming(self._path):
            self._file.write(self._encoder.add_rows(rows))

    def finish(self):
        with _naming(self._path):
            self._file.write(self._encoder.finish())
            self._file.flush()
            os.fsync(self._file.fileno())

    def described(self):
        encoder = self._encoder
        return manifests.RowFile(
            self.name,
            self.shard,
            self._tag,
            encoder.rows,
            0,
            encoder.bytes,
            encoder.crc32c,
        )


def _manifest(snapshot, snapshot_id, shards, files):
    return dataclasses.replace(
        snapshot.manifest,
        id=snapshot_id,
        base=None,
        sequence=0,
        tf_ext_version=__version__,
        chunk_bytes=_core.chunk_bytes_for(snapshot.manifest.row_bytes),
        shards=shards,
        files=tuple(file.described() for file in files),
    )


def _commit(directory, data):
    """Writes the manifest, which makes the files a snapshot, durably."""
    name = os.path.join(directory, manifests.NAME)
    with _naming(name), open(name + ".part", "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(directory)
    os.rename(name + ".part", name)
    sync_directory(directory)


def sync_directory(path):
    """Makes the names in a directory durable."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    except OSError as error:
        # Some file systems do not sync directories.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(directory)


def _remove(directory, names, created):
    for name in (manifests.NAME, manifests.NAME + ".part", *names):
        with contextlib.suppress(OSError):
            os.remove(os.path.join(directory, name))
    if created:
        with contextlib.suppress(OSError):
            os.rmdir(directory)


@contextlib.contextmanager
def _naming(path):
    """Adds the file's name to errors of writing, which have none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
