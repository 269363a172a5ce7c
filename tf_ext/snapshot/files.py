# SPDX-License-Identifier: Apache-2.0
"""Reads manifests, chains and, chunk by chunk, files of snapshots."""

import errno
import os
import typing
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot.manifest import (
    DamagedSnapshotError,
    SnapshotConflictError,
)
from tf_ext.snapshot.point_names import where_snapshots_are
from tf_ext.snapshot.storage import join, resolved, storage_of

Chain = Sequence[tuple[str, manifests.Manifest]]
Progress = Callable[[int], object]
_T = typing.TypeVar("_T")

# The number of attempts to read a snapshot that is being replaced.
ATTEMPTS = 3
# Errors of the operating system for an invalid path.
_NO_PATH = (errno.ELOOP, errno.ENAMETOOLONG, errno.EPROTONOSUPPORT)

# In the directory of a delta, that of a full snapshot with the same id. Only
# with the next delta, which continues it, it holds the rows of one moment.
BASE = "base"

_WRITTEN_BY = " Give the path that SparseTable.save wrote to."


def no_progress(size: int) -> None:
    """A Progress that nobody looks at."""


class Chunk(typing.NamedTuple):
    """The contents of a chunk, in the order of their application.

    Attributes:
      erased_before: int64 `[e]`.
      rows: uint8 `[n, row_bytes]`.
      erased_after: int64 `[l]`.
    """

    erased_before: npt.NDArray[np.int64]
    rows: npt.NDArray[np.uint8]
    erased_after: npt.NDArray[np.int64]


def read_manifest(path: str) -> manifests.Manifest:
    """Reads the manifest of the snapshot in a directory.

    Raises:
      FileNotFoundError: if there is no snapshot.
      DamagedSnapshotError: if its manifest is damaged.
    """
    name = join(path, manifests.NAME)
    try:
        with storage_of(path).reader(name) as (size, read):
            if size > manifests.MAX_BYTES:
                raise DamagedSnapshotError(
                    f"{name} is damaged: it has {size} bytes, which is more "
                    f"than the {manifests.MAX_BYTES} of any manifest."
                )
            data = read(0, size)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"There is no snapshot in {path!r}: it has no {manifests.NAME}."
            f"{where_snapshots_are(path) or _WRITTEN_BY}"
        ) from None
    return manifests.decode(data, name)


def read_chain(path: str) -> list[tuple[str, manifests.Manifest]]:
    """Reads the manifests of a snapshot and those that it continues.

    Args:
      path: string, as returned by `storage.normalised`.

    Returns:
      List of `(path, Manifest)`, starting with the full snapshot.

    Raises:
      FileNotFoundError: if there is no snapshot, or one of its bases is
        missing.
      DamagedSnapshotError: if a manifest is damaged, or the base of a delta
        has been replaced or does not match it.
    """
    chain = [(path, read_manifest(path))]
    while chain[0][1].base is not None:
        chain.insert(0, read_base(*chain[0]))
    return chain


def read_changes(
    path: str, whole: manifests.Manifest
) -> tuple[str, manifests.Manifest] | None:
    """The delta that leads from an earlier chain to a full snapshot.

    Args:
      path: string, the directory of the full snapshot.
      whole: its Manifest.

    Returns:
      `(path, Manifest)`; None if there is none that can be read.
    """
    path, name = os.path.split(path)
    if name != BASE:
        return None
    try:
        found = read_manifest(path)
    except (OSError, ValueError):
        return None
    # Another save may have left it there.
    if found.base is None or (found.id, found.fields) != (
        whole.id,
        whole.fields,
    ):
        return None
    return path, found


def read_again_if_replaced(
    path: str, read: Callable[[], Chain], use: Callable[[Chain], _T]
) -> _T:
    """Reads a snapshot, and retries if it is replaced while it is read.

    A save removes the files of the snapshot that it replaces, which a reader
    may be about to open.

    Args:
      path: string, the snapshot's directory, for messages.
      read: function that returns the chain, as `read_chain` does.
      use: function of the chain that reads its files.

    Returns:
      The result of `use`.

    Raises:
      SnapshotConflictError: if the snapshot was replaced in each attempt.
      DamagedSnapshotError: if `use` raised it although the snapshot was not
        replaced.
    """
    chain = read()
    for _ in range(ATTEMPTS):
        try:
            return use(chain)
        except (DamagedSnapshotError, SnapshotConflictError):
            before, chain = chain, read()
            if ids(chain) == ids(before):
                raise
    raise replaced(path)


def ids(chain: Chain) -> list[str]:
    """The ids of a chain's snapshots, which identify the chain."""
    return [manifest.id for _, manifest in chain]


def overlap(theirs: int, their_shards: int, mine: int, my_shards: int) -> bool:
    """Whether two shards of tables with different shard counts share signs.

    Shard `s` of `n` holds the hashes from s / n to (s + 1) / n of their range.
    """
    return (
        theirs * my_shards < (mine + 1) * their_shards
        and mine * their_shards < (theirs + 1) * my_shards
    )


