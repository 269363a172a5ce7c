# SPDX-License-Identifier: Apache-2.0
"""Rewrites snapshots: merged, or with another number of shards."""

import functools
import os

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext._checks import is_int, refuse
from tf_ext.snapshot.files import (
    Chain,
    Progress,
    ids,
    overlap,
    read_again_if_replaced,
    read_chain,
)
from tf_ext.snapshot.manifest import Manifest
from tf_ext.snapshot.reader import (
    common_shards,
    latest_blocks,
    read_counters,
    signs_of,
)
from tf_ext.snapshot.storage import normalised
from tf_ext.snapshot.writer import Content, write

_MAX_SHARDS = 100_000


def reshard(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    shards: int,
    progress: Progress | None = None,
) -> Manifest:
    """Rewrites a snapshot with another number of shards.

    Any snapshot can be loaded into any number of shards; if the numbers are the
    same, each shard reads only its own files. A delta is merged with its bases.
    In memory are a chunk for each of up to 128 shards, and the signs of the
    deltas; then the counters of one shard, about 40 bytes each. If the process
    is killed, the same call goes on, as that of `transform`.

    Args:
      path: path-like, the snapshot.
      out: path-like, a directory that is empty or does not exist, or has only
        what a process left that was killed.
      shards: int, from 1 to 100,000.
      progress: optional function that is called with the bytes of each chunk
        that has been read, and once with those that need not be read again.

    Returns:
      The Manifest of the new snapshot, which is full.

    Raises:
      DamagedSnapshotError: if the snapshot is damaged; names file and byte.
      SnapshotConflictError: if another process wrote to `out` at the same time,
        or repeatedly replaced the snapshot.
      OSError: if the file system fails, for example because the disk is full.
        No files are left in `out`.
      ValueError: if an argument is not as above.
    """
    if not is_int(shards) or not 1 <= shards <= _MAX_SHARDS:
        refuse("reshard", "shards", f"an int from 1 to {_MAX_SHARDS}", shards)
    return _rewrite(path, out, shards, progress)


def compact(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    progress: Progress | None = None,
) -> Manifest:
    """Merges a delta and its bases into a full snapshot.

    If the process is killed, the same call goes on, as that of `transform`.

    Args:
      path: path-like, the last delta.
      out: path-like, a directory that is empty or does not exist, or has only
        what a process left that was killed.
      progress: see `reshard`.

    Returns:
      The Manifest of the new snapshot, which has the shards of the last delta.

    Raises:
      The errors of `reshard`.
    """
    return _rewrite(path, out, None, progress)


def _rewrite(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    shards: int | None,
    progress: Progress | None,
) -> Manifest:
    """Rewrites a snapshot; `shards` of None keeps its number of shards."""
    path, out = normalised(path), normalised(out)

    def rewrite(chain: Chain) -> Manifest:
        where, manifest = chain[-1]
        content = Content(
            where,
            manifest,
            common_shards(chain),
            lambda part, progress, skipped: latest_blocks(
                chain, progress, True, part, skipped
            ),
            functools.partial(counters_of_shard, where, manifest),
            ids(chain),
        )
        return write(content, out, shards or manifest.shards, progress)

    return read_again_if_replaced(path, lambda: read_chain(path), rewrite)


def counter_bytes(manifest: Manifest, shards: int) -> int:
    """The bytes that are read for the counters of so many shards."""
    total = 0
    for file in manifest.of_counters.files:
        first = file.shard * shards // manifest.shards
        end = -(-(file.shard + 1) * shards // manifest.shards)
        total += (end - first) * file.bytes
    return total


def counters_of_shard(
    path: str,
    manifest: Manifest,
    shard: int,
    shards: int,
    progress: Progress,
) -> npt.NDArray[np.uint8]:
    """The counters of a snapshot that belong to a shard of another one.

    Args:
      path: string, the snapshot's directory.
      manifest: its Manifest.
      shard: int, of the other one.
      shards: int, how many the other one has.
      progress: see `reshard`.

    Returns:
      uint8 `[n, COUNTER_BYTES]`.
    """
    parts = [np.zeros([0, _core.COUNTER_BYTES], np.uint8)]
    for file in manifest.of_counters.files:
        if not overlap(file.shard, manifest.shards, shard, shards):
            continue
        for counters in read_counters(path, manifest, file, progress):
            owners = _core.shard_of(signs_of(counters), shards)
            parts.append(counters[owners == shard])
    return np.concatenate(parts)
