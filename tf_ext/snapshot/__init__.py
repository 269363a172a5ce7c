# SPDX-License-Identifier: Apache-2.0
"""Reads and rewrites snapshots of tables without TensorFlow.

`SparseTable.save` writes snapshots; docs/snapshots.md describes the format.
This package needs only NumPy and reads one chunk at a time. It also has a
command line: `python -m tf_ext.snapshot --help`.

Example:
  >>> import tempfile
  >>> table = tf_ext.SparseTable("user", dim=2)
  >>> _ = table.pull([7], training=True)
  >>> with tempfile.TemporaryDirectory() as directory:
  ...     _ = table.save(directory)
  ...     snapshot = tf_ext.snapshot.open_snapshot(directory)
  ...     snapshot.verify()
  ...     for signs, fields in snapshot.chunks():
  ...         print(signs, fields["weights"].shape)
  [7] (1, 2)
"""

from tf_ext.snapshot.manifest import (
    DamagedSnapshotError,
    Manifest,
    SnapshotConflictError,
)
from tf_ext.snapshot.parquet import to_parquet
from tf_ext.snapshot.reader import Snapshot, open_snapshot
from tf_ext.snapshot.resharding import compact, reshard
from tf_ext.snapshot.transforming import transform

__all__ = [
    "DamagedSnapshotError",
    "Manifest",
    "Snapshot",
    "SnapshotConflictError",
    "compact",
    "open_snapshot",
    "reshard",
    "to_parquet",
    "transform",
]


def __dir__() -> list[str]:
    return sorted(__all__)
