# SPDX-License-Identifier: Apache-2.0
"""The manifest of a snapshot: docs/snapshots.md describes it.

Needs no TensorFlow, so that snapshots can be read without it.
"""

import dataclasses
import re
import typing
from collections.abc import Iterable

from tf_ext import _core
from tf_ext.snapshot.clocks import have_clocks
from tf_ext.snapshot.counting import counting_of
from tf_ext.snapshot.sealed_json import (
    FORMAT,
    INT64_MAX,
    Members,
    seal,
    unseal,
)
from tf_ext.snapshot.sealed_json import (
    DamagedSnapshotError as DamagedSnapshotError,
)

NAME = "manifest.json"
# A regular expression: the names of row files.
ROW_FILE = r"rows-[0-9a-f]{16}-[0-9]{5,7}-[0-9]{3,7}\.chunks"
# Of files of counters, one for each shard.
COUNTER_FILE = r"counters-[0-9a-f]{16}-[0-9]{5,7}\.chunks"
# What a process that was killed can have left: files of rows and of counters,
# and these, with the suffix ".part" while they are written.
UNFINISHED = "unfinished.json"
LEFT_FILE = (
    f"{ROW_FILE}|{COUNTER_FILE}|{re.escape(NAME)}\\.part|"
    rf"{re.escape(UNFINISHED)}(\.part)?"
)
# 100,000 shards, with all files that they can have, need a third of it.
MAX_BYTES = 1 << 30

# The format of snapshots whose rows have fields of one of SMALL_DTYPES, and of
# those that have to be caught up when they are read, whatever their type.
# All others are of FORMAT, which earlier versions of tf_ext read, too.
SMALL_ROWS_FORMAT = 2
CHANGING_ROWS_FORMAT = 3
_TYPES = _core.field_types()
SMALL_DTYPES = tuple(name for name in _TYPES if _TYPES[name]["bytes"] < 4)

# The statistics that rows can have.
FIELDS_OF_STATISTICS = ("show", "click")

_DTYPE_BYTES = {"int64": 8} | {name: _TYPES[name]["bytes"] for name in _TYPES}
# What fields may be: the sign, the weights and all others.
_DTYPES = {
    FORMAT: (["int64"], ["float32"], ["float32", "int32"]),
    SMALL_ROWS_FORMAT: (
        ["int64"],
        ["float32", *SMALL_DTYPES],
        [x for x in _TYPES if x == "int32" or _TYPES[x]["of_slots"]],
    ),
}
_DTYPES[CHANGING_ROWS_FORMAT] = _DTYPES[SMALL_ROWS_FORMAT]
_FIRST_NAMES = ("sign", "weights")
_ANYTHING = "(?s:.*)"
MAX_DIM = 65536
"""The greatest number of weights of a row."""
_MAX_FIELDS = 32
_MAX_SHARDS = 1 << 20


class SnapshotConflictError(RuntimeError):
    """Another process wrote to a snapshot's directory at the same time."""


@dataclasses.dataclass(frozen=True)
class RowField:
    """A field of a stored row; `offset` in bytes."""

    name: str
    dtype: str
    count: int
    offset: int


@dataclasses.dataclass(frozen=True)
class Conversion:
    """How a load changed values to those of other types.

    values: int, how many were of another type than the table's.
    rounded: int, how many of them changed.
    saturated: int, how many of those were beyond the largest finite value, or
      infinite, and became it.
    """

    values: int
    rounded: int
    saturated: int


@dataclasses.dataclass(frozen=True)
class RowFile:
    """A file of chunks; tag and CRC as numbers."""

    name: str
    shard: int
    tag: int
    rows: int
    erased: int
    bytes: int
    crc32c: int


