# SPDX-License-Identifier: Apache-2.0
"""Snapshots of some MiB, and ways to rewrite them."""

import contextlib
import dataclasses
import hashlib
import json
import os
import unittest.mock

import numpy as np

from tf_ext import _core
from tf_ext.snapshot import (
    compact,
    merging,
    open_snapshot,
    reshard,
    transform,
    transforming,
    writer,
)
from tf_ext.snapshot.files import read_chunks
from tf_ext.snapshot.manifest import encode
from tf_ext.snapshot.reader import signs_of

DIM = 250
ROWS = 8000


def save(root):
    """Saves what is rewritten, each of 2 shards if nothing else is said.

    - plain, and other, which has some of its rows;
    - repeated, as plain, but some signs are there twice;
    - 2, a delta of 1 of 0, with counters, and seen, which can be merged into
      it;
    - mixed, a delta with 3 shards.

    Returns:
      A dict with the arguments of tables that can load 2.
    """
    # Not needed by processes that only rewrite.
    import snapshot_util as util
    from transform_util import table as table_of

    import tf_ext

    def path(name):
        return os.path.join(root, name)

    for name, signs in (
        ("plain", range(ROWS)),
        ("other", range(ROWS // 2, ROWS * 5 // 4)),
    ):
        table = table_of(DIM)
        util.push(table, signs)
        table.save(path(name))
    _repeat(path("plain"), path("repeated"))
    counting = {"statistics": ["show"], "admission": tf_ext.admission.Count(2)}
    table = table_of(DIM, **counting)
    for seed in range(2):
        util.push(table, range(3000), seed)
    util.push(table, range(10_000, 10_300))
    table.save(path("0"), incremental=True)
    for name in ("1", "2"):
        begin = 900 * int(name)
        util.push(table, range(begin, begin + 1500), int(name))
        table.erase(np.arange(begin, begin + 50))
        table.save(path(name), base=path(str(int(name) - 1)))
    seen = table_of(DIM, **counting)
    for seed in range(2):
        util.push(seen, range(2000, 5000), seed)
    seen.save(path("seen"))
    mixed = util.table(
        3, dim=DIM, initializer="normal", seed=7, optimizer=table.optimizer
    )
    mixed.load(path("plain"), incremental=True)
    util.push(mixed, range(ROWS - 1000, ROWS + 1000), 5)
    mixed.save(path("mixed"), base=path("plain"))
    return counting


def _repeat(path, out):
    """Writes a snapshot in which some rows are followed by others."""
    manifest = open_snapshot(path).manifest
    os.mkdir(out)
    files = []
    for file in manifest.files:
        encoder = _core.RowFileEncoder(manifest.row_bytes, file.tag)
        with open(os.path.join(out, file.name), "wb") as written:
            for chunk in read_chunks(path, manifest, file, lambda _: None):
                written.write(encoder.add_rows(chunk.rows))
                again = chunk.rows[::3].copy()
                again[:, 8:] ^= 1
                written.write(encoder.add_rows(again))
            written.write(encoder.finish())
        files.append(
            dataclasses.replace(
                file,
                rows=encoder.rows,
                bytes=encoder.bytes,
                crc32c=encoder.crc32c,
            )
        )
    manifest = dataclasses.replace(manifest, id="1" * 32, files=tuple(files))
    with open(os.path.join(out, "manifest.json"), "wb") as written:
        written.write(encode(manifest))


_MERGED = {"merge": ["seen"], "drop": ["sign < 700", "norm == 0"]}
# The snapshots that are rewritten, and with which arguments, by name.
CASES = {
    "dim": ("plain", {"dim": DIM + 2, "dtype": "bfloat16"}),
    "repeated": ("repeated", {"optimizer": "adam", "drop": "sign < 900"}),
    "chain": ("2", {"dim": DIM + 1, "keep": "norm > 0", "drop": "sign<100"}),
    "mixed": ("mixed", {"projection": np.eye(DIM, 99), "dtype": "float16"}),
    "merge_priority": ("2", _MERGED),
    "merge_mean": ("2", _MERGED | {"by": "mean", "slot_dtype": "bfloat16"}),
    "merge_show": ("2", _MERGED | {"by": "show", "dim": 9}),
    "reshard": ("2", {"shards": 5}),
    "reshard_plain": ("repeated", {"shards": 1}),
    "compact": ("2", {}),
    "compact_mixed": ("mixed", {}),
}


def run_of(name, root, out):
    """A function of `progress` that makes a snapshot in one of these ways.

    Args:
      name: string, one of CASES.
      root: path-like, where `save` has saved the sources.
      out: path-like, where the snapshot is made.
    """
    source, arguments = CASES[name]
    command = {"reshard": reshard, "compact": compact}.get(
        name.partition("_")[0], transform
    )
    arguments = dict(arguments)
    if "merge" in arguments:
        arguments["merge"] = [os.path.join(root, x) for x in arguments["merge"]]

    def run(progress=None):
        with patched():
            return command(
                os.path.join(root, source),
                out,
                progress=progress,
                **arguments,
            )

    return run


@contextlib.contextmanager
def patched():
    """Several passes and parts, and a record after each block."""
    with (
        unittest.mock.patch.multiple(
            writer,
            _SHARDS_AT_ONCE=2,
            _BYTES_PER_RECORD=0,
            _CHUNKS_PER_RECORD=0,
        ),
        unittest.mock.patch.object(merging, "_BYTES_AT_ONCE", 7 << 20),
    ):
        yield


@contextlib.contextmanager
def counted():
    """Yields a list of how many rows are made, of the files that are open."""
    add, counts = writer._Work._add, []

    def counting(work, some, files):
        shards = _core.shard_of(signs_of(some), work._shards)
        mine = np.isin(shards, [file.shard for file in files])
        counts.append(int(mine.sum()))
        add(work, some, files)

    with unittest.mock.patch.object(writer._Work, "_add", counting):
        yield counts


def bytes_to_read(name, root):
    """The bytes that progress is called with, in all."""
    source, arguments = CASES[name]
    paths = [os.path.join(root, source)]
    paths += [os.path.join(root, x) for x in arguments.get("merge", [])]
    with patched():
        if name.startswith(("reshard", "compact")):
            from tf_ext.snapshot import cli

            snapshot = open_snapshot(paths[0])
            shards = arguments.get("shards", snapshot.manifest.shards)
            return cli._bytes_to_rewrite(snapshot, shards)
        return transforming.bytes_to_read(paths)


def recorded_rows(path):
    """How many rows a killed process has recorded as written; 0: none."""
    try:
        with open(os.path.join(path, "unfinished.json")) as file:
            record = json.load(file)
    except FileNotFoundError:
        return 0
    return sum(file["rows"] for file in record["files"] + record["begun"])


def contents(path):
    """All of a snapshot but the names and layout of its files.

    Returns:
      A dict; rows in the order in which they are in a shard, as a digest.
    """
    snapshot = open_snapshot(path)
    snapshot.verify()
    path, manifest = snapshot.path, snapshot.manifest
    found = dataclasses.asdict(
        dataclasses.replace(
            manifest, id="", files=(), counters=None, conversion=None
        )
    )
    for of in (manifest, manifest.of_counters):
        for file in of.files:
            digest = hashlib.sha256()
            for chunk in read_chunks(path, of, file, lambda _: None):
                digest.update(chunk.rows.tobytes())
            found[of.row_bytes, file.shard] = (file.rows, digest.hexdigest())
    return found
