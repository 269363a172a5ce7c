# SPDX-License-Identifier: Apache-2.0
"""How far the writing of a snapshot has come, for a process that goes on.

The record is a file next to those that are written. It is replaced from time to
time, when everything that it names is durable.
"""

import dataclasses
from collections.abc import Sequence

from tf_ext import _core
from tf_ext._version import __version__
from tf_ext.snapshot import manifest as manifests
from tf_ext.snapshot.sealed_json import (
    FORMAT,
    INT64_MAX,
    Members,
    seal,
    unseal,
)
from tf_ext.snapshot.storage import Storage, join

_Files = tuple[manifests.RowFile, ...]


@dataclasses.dataclass(frozen=True)
class Record:
    """How far the work has come.

    Attributes:
      work: string, identifies what is written and what it is made of.
      passes: int, the passes over the rows that are complete.
      blocks: int, the blocks of the next pass that have been written.
      bytes_read: int, by the passes that are complete.
      rounded: tuple of three ints, what the Conversion counts.
      files: tuple of RowFile, those of complete passes.
      begun: tuple of RowFile, those of the next pass: whole chunks, none if
        there were no rows; more bytes may follow.
      counters: tuple of RowFile, those that are complete.
    """

    work: str
    passes: int = 0
    blocks: int = 0
    bytes_read: int = 0
    rounded: tuple[int, ...] = (0, 0, 0)
    files: _Files = ()
    begun: _Files = ()
    counters: _Files = ()

    @property
    def names(self) -> set[str]:
        """The names of all files."""
        files = self.files + self.begun + self.counters
        return {file.name for file in files}


def write(storage: Storage, out: str, record: Record) -> None:
    """Replaces the record of a directory, durably."""
    members = {
        "format": FORMAT,
        "tf_ext_version": __version__,
        **dataclasses.asdict(record),
    }
    for name in ("files", "begun", "counters"):
        members[name] = list(map(manifests.encode_file, getattr(record, name)))
    storage.commit(join(out, manifests.UNFINISHED), seal(members))


def read(
    storage: Storage,
    out: str,
    work: str,
    row_bytes: int,
    passes: Sequence[Sequence[int]],
    counters: int,
) -> Record | None:
    """Reads the record of a directory.

    Args:
      storage: that of the directory.
      out: string, the directory.
      work: string, that of the work that goes on.
      row_bytes: int, the bytes of a row.
      passes: list of lists of ints, the shards that each pass writes.
      counters: int, of how many shards there are counters.

    Returns:
      The Record; None if there is none of this work that is whole, with all of
      its files.
    """
    name = join(out, manifests.UNFINISHED)
    try:
        with storage.reader(name) as (size, read):
            if size > manifests.MAX_BYTES:
                return None
            data = read(0, size)
        record = _decode(unseal(data, name), row_bytes, sum(map(len, passes)))
        if record.work != work or not _fits(record, passes, counters):
            return None
        for file in (*record.files, *record.begun, *record.counters):
            with storage.reader(join(out, file.name)) as (size, _):
                more = size - file.bytes
            if more < 0 or (more and file not in record.begun):
                return None
    except (OSError, ValueError):
        return None
    return record


def _decode(members: Members, row_bytes: int, shards: int) -> Record:
    def files(
        name: str,
        row_bytes: int,
        names: str = manifests.ROW_FILE,
        least: int = _core.CHUNK_HEADER_BYTES,
    ) -> _Files:
        return tuple(
            manifests.decode_file(file, row_bytes, shards, True, names, least)
            for file in members.objects(name)
        )

    rounded = members.list("rounded")
    if len(rounded) != 3 or not all(
        type(count) is int and 0 <= count <= INT64_MAX for count in rounded
    ):
        members.refuse("rounded", "a list of three counts")
    return Record(
        members.text("work"),
        members.integer("passes", 0, INT64_MAX),
        members.integer("blocks", 0, INT64_MAX),
        members.integer("bytes_read", 0, INT64_MAX),
        tuple(rounded),
        files("files", row_bytes),
        files("begun", row_bytes, least=0),
        files("counters", _core.COUNTER_BYTES, manifests.COUNTER_FILE),
    )


def _fits(
    record: Record, passes: Sequence[Sequence[int]], counters: int
) -> bool:
    """Whether a record has the files that it should have."""
    if record.passes > len(passes):
        return False
    complete = [s for each in passes[: record.passes] for s in each]
    begun: list[int] = []
    if record.blocks > 0:
        if record.passes == len(passes):
            return False
        begun = list(passes[record.passes])
    counted = len(record.counters)
    return (
        [file.shard for file in record.files] == complete
        and [file.shard for file in record.begun] == begun
        and [file.shard for file in record.counters] == list(range(counted))
        and counted <= (counters if record.passes == len(passes) else 0)
    )