@dataclasses.dataclass(frozen=True)
class Counters:
    """Counters of signs without a row; in the files, they are the rows."""

    period: int
    files: tuple[RowFile, ...]

    @property
    def count(self) -> int:
        """Counters in all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a snapshot holds and which files it is made of.

    `base` is None for a full snapshot, and `(path, id)` for a delta.
    `counters` is None if the table does not count, or an earlier version of
    tf_ext has saved it. `conversion` is not part of the file: it is None unless
    the rows were loaded with `convert=True`.
    """

    id: str
    base: tuple[str, str] | None
    sequence: int
    step: int | None
    tf_ext_version: str
    tensorflow_version: str
    table_id: str
    label: str
    config: str
    state: dict[str, str]
    row_bytes: int
    fields: tuple[RowField, ...]
    chunk_bytes: int
    shards: int
    files: tuple[RowFile, ...]
    counters: Counters | None = None
    conversion: Conversion | None = None

    @property
    def format(self) -> int:
        """The version of the format that holds such rows."""
        if have_clocks(field.name for field in self.fields):
            return CHANGING_ROWS_FORMAT
        small = any(field.dtype in SMALL_DTYPES for field in self.fields)
        return SMALL_ROWS_FORMAT if small else FORMAT

    @property
    def kind(self) -> str:
        """The kind of the snapshot: "full" or "delta"."""
        return "full" if self.base is None else "delta"

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def erased(self) -> int:
        """Erased signs in all files."""
        return sum(file.erased for file in self.files)

    @property
    def bytes(self) -> int:
        """Bytes of all files of rows."""
        return sum(file.bytes for file in self.files)

    @property
    def all_files(self) -> tuple[RowFile, ...]:
        """The files of rows and of counters."""
        return self.files + (self.counters.files if self.counters else ())

    @property
    def of_counters(self) -> "Manifest":
        """This manifest as if the counters were the rows; there may be none."""
        fields, row_bytes = row_fields([("count", "int32", 1)])
        return dataclasses.replace(
            self,
            fields=fields,
            row_bytes=row_bytes,
            chunk_bytes=_core.chunk_bytes_for(row_bytes),
            files=self.counters.files if self.counters else (),
            counters=None,
        )

    @property
    def counter_check(self) -> typing.Any:
        """A new check of the contents of one of the files of counters."""
        counting = counting_of(self.config)
        assert counting is not None and self.counters is not None
        return _core.CounterCheck(counting.n, self.counters.period > 0)

    @property
    def described_fields(self) -> str:
        """The fields of a row without the sign, for messages."""
        return ", ".join(
            f"{field.name} {field.dtype}[{field.count}]"
            for field in self.fields[1:]
        )


def row_fields(
    fields: Iterable[tuple[str, str, int]],
) -> tuple[tuple[RowField, ...], int]:
    """Where the fields of a row are stored.

    Args:
      fields: list of `(name, dtype, count)`, without the sign.

    Returns:
      `(fields with the sign first, bytes of a row)`.
    """
    stored, offset = [], 0
    for name, dtype, count in [("sign", "int64", 1), *fields]:
        stored.append(RowField(name, dtype, count, offset))
        offset += _DTYPE_BYTES[dtype] * count
    return tuple(stored), offset


def encode(manifest: Manifest) -> bytes:
    """The bytes of `manifest.json`."""
    members: dict[str, typing.Any] = {
        "format": manifest.format,
        "kind": manifest.kind,
        "id": manifest.id,
        "base": manifest.base
        and dict(zip(("path", "id"), manifest.base, strict=True)),
        "sequence": manifest.sequence,
        "step": manifest.step,
        "tf_ext_version": manifest.tf_ext_version,
        "tensorflow_version": manifest.tensorflow_version,
        "table": {
            "id": manifest.table_id,
            "label": manifest.label,
            "config": manifest.config,
        },
        "state": manifest.state,
        "row": {
            "bytes": manifest.row_bytes,
            "fields": [dataclasses.asdict(field) for field in manifest.fields],
        },
        "chunk_bytes": manifest.chunk_bytes,
        "shards": manifest.shards,
        "rows": manifest.rows,
        "erased": manifest.erased,
        "files": [encode_file(file) for file in manifest.files],
    }
    if manifest.counters is not None:
        files = [encode_file(file) for file in manifest.counters.files]
        for file in files:
            file["counters"] = file.pop("rows")
            del file["erased"]
        members["counters"] = {
            "period": manifest.counters.period,
            "files": files,
        }
    return seal(members)