def replaced(path: str) -> SnapshotConflictError:
    """The error for a snapshot that was replaced while it was read."""
    return SnapshotConflictError(
        f"The snapshot in {path} was replaced by another save while it was "
        "read. Read it again while no save is running, or save at longer "
        "intervals than reading takes."
    )


def read_base(
    path: str, delta: manifests.Manifest
) -> tuple[str, manifests.Manifest]:
    """Reads the base of a delta; returns its `(path, Manifest)`."""
    assert delta.base is not None
    base = join(resolved(path), delta.base[0])
    try:
        manifest = read_manifest(base)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{path} continues a snapshot that is missing. {error}"
        ) from None
    except OSError as error:
        if error.errno not in _NO_PATH:
            raise
        raise DamagedSnapshotError(
            f"{path} continues a snapshot in {base!r}, which cannot be opened: "
            f"{error.strerror}."
        ) from None
    if manifest.id != delta.base[1]:
        raise DamagedSnapshotError(
            f"{path} continues the snapshot {delta.base[1]} in {base}, but "
            f"that has been replaced by {manifest.id}."
        )
    # Sequence numbers must decrease, so that a circular chain is found.
    if manifest.sequence != delta.sequence - 1:
        raise DamagedSnapshotError(
            f"{path} is number {delta.sequence} of a chain, so its base must "
            f"be number {delta.sequence - 1}, but {base} is number "
            f"{manifest.sequence}."
        )
    if manifest.fields != delta.fields:
        raise DamagedSnapshotError(
            f"{path} and its base {base} have rows with different fields: "
            f"{delta.described_fields} and {manifest.described_fields}."
        )
    return base, manifest


def read_chunks(
    path: str,
    manifest: manifests.Manifest,
    file: manifests.RowFile,
    progress: Progress,
    backwards: bool = False,
    is_begun: bool = False,
) -> Iterator[Chunk]:
    """Reads and checks a whole file of rows.

    Args:
      path: string, the directory.
      manifest: Manifest.
      file: RowFile, one of the manifest's.
      progress: function that is called with the bytes of each chunk.
      backwards: bool, whether chunks are read from the last to the first.
      is_begun: bool, whether bytes that do not count may follow the last chunk.

    Yields:
      Chunks, each of which has been checked. Whether the file is the one that
      the manifest names is checked after the last.

    Raises:
      DamagedSnapshotError: if the file is damaged; names file and byte.
    """
    name = join(path, file.name)
    try:
        with storage_of(path).reader(name) as (size, read):
            if size != file.bytes and not (is_begun and size > file.bytes):
                raise DamagedSnapshotError(
                    f"{name} is damaged at byte {min(size, file.bytes)}: it "
                    f"has {size} bytes instead of {file.bytes}."
                )
            totals = _Totals(backwards)
            last = max(0, (file.bytes - 1) // manifest.chunk_bytes)
            for index in range(last, -1, -1) if backwards else range(last + 1):
                data = read(index * manifest.chunk_bytes, manifest.chunk_bytes)
                chunk, crc = _decode(name, manifest, file, index, data)
                totals.add(chunk, len(data), crc)
                progress(len(data))
                yield chunk
    except FileNotFoundError:
        raise DamagedSnapshotError(
            f"A file of the snapshot in {path} is missing: {name}"
        ) from None
    totals.check(name, file)


def _decode(
    name: str,
    manifest: manifests.Manifest,
    file: manifests.RowFile,
    index: int,
    data: bytes,
) -> tuple[Chunk, int]:
    """Decodes a chunk; returns the Chunk and the CRC32C of its bytes."""
    try:
        *parts, crc = _core.decode_chunk(
            data, manifest.chunk_bytes, manifest.row_bytes, file.tag, index
        )
    except ValueError as error:
        raise DamagedSnapshotError(f"{name} is {error}") from None
    return Chunk(*parts), crc


class _Totals:
    """Totals over the chunks of a file."""

    def __init__(self, backwards: bool) -> None:
        self._backwards = backwards
        self._rows = self._erased = self._bytes = self._crc = 0

    def add(self, chunk: Chunk, size: int, crc: int) -> None:
        self._rows += len(chunk.rows)
        self._erased += len(chunk.erased_before) + len(chunk.erased_after)
        if self._backwards:
            self._crc = _core.combine_crc32c(crc, self._crc, self._bytes)
        else:
            self._crc = _core.combine_crc32c(self._crc, crc, size)
        self._bytes += size

    def check(self, name: str, file: manifests.RowFile) -> None:
        found = (self._rows, self._erased, self._crc)
        if found == (file.rows, file.erased, file.crc32c):
            return
        raise DamagedSnapshotError(
            f"{name} is not the one that the manifest names, from byte 0 on: "
            f"it has {self._rows} rows, {self._erased} erased signs and the "
            f"CRC32C {self._crc:08x}, instead of {file.rows}, {file.erased} "
            f"and {file.crc32c:08x}."
        )
