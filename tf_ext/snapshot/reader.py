# SPDX-License-Identifier: Apache-2.0
"""Reads snapshots as NumPy arrays."""

import itertools
import os
import typing
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext.snapshot.clocks import CLOCK_FIELDS, caught_up, have_clocks
from tf_ext.snapshot.files import (
    ATTEMPTS,
    Chain,
    Progress,
    ids,
    no_progress,
    overlap,
    read_chain,
    read_chunks,
    replaced,
)
from tf_ext.snapshot.manifest import (
    NAME,
    DamagedSnapshotError,
    Manifest,
    RowFile,
)
from tf_ext.snapshot.storage import normalised

# Signs, and the values of the fields by name.
Rows = tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[typing.Any]]]


def open_snapshot(path: str | os.PathLike[str]) -> "Snapshot":
    """Opens a snapshot, without reading rows yet.

    Args:
      path: path-like, the directory that `SparseTable.save` wrote.

    Returns:
      A Snapshot.

    Raises:
      FileNotFoundError: if there is no snapshot, or one of its bases is
        missing.
      DamagedSnapshotError: if a manifest is damaged; names file and byte.
      ModuleNotFoundError: if the path is not local (`gs://...`) and TensorFlow,
        which is needed to access it, is not installed.
    """
    return Snapshot(read_chain(normalised(path)))