def encode_file(file: RowFile) -> dict[str, typing.Any]:
    """The members of a file, as `decode_file` takes them."""
    return {
        **dataclasses.asdict(file),
        "tag": f"{file.tag:016x}",
        "crc32c": f"{file.crc32c:08x}",
    }


def decode(data: bytes, where: str) -> Manifest:
    """The manifest in the bytes of `manifest.json`.

    Args:
      data: bytes.
      where: string, the file, for messages.

    Returns:
      A Manifest.

    Raises:
      DamagedSnapshotError: bytes that `encode` did not write; the member
        that is wrong is named.
      ValueError: a manifest of another format.
    """
    members = unseal(data, where, tuple(_DTYPES))
    table = members.object("table")
    base = _decode_base(members)
    row_bytes, fields = _decode_row(
        members.object("row"), _DTYPES[members.integer("format")]
    )
    shards = members.integer("shards", 1, _MAX_SHARDS)
    state = members.object("state")
    manifest = Manifest(
        id=members.hexadecimal("id", 32),
        base=base,
        sequence=members.integer(
            "sequence", *((0, 0) if base is None else (1, INT64_MAX))
        ),
        step=None if members.is_null("step") else members.integer("step"),
        tf_ext_version=members.text("tf_ext_version"),
        tensorflow_version=members.text("tensorflow_version"),
        table_id=table.text("id"),
        label=table.text("label"),
        config=_decode_config(table, fields),
        state={name: state.text(name, _ANYTHING) for name in state.names()},
        row_bytes=row_bytes,
        fields=fields,
        chunk_bytes=members.integer(
            "chunk_bytes",
            _core.CHUNK_HEADER_BYTES + row_bytes,
            _core.chunk_bytes_for(row_bytes),
        ),
        shards=shards,
        files=tuple(
            decode_file(file, row_bytes, shards, base is None)
            for file in members.objects("files")
        ),
        counters=_decode_counters(members, table, shards),
    )
    if members.integer("format") != manifest.format:
        have = "4 bytes or 8" if manifest.format == FORMAT else "these types"
        members.refuse(
            "format", f"{manifest.format}, as all fields have {have}"
        )
    _check_files(members, manifest)
    return manifest


def _decode_base(members: Members) -> tuple[str, str] | None:
    kind = members.text("kind", "full|delta", "'full' or 'delta'")
    if members.is_null("base"):
        if kind != "full":
            members.refuse("kind", "'full' where there is no base")
        return None
    base = members.object("base")
    if kind != "delta":
        members.refuse("kind", "'delta' where there is a base")
    # Zero ends names, and surrogates are no characters.
    path = base.text("path", r"[^\0\ud800-\udfff]+", "the path of a directory")
    return path, base.hexadecimal("id", 32)


def _decode_row(
    row: Members, dtypes: tuple[list[str], ...]
) -> tuple[int, tuple[RowField, ...]]:
    """`(bytes of a row, its RowFields)`; `dtypes`: see `_DTYPES`."""
    found = row.objects("fields")
    if not 2 <= len(found) <= _MAX_FIELDS:
        row.refuse("fields", f"a list of 2 to {_MAX_FIELDS} fields")
    wanted: list[tuple[str, str, int]] = []
    for index, field in enumerate(found):
        if index < len(_FIRST_NAMES):
            name = _FIRST_NAMES[index]
            field.text("name", name, repr(name))
        else:
            name = field.text("name", "[a-z0-9_]{1,64}", "the name of a field")
        allowed = dtypes[min(index, len(dtypes) - 1)]
        dtype = field.text(
            "dtype", "|".join(allowed), " or ".join(map(repr, allowed))
        )
        if name in [before for before, _, _ in wanted]:
            field.refuse("name", "a name that no other field has")
        count = field.integer("count", 1, MAX_DIM if index else 1)
        wanted.append((name, dtype, count))
    fields, row_bytes = row_fields(wanted[1:])
    for field, right in zip(found, fields, strict=True):
        field.integer("offset", right.offset, right.offset)
    row.integer("bytes", row_bytes, row_bytes)
    return row_bytes, fields


