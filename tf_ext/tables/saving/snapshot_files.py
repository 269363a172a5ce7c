# SPDX-License-Identifier: Apache-2.0
"""Passes the files of a snapshot to the shards of a table.

Each shard reads the files that it needs, with an op on its own device.
"""

import contextlib
import posixpath
import re
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext.snapshot.counting import counting_of
from tf_ext.snapshot.files import Chain, overlap
from tf_ext.snapshot.manifest import (
    Conversion,
    DamagedSnapshotError,
    Manifest,
)
from tf_ext.tables import row_counters
from tf_ext.tables.rows import TableRows
from tf_ext.tables.shard import SnapshotFiles, TableShard


def restore_rows(
    table_rows: TableRows,
    chain: Chain,
    names: Collection[str],
    action: str = "load",
    convert: bool = False,
) -> Conversion:
    """Applies snapshots one after another, each in all shards in parallel.

    Args:
      table_rows: TableRows.
      chain: list of `(path, Manifest)`.
      names: the fields to set.
      action: string, what is done with each chunk: see `sparse_table_restore`.
      convert: bool, whether values of other types are converted.

    Returns:
      The Conversion, of the shards that this process accesses.
    """
    shards = table_rows.num_shards
    total = np.zeros([3], np.int64)
    for path, manifest in chain:

        def restore(
            index: int,
            shard: TableShard,
            path: str = path,
            manifest: Manifest = manifest,
        ) -> npt.NDArray[np.int64]:
            restored = shard.restore(
                _files_of(path, manifest, index, shards, action == "verify"),
                manifest,
                [f for f in manifest.fields[1:] if f.name in names],
                action=action,
                convert=convert,
            )
            return restored.converted.numpy()

        with _naming_damage(path):
            total += np.sum(table_rows.on_each(restore), axis=0)
    return Conversion(*total.tolist())


def restore_counters(
    table_rows: TableRows,
    path: str,
    manifest: Manifest,
    weights_only: bool,
    load: bool,
) -> None:
    """Replaces the counters of a table by those of a snapshot.

    They are removed if the snapshot has none that the table can take.

    Args:
      table_rows: TableRows with `counting`.
      path: string, the snapshot's directory.
      manifest: its Manifest.
      weights_only: bool, whether only the weights of rows are loaded.
      load: bool; if False, the files are only checked.
    """
    counting, saved = table_rows.counting, counting_of(manifest.config)
    counters = None if weights_only else manifest.counters
    if counting is None or saved is None or not counting.can_take(saved):
        counters = None
    period = 0 if counters is None else counters.period
    n = 0 if saved is None else saved.n
    shards = table_rows.num_shards

    def restore(index: int, shard: TableShard) -> None:
        if load:
            row_counters.clear(shard, period)
        if counters is not None:
            files = _files_of(
                path, manifest.of_counters, index, shards, not load
            )
            shard.restore_counters(files, manifest, n, period, load)

    with _naming_damage(path):
        table_rows.on_each(restore)


@contextlib.contextmanager
def _naming_damage(path: str) -> Iterator[None]:
    """Raises DamagedSnapshotErrors for the ops' errors about files."""
    try:
        yield
    except tf.errors.DataLossError as error:
        raise DamagedSnapshotError(own_words(error)) from None
    except tf.errors.NotFoundError as error:
        raise DamagedSnapshotError(
            f"A file of the snapshot in {path} is missing: {own_words(error)}"
        ) from None


def _files_of(
    path: str, manifest: Manifest, index: int, shards: int, divided: bool
) -> SnapshotFiles:
    """The files that a shard of a table reads.

    Args:
      path: string, the snapshot's directory.
      manifest: Manifest.
      index: int, the shard.
      shards: int, the number of the table's shards.
      divided: bool, whether the shards divide the files among them, instead of
        each reading those that can have its signs.
    """
    files = [
        file
        for number, file in enumerate(manifest.files)
        if (
            number % shards == index
            if divided
            else overlap(file.shard, manifest.shards, index, shards)
        )
    ]
    numbers = [(f.tag, f.rows, f.erased, f.bytes, f.crc32c) for f in files]
    return SnapshotFiles(
        [posixpath.join(path, file.name) for file in files],
        np.array(numbers, np.uint64).reshape([-1, 5]).astype(np.int64),
        [file.shard for file in files],
        index,
        shards,
    )


def own_words(error: tf.errors.OpError) -> str:
    """An op's error message without what TensorFlow adds to it."""
    return re.sub(r"^\{\{.*?\}\} | \[Op:[^]]*\]$", "", error.message)
