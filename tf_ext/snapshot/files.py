"""Files of snapshots: how they are found, and read chunk by chunk."""

import collections
import errno

from tf_ext import _core
from tf_ext import _snapshot_manifest as manifests
from tf_ext._snapshot_manifest import (
    DamagedSnapshotError,
    SnapshotConflictError,
)
from tf_ext.snapshot.storage import join, storage_of

# How often a snapshot is read that is replaced each time.
ATTEMPTS = 3
# What the system says of a path that is none.
_NO_PATH = (errno.ELOOP, errno.ENAMETOOLONG, errno.EPROTONOSUPPORT)

Chunk = collections.namedtuple(
    "Chunk", ["erased_before", "rows", "erased_after"]
)
Chunk.__doc__ = """What a chunk holds, in the order in which it is applied.

erased_before: int64 `[e]`; rows: uint8 `[n, row_bytes]`; erased_after: int64
`[l]`.
"""


def read_manifest(path):
    """The manifest of the snapshot in a directory.

    Raises:
      FileNotFoundError: there is no snapshot.
      DamagedSnapshotError: its manifest is damaged.
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
        ) from None
    return manifests.decode(data, name)


def read_chain(path):
    """A snapshot and those that it continues.

    Args:
      path: string, as `storage.normalised` gives it.

    Returns:
      List of `(path, Manifest)`, from the full snapshot on.

    Raises:
      FileNotFoundError: there is no snapshot, or one of its bases is gone.
      DamagedSnapshotError: a manifest is damaged, the base of a delta has
        been replaced, or the two do not fit together.
    """
    chain = [(path, read_manifest(path))]
    while chain[0][1].base is not None:
        chain.insert(0, _read_base(*chain[0]))
    return chain


def read_again_if_replaced(path, read, use):
    """Reads a snapshot, and anew if it is replaced while it is read.

    A save removes the files of the snapshot that it replaces, which a reader
    may be about to open.

    Args:
      path: string, the snapshot's directory, for messages.
      read: function that returns the chain, as `read_chain` does.
      use: function of the chain that reads its files.

    Returns:
      What `use` returned.

    Raises:
      SnapshotConflictError: it was replaced again and again.
      DamagedSnapshotError: `use` raised it, and nothing was replaced.
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


def ids(chain):
    """The ids of a chain's snapshots: those of another one are others."""
    return [manifest.id for _, manifest in chain]


def replaced(path):
    """The error for a snapshot that was replaced while it was read."""
    return SnapshotConflictError(
        f"The snapshot in {path} was replaced by another save while it was "
        "read. Read it again, when no save is running or less often than it "
        "takes to read it."
    )


def _read_base(path, delta):
    """The `(path, Manifest)` that a delta continues."""
    base = join(path, delta.base[0])
    try:
        manifest = read_manifest(base)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{path} continues a snapshot that is gone. {error}"
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
    # Numbers that fall end where a chain leads back to itself.
    if manifest.sequence != delta.sequence - 1:
        raise DamagedSnapshotError(
            f"{path} is number {delta.sequence} of a chain, so what it "
            f"continues must be number {delta.sequence - 1}, but {base} is "
            f"number {manifest.sequence}."
        )
    if manifest.fields != delta.fields:
        raise DamagedSnapshotError(
            f"{path} and {base}, which it continues, have rows of different "
            f"fields: {delta.described_fields} and {manifest.described_fields}."
        )
    return base, manifest


def read_chunks(path, manifest, file, progress, backwards=False):
    """Reads a file of rows and checks all of it.

    Args:
      path: string, the directory.
      manifest: Manifest.
      file: RowFile, one of the manifest's.
      progress: function that is called with the bytes of each chunk.
      backwards: bool, whether the last chunk comes first.

    Yields:
      Chunks, each found whole. That the file is the one the manifest names is
      known once all of them have come.

    Raises:
      DamagedSnapshotError: damage; the file and the byte are named.
    """
    name = join(path, file.name)
    try:
        with storage_of(path).reader(name) as (size, read):
            if size != file.bytes:
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


def _decode(name, manifest, file, index, data):
    """A Chunk, and the CRC32C of its bytes."""
    try:
        *parts, crc = _core.decode_chunk(
            data, manifest.chunk_bytes, manifest.row_bytes, file.tag, index
        )
    except ValueError as error:
        raise DamagedSnapshotError(f"{name} is {error}") from None
    return Chunk(*parts), crc


class _Totals:
    """What the chunks of a file make together."""

    def __init__(self, backwards):
        self._backwards = backwards
        self._rows = self._erased = self._bytes = self._crc = 0

    def add(self, chunk, size, crc):
        self._rows += len(chunk.rows)
        self._erased += len(chunk.erased_before) + len(chunk.erased_after)
        if self._backwards:
            self._crc = _core.combine_crc32c(crc, self._crc, self._bytes)
        else:
            self._crc = _core.combine_crc32c(self._crc, crc, size)
        self._bytes += size

    def check(self, name, file):
        found = (self._rows, self._erased, self._crc)
        if found == (file.rows, file.erased, file.crc32c):
            return
        raise DamagedSnapshotError(
            f"{name} is not the one that the manifest names, from byte 0 on: "
            f"it has {self._rows} rows, {self._erased} erased signs and the "
            f"CRC32C {self._crc:08x}, instead of {file.rows}, {file.erased} "
            f"and {file.crc32c:08x}."
        )