def _decode_config(table: Members, fields: tuple[RowField, ...]) -> str:
    config = table.text("config", _ANYTHING, "a text")
    lines = config.splitlines()
    if not all(line.isprintable() and "=" in line for line in lines):
        table.refuse("config", "lines of the form key=value")
    entries = dict(line.split("=", 1) for line in lines)
    weights = fields[1]
    entries.setdefault("dtype", "float32")
    for key, value in ("dim", str(weights.count)), ("dtype", weights.dtype):
        if entries.get(key) != value:
            line = f"one with the line {key}={value}, as of weights"
            table.refuse("config", line)
    return config


def decode_file(
    file: Members,
    row_bytes: int,
    shards: int,
    is_full: bool,
    names: str = ROW_FILE,
    least: int = _core.CHUNK_HEADER_BYTES,
) -> RowFile:
    """A file whose members `encode_file` returned, and that are checked.

    Args:
      file: Members.
      row_bytes: int, the bytes of a row.
      shards: int, the shards of the snapshot.
      is_full: bool, whether it has no erased signs.
      names: string, a regular expression for names of such files.
      least: int, the least number of bytes.
    """
    size = file.integer("bytes", least, INT64_MAX)
    content = max(0, size - _core.CHUNK_HEADER_BYTES)
    rows = file.integer("rows", 0, content // row_bytes)
    left = (content - rows * row_bytes) // _DTYPE_BYTES["int64"]
    return RowFile(
        name=file.text("name", names, "the name of a file *.chunks"),
        shard=file.integer("shard", 0, shards - 1),
        tag=file.number("tag", 16),
        rows=rows,
        erased=file.integer("erased", 0, 0 if is_full else left),
        bytes=size,
        crc32c=file.number("crc32c", 8),
    )


def _decode_counters(
    members: Members, table: Members, shards: int
) -> Counters | None:
    if "counters" not in members.names():
        return None
    try:
        counting = counting_of(table.text("config", _ANYTHING))
    except ValueError as error:
        table.refuse("config", f"that of a table ({error})")
    if counting is None:
        table.refuse("config", "one of admission=count, as there are counters")
    counters = members.object("counters")
    most = INT64_MAX if counting.n > 1 else 0
    files = [
        _decode_counter_file(file, shards, most)
        for file in counters.objects("files")
    ]
    if sorted(file.shard for file in files) != list(range(shards)):
        counters.refuse(
            "files", f"a list with a file of each of {shards} shards"
        )
    if len({file.name for file in files}) != shards:
        counters.refuse("files", "a list of files with different names")
    return Counters(
        counters.integer("period", 0, counting.last_period), tuple(files)
    )


def _decode_counter_file(file: Members, shards: int, most: int) -> RowFile:
    size = file.integer("bytes", _core.CHUNK_HEADER_BYTES, INT64_MAX)
    fitting = (size - _core.CHUNK_HEADER_BYTES) // _core.COUNTER_BYTES
    return RowFile(
        name=file.text("name", COUNTER_FILE, "a name counters-...-....chunks"),
        shard=file.integer("shard", 0, shards - 1),
        tag=file.number("tag", 16),
        rows=file.integer("counters", 0, min(fitting, most)),
        erased=0,
        bytes=size,
        crc32c=file.number("crc32c", 8),
    )


def _check_files(members: Members, manifest: Manifest) -> None:
    files = manifest.files
    if len({file.name for file in files}) != len(files):
        members.refuse("files", "a list of files with different names")
    with_file = {file.shard for file in files}
    if len(with_file) != manifest.shards:
        members.refuse(
            "files",
            f"a list with at least one file of each of the {manifest.shards} "
            f"shards (it has some of {len(with_file)})",
        )
    members.integer("rows", manifest.rows, manifest.rows)
    members.integer("erased", manifest.erased, manifest.erased)
