# SPDX-License-Identifier: Apache-2.0
"""Files of snapshots written by docs/snapshots.md, not by the package."""

import hashlib
import os
import struct

import numpy as np

from tf_ext import _core
from tf_ext.snapshot import manifest as manifests

CHUNK_BYTES = 4096
FIELDS, ROW_BYTES = manifests.row_fields([("weights", "float32", 1)])


def chunk(index, tag, before=(), rows=(), after=(), last=True):
    """The bytes of a chunk; `rows` are pairs of a sign and a weight."""
    counts = (len(before), len(rows), len(after))
    body = struct.pack("<4sQIIII", b"TFXC", tag, index, *counts)
    body += np.array(before, "<i8").tobytes()
    body += b"".join(struct.pack("<qf", *row) for row in rows)
    body += np.array(after, "<i8").tobytes()
    data = struct.pack("<I", _core.crc32c(body)) + body
    return data if last else data.ljust(CHUNK_BYTES, b"\0")


def id_of(path):
    """The id of the snapshot that `write` makes in a directory."""
    return hashlib.md5(os.path.basename(path).encode()).hexdigest()


def write(path, chunks, base=None, shards=1, **changes):
    """Writes a snapshot with one file in a directory.

    Args:
      path: string, the directory.
      chunks: list of dicts, what `chunk` takes.
      base: None, or string, the directory of the base.
      shards: int; the file is shard 0's, and those of others are empty.
      **changes: of what the manifest says of the file.

    Returns:
      The Manifest.
    """
    os.makedirs(path)
    tag = 2**64 - 7
    data = b"".join(
        chunk(index, tag, **each, last=index == len(chunks) - 1)
        for index, each in enumerate(chunks)
    )
    file = {
        "name": "rows-0123456789abcdef-00000-000.chunks",
        "shard": 0,
        "tag": tag,
        "rows": sum(len(each.get("rows", ())) for each in chunks),
        "erased": sum(
            len(each.get("before", ())) + len(each.get("after", ()))
            for each in chunks
        ),
        "bytes": len(data),
        "crc32c": _core.crc32c(data),
        **changes,
    }
    files = [file]
    contents = [data]
    for shard in range(1, shards):
        empty = chunk(0, tag)
        contents.append(empty)
        name = f"rows-0123456789abcdef-{shard:05d}-000.chunks"
        crc = _core.crc32c(empty)
        files.append(
            {**file, "name": name, "shard": shard, "rows": 0, "erased": 0}
            | {"bytes": len(empty), "crc32c": crc}
        )
    for each, content in zip(files, contents, strict=True):
        with open(os.path.join(path, each["name"]), "wb") as opened:
            opened.write(content)
    manifest = manifests.Manifest(
        id=id_of(path),
        base=base and (os.path.relpath(base, path), id_of(base)),
        sequence=0 if base is None else 1,
        step=None,
        tf_ext_version="0.1.0",
        tensorflow_version="2.21.0",
        table_id="deep/1/0",
        label="deep",
        config="dim=1\ndtype=float32\ninitializer=zeros\nname=deep\n"
        "optimizer=sgd\n",
        state={},
        row_bytes=ROW_BYTES,
        fields=FIELDS,
        chunk_bytes=CHUNK_BYTES,
        shards=shards,
        files=tuple(manifests.RowFile(**each) for each in files),
    )
    with open(os.path.join(path, manifests.NAME), "wb") as opened:
        opened.write(manifests.encode(manifest))
    return manifest
