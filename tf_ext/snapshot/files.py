"""Files of snapshots: how they are found, and read chunk by chunk."""

import collections
import os
import posixpath

from tf_ext import _core
from tf_ext import _snapshot_manifest as manifests
from tf_ext._snapshot_manifest import DamagedSnapshotError

Chunk = collections.namedtuple(
    "Chunk", ["erased_before", "rows", "erased_after"]
)
Chunk.__doc__ = """What a chunk holds, in the order in which it is applied.

erased_before: int64 `[e]`; rows: uint8 `[n, row_bytes]`; erased_after: int64
`[l]`.
"""


def absolute(path):
    """A path-like as an absolute path.

    Raises:
      ValueError: it is not on a file system of this machine.
    """
    path = os.fspath(path)
    if path.startswith("file://"):
        path = path.removeprefix("file://")
    if "://" in path:
        raise ValueError(
            f"{path} is not a path of this machine, which is all that can be "
            "read without TensorFlow. Copy the directory, or load it into a "
            "table: `SparseTable.load` reads every file system of TensorFlow."
        )
    return os.path.abspath(path)


def read_manifest(path):
    """The manifest of the snapshot in a directory.

    Raises:
      FileNotFoundError: there is no snapshot.
      DamagedSnapshotError: its manifest is damaged.
    """
    name = os.path.join(path, manifests.NAME)
    try:
        with open(name, "rb") as file:
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"There is no snapshot in {path!r}: it has no {manifests.NAME}."
        ) from None
    return manifests.decode(data, name)


def read_chain(path):
    """A snapshot and those that it continues.

    Args:
      path: string, an absolute path.

    Returns:
      List of `(path, Manifest)`, from the full snapshot on.

    Raises:
      FileNotFoundError: there is no snapshot, or one of its bases is gone.
      DamagedSnapshotError: a manifest is damaged, or the base of a delta has
        been replaced.
    """
    chain = [(path, read_manifest(path))]
    while chain[0][1].base is not None:
        after, (name, wanted) = chain[0][0], chain[0][1].base
        base = absolute(name if "://" in name else posixpath.join(after, name))
        try:
            manifest = read_manifest(base)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{after} continues a snapshot that is gone. {error}"
            ) from None
        if manifest.id != wanted:
            raise DamagedSnapshotError(
                f"{after} continues the snapshot {wanted} in {base}, but that "
                f"has been replaced by {manifest.id}."
            )
        chain.insert(0, (base, manifest))
    return chain


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
    name = os.path.join(path, file.name)
    try:
        opened = open(name, "rb", buffering=0)
    except FileNotFoundError:
        raise DamagedSnapshotError(
            f"A file of the snapshot in {path} is missing: {name}"
        ) from None
    with opened:
        found = os.fstat(opened.fileno()).st_size
        if found != file.bytes:
            raise DamagedSnapshotError(
                f"{name} is damaged at byte {min(found, file.bytes)}: it has "
                f"{found} bytes instead of {file.bytes}."
            )
        totals = _Totals(backwards)
        last = max(0, (file.bytes - 1) // manifest.chunk_bytes)
        for index in range(last, -1, -1) if backwards else range(last + 1):
            data = _read(opened, index * manifest.chunk_bytes, manifest)
            try:
                *parts, crc = _core.decode_chunk(
                    data,
                    manifest.chunk_bytes,
                    manifest.row_bytes,
                    file.tag,
                    index,
                )
            except ValueError as error:
                raise DamagedSnapshotError(f"{name} is {error}") from None
            chunk = Chunk(*parts)
            totals.add(chunk, len(data), crc)
            progress(len(data))
            yield chunk
    totals.check(name, file)


def _read(opened, offset, manifest):
    """The bytes of a chunk: fewer than all only where the file ends."""
    return os.pread(opened.fileno(), manifest.chunk_bytes, offset)


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