class Snapshot:
    """A snapshot, with its bases if it is a delta.

    If a save replaces the snapshot before any row has been read, the new one is
    read instead, and the attributes change to those of the new one.

    Attributes:
      path: string, its directory.
      manifest: its Manifest: `label`, `config`, `step`, `shards`, ...
      chain: tuple of `(path, Manifest)`, from the full snapshot to this one.
      fields: dict from the name of a field of a row to `(dtype, count)`, the
        dtype in which it is stored.
      bytes: int, the size of all files of rows, including those of its bases.
    """

    def __init__(self, chain: Chain) -> None:
        """See `open_snapshot`."""
        self._set_chain(chain)

    def _set_chain(self, chain: Chain) -> None:
        self.chain = tuple(chain)
        self.path, self.manifest = chain[-1]
        self.fields = {
            field.name: (field.dtype, field.count)
            for field in self.manifest.fields[1:]
            if field.name not in CLOCK_FIELDS
        }

    @property
    def bytes(self) -> int:
        """The size of all files of rows, including those of the bases."""
        return sum(manifest.bytes for _, manifest in self.chain)

    @property
    def counter_bytes(self) -> int:
        """The size of all files of counters, including those of the bases."""
        return sum(
            file.bytes
            for _, manifest in self.chain
            for file in manifest.of_counters.files
        )

    def chunks(
        self,
        fields: Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Rows]:
        """Reads the rows: each sign once, with its latest values.

        In memory are a chunk and a set of the signs in the deltas and of those
        in one file of the full snapshot, 11 to 22 bytes per sign.

        Args:
          fields: list of strings, the fields to read. None: all.
          progress: optional function that is called with the bytes of each
            chunk that has been read.

        Yields:
          `(signs, {name: values})`, int64 `[n]` and `[n, count]` of the
          field's dtype; float32 for bfloat16, which NumPy does not have. The
          signs are in no particular order.

        Raises:
          DamagedSnapshotError: if the snapshot is damaged; names file and byte.
            Rows yielded before are valid; `verify` checks all beforehand.
          SnapshotConflictError: if another save replaced the snapshot after the
            first rows were yielded.
          ValueError: if a field does not exist.
        """
        wanted = list(self.fields) if fields is None else list(fields)
        for name in wanted:
            if name not in self.fields:
                raise ValueError(
                    "Argument `fields` of Snapshot.chunks must name fields of "
                    f"{self.path}, which are {', '.join(self.fields)}. "
                    f"Received: {name!r}"
                )
        return self._chunks(wanted, progress)

    def _chunks(
        self, wanted: list[str], progress: Progress | None
    ) -> Iterator[Rows]:
        for rows in self._latest_rows(progress or no_progress):
            table = self._caught_up(rows).view(row_dtype(self.manifest))[:, 0]
            yield (
                np.ascontiguousarray(table["sign"]),
                {
                    name: field_values(table[name], self.fields[name][0])
                    for name in wanted
                },
            )

    def _caught_up(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Rows that change while absent as they were when they were saved."""
        manifest = self.manifest
        if not have_clocks(field.name for field in manifest.fields):
            return rows
        try:
            return caught_up(manifest.config, rows, manifest.state)
        except (KeyError, ValueError, TypeError) as error:
            raise not_caught_up(self.path, error) from None

    def _latest_rows(
        self, progress: Progress
    ) -> Iterator[npt.NDArray[np.uint8]]:
        begun = False
        for _ in range(ATTEMPTS):
            try:
                for rows in latest_rows(self.chain, progress):
                    begun = True
                    yield rows
                return
            except DamagedSnapshotError:
                if not self._was_replaced():
                    raise
            if begun:
                break
        raise replaced(self.path)

    def _was_replaced(self) -> bool:
        """Returns whether a save has replaced the snapshot; switches to it."""
        chain = read_chain(self.path)
        if ids(chain) == ids(self.chain):
            return False
        self._set_chain(chain)
        return True

    def verify(self, progress: Progress | None = None) -> None:
        """Reads all files and checks every byte.

        Args:
          progress: see `chunks`.

        Raises:
          DamagedSnapshotError: if a file is damaged; names file and byte.
          SnapshotConflictError: if saves repeatedly replaced the snapshot.
        """
        for damage in self.damage(progress):
            raise damage

    def damage(
        self, progress: Progress | None = None
    ) -> Iterator[DamagedSnapshotError]:
        """Finds all damaged files, where `verify` raises at the first.

        Args:
          progress: see `chunks`.

        Yields:
          A DamagedSnapshotError for each damaged file.
        """
        for _ in range(ATTEMPTS):
            for error in self._damage(progress or no_progress):
                if self._was_replaced():
                    break
                yield error
            else:
                return
        raise replaced(self.path)

    def _damage(self, progress: Progress) -> Iterator[DamagedSnapshotError]:
        for path, manifest in self.chain:
            counters = manifest.of_counters.files
            for read, files in (
                (_verified, manifest.files),
                (read_counters, counters),
            ):
                for file in files:
                    try:
                        for _ in read(path, manifest, file, progress):
                            pass
                    except DamagedSnapshotError as error:
                        yield error


def field_values(
    stored: npt.NDArray[typing.Any], dtype: str
) -> npt.NDArray[typing.Any]:
    """The values of a field of this type, from an array of `row_dtype`."""
    if dtype != "bfloat16":
        return np.ascontiguousarray(stored)
    # The upper half of the bits of a float32.
    return (stored.astype(np.uint32) << 16).view(np.float32)


def row_dtype(manifest: Manifest) -> np.dtype[typing.Any]:
    """The structured dtype of a row, including the sign.

    Fields of bfloat16 are of uint16, their bits.
    """
    return np.dtype(
        {
            "names": [field.name for field in manifest.fields],
            "formats": [
                _dtype(field.dtype)
                if field.name == "sign"
                else (_dtype(field.dtype), (field.count,))
                for field in manifest.fields
            ],
            "offsets": [field.offset for field in manifest.fields],
            "itemsize": manifest.row_bytes,
        }
    )


def _dtype(name: str) -> np.dtype[typing.Any]:
    bits = "uint16" if name == "bfloat16" else name
    return np.dtype(bits).newbyteorder("<")


def not_caught_up(path: str, error: Exception) -> DamagedSnapshotError:
    """The error of a snapshot whose rows cannot be caught up.

    Args:
      path: string, the snapshot's directory.
      error: what `caught_up` raised.
    """
    return DamagedSnapshotError(
        f"{path}/{NAME} is damaged: its rows cannot be caught up as its "
        f"members table.config and state say: {error}"
    )


def signs_of(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The signs, int64 `[n]`, of rows, uint8 `[n, row_bytes]`."""
    return np.ascontiguousarray(rows[:, :8]).view("<i8")[:, 0]


def latest_rows(
    chain: Chain,
    progress: Progress,
    repeated: bool = False,
    part: tuple[int, int] = (0, 1),
) -> Iterator[npt.NDArray[np.uint8]]:
    """The latest rows of a full snapshot and its deltas.

    The latest entries are read first, so that only a set of the signs that are
    already settled must be kept.

    Args:
      chain: list of `(path, Manifest)`, starting with the full snapshot.
      progress: function that is called with the bytes of each chunk.
      repeated: bool, whether a row that occurs twice in the full snapshot is
        yielded twice, in order. This needs no set of the signs in it.
      part: `(shard, shards)`: only the rows of a shard of a table with so many
        are yielded, and files without any of them are not read.

    Yields:
      uint8 `[n, row_bytes]`, the same parts whenever a chain is read.

    Raises:
      DamagedSnapshotError: if a file is damaged, or all snapshots have so many
        shards and a sign is in a file of another one.
    """
    rows = _latest_rows(chain, progress, repeated, part)
    shard, shards = part
    if shards == 1:
        yield from rows
        return
    has_shards = common_shards(chain) == shards
    for some in rows:
        signs = signs_of(some)
        mine = _core.shard_of(signs, shards) == shard
        if mine.all():
            yield some
        elif has_shards:
            raise DamagedSnapshotError(
                f"{chain[-1][0]} or a base of it holds the sign "
                f"{signs[~mine][0]} in a file of shard {shard} of {shards}, to "
                "which it does not belong."
            )
        elif mine.any():
            yield some[mine]


def latest_blocks(
    chain: Chain,
    progress: Progress,
    repeated: bool,
    part: tuple[int, int],
    skipped: int,
) -> Iterator[Iterator[npt.NDArray[np.uint8]]]:
    """The blocks of a `Content` that are what `latest_rows` yields.

    Args:
      chain: see `latest_rows`.
      progress: see `latest_rows`.
      repeated: see `latest_rows`.
      part: see `latest_rows`.
      skipped: int, the number of blocks that are left out, though read.
    """
    read = latest_rows(chain, progress, repeated, part)
    for rows in itertools.islice(read, skipped, None):
        yield iter([rows])


def common_shards(chain: Chain) -> int:
    """The shards of each snapshot of a chain; 1 if their numbers differ."""
    shards = {manifest.shards for _, manifest in chain}
    return shards.pop() if len(shards) == 1 else 1


def _latest_rows(
    chain: Chain, progress: Progress, repeated: bool, part: tuple[int, int]
) -> Iterator[npt.NDArray[np.uint8]]:
    settled = _core.SignSet()
    for path, manifest in chain[:0:-1]:
        for file in files_of(manifest, part):
            yield from _last_rows(path, manifest, file, progress, settled)
    path, manifest = chain[0]
    for file in files_of(manifest, part):
        rows: Iterator[npt.NDArray[np.uint8]]
        if repeated:
            chunks = read_chunks(path, manifest, file, progress)
            rows = (chunk.rows for chunk in chunks)
        else:
            rows = _last_rows(path, manifest, file, progress, _core.SignSet())
        for some in rows:
            if len(settled):
                some = some[~settled.contains(signs_of(some))]
            if len(some):
                yield some


def files_of(manifest: Manifest, part: tuple[int, int]) -> list[RowFile]:
    """The files that may have rows of a part."""
    return [
        file
        for file in manifest.files
        if overlap(file.shard, manifest.shards, *part)
    ]


def _last_rows(
    path: str,
    manifest: Manifest,
    file: RowFile,
    progress: Progress,
    settled: _core.SignSet,
) -> Iterator[npt.NDArray[np.uint8]]:
    """Yields the rows of unsettled signs of a file, and settles its signs."""
    for chunk in read_chunks(path, manifest, file, progress, backwards=True):
        settled.add(chunk.erased_after)
        new = settled.add_from_the_end(signs_of(chunk.rows))
        settled.add(chunk.erased_before)
        if new.all():
            yield chunk.rows
        elif new.any():
            yield chunk.rows[new]


def read_counters(
    path: str, manifest: Manifest, file: RowFile, progress: Progress
) -> Iterator[npt.NDArray[np.uint8]]:
    """Reads and checks a whole file of counters.

    Args:
      path: string, the directory.
      manifest: Manifest.
      file: RowFile, one of those of the manifest's counters.
      progress: function that is called with the bytes of each chunk.

    Yields:
      uint8 `[n, COUNTER_BYTES]`, with ascending keys (`_core.counter_keys`).

    Raises:
      DamagedSnapshotError: if the file is damaged.
    """
    check = manifest.counter_check
    for counters in _verified(path, manifest.of_counters, file, progress):
        try:
            check.check(counters)
        except ValueError as error:
            raise DamagedSnapshotError(f"{path}/{file.name} {error}") from None
        yield counters


def _verified(
    path: str, manifest: Manifest, file: RowFile, progress: Progress
) -> Iterator[npt.NDArray[np.uint8]]:
    """Yields the rows of a file, whose signs must be of the file's shard."""
    row = 0
    for chunk in read_chunks(path, manifest, file, progress):
        for signs in (
            chunk.erased_before,
            signs_of(chunk.rows),
            chunk.erased_after,
        ):
            shards = _core.shard_of(signs, manifest.shards)
            wrong = np.flatnonzero(shards != file.shard)
            if len(wrong):
                raise DamagedSnapshotError(
                    f"{path}/{file.name} holds the sign {signs[wrong[0]]} of "
                    f"shard {shards[wrong[0]]}, but should hold signs of shard "
                    f"{file.shard} alone (after {row} rows)."
                )
        row += len(chunk.rows)
        yield chunk.rows
