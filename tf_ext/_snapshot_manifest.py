"""The manifest of a snapshot: docs/snapshots.md describes it.

Needs no TensorFlow, so that snapshots can be read without it.
"""

import dataclasses
import json

from tf_ext import _core

FORMAT = 1
NAME = "manifest.json"

_ENDING = ',\n  "crc32c": "{:08x}"\n}}\n'
_ENDING_BYTES = len(_ENDING.format(0))
_DTYPE_BYTES = {"int64": 8, "float32": 4, "int32": 4}


class DamagedSnapshotError(ValueError):
    """A snapshot that cannot be read: which file, where and what is wrong."""


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
class Manifest:
    """What a snapshot holds and which files it is made of.

    `base` is None for a full snapshot, and `(path, id)` for a delta.
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

    @property
    def kind(self):
        """Of the snapshot: "full" or "delta"."""
        return "full" if self.base is None else "delta"

    @property
    def rows(self):
        """Rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def erased(self):
        """Erased signs in all files."""
        return sum(file.erased for file in self.files)

    @property
    def bytes(self):
        """Bytes of all files of rows."""
        return sum(file.bytes for file in self.files)


def row_fields(fields):
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


def encode(manifest):
    """The bytes of `manifest.json`."""
    files = [
        {
            **dataclasses.asdict(file),
            "tag": f"{file.tag:016x}",
            "crc32c": f"{file.crc32c:08x}",
        }
        for file in manifest.files
    ]
    members = {
        "format": FORMAT,
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
        "files": files,
    }
    return seal(members)


def seal(members):
    """The bytes of a JSON file that ends with its own CRC32C.

    Args:
      members: dict, not empty.
    """
    text = json.dumps(members, indent=2, ensure_ascii=False)
    body = text.removesuffix("\n}").encode()
    return body + _ENDING.format(_core.crc32c(body)).encode()


def unseal(data, where):
    """The members that `seal` was given.

    Args:
      data: bytes.
      where: string, the file, for messages.

    Returns:
      dict.

    Raises:
      DamagedSnapshotError: other bytes than `seal` made.
      ValueError: members of another format than FORMAT.
    """
    body, ending = data[:-_ENDING_BYTES], data[-_ENDING_BYTES:]
    crc = _core.crc32c(body)
    if ending != _ENDING.format(crc).encode():
        raise DamagedSnapshotError(
            f"{where} is damaged: it should end with its CRC32C {crc:08x}, "
            f"but the last of its {len(data)} bytes, from byte {len(body)} "
            f"on, are {ending!r}."
        )
    members = json.loads(body + b"}")
    if members["format"] != FORMAT:
        raise ValueError(
            f"{where} is of format {members['format']}; this version of "
            f"tf_ext reads format {FORMAT}. It was written by tf_ext "
            f"{members['tf_ext_version']}."
        )
    return members


def decode(data, where):
    """The manifest in the bytes of `manifest.json`.

    Args:
      data: bytes.
      where: string, the file, for messages.

    Returns:
      A Manifest.

    Raises:
      DamagedSnapshotError: bytes that `encode` did not write.
      ValueError: a manifest of another format.
    """
    members = unseal(data, where)
    table, row, base = members["table"], members["row"], members["base"]
    return Manifest(
        id=members["id"],
        base=base and (base["path"], base["id"]),
        sequence=members["sequence"],
        step=members["step"],
        tf_ext_version=members["tf_ext_version"],
        tensorflow_version=members["tensorflow_version"],
        table_id=table["id"],
        label=table["label"],
        config=table["config"],
        state=members["state"],
        row_bytes=row["bytes"],
        fields=tuple(_known(RowField, field) for field in row["fields"]),
        chunk_bytes=members["chunk_bytes"],
        shards=members["shards"],
        files=tuple(
            _known(
                RowFile,
                {
                    **file,
                    "tag": int(file["tag"], 16),
                    "crc32c": int(file["crc32c"], 16),
                },
            )
            for file in members["files"]
        ),
    )


def _known(kind, members):
    """A dataclass of the members that this version knows."""
    names = [field.name for field in dataclasses.fields(kind)]
    return kind(**{name: members[name] for name in names})
