# SPDX-License-Identifier: Apache-2.0
"""Exports models with rows from snapshots of their tables."""

import os
import typing
from collections.abc import Mapping

from tf_ext._keras import keras
from tf_ext.serving.arguments import Arguments
from tf_ext.serving.row_sources import of_snapshot
from tf_ext.serving.writing import write
from tf_ext.snapshot.compatibility import check_fields
from tf_ext.snapshot.files import Progress
from tf_ext.snapshot.reader import Snapshot, open_snapshot
from tf_ext.tables.config import parse_config
from tf_ext.tables.find import tables_of
from tf_ext.tables.sparse_table import SparseTable

# Keys of a configuration, or their first parts, on which the rows of absent ids
# depend.
_OF_INITIAL_ROWS = ("name", "seed", "initializer")

# Those that an export does not depend on, or takes from the model's table.
_NOT_EXPORTED = ("optimizer", "slot_dtype", "admission", "unknown")


def export_snapshots(
    model: keras.Model,
    snapshots: Mapping[str, str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    unknown: str | None = None,
    version: int | None = None,
    warmup: typing.Any = None,
    signature: typing.Any = None,
    progress: Progress | None = None,
) -> str:
    """Writes the same as `export`, but with the rows of snapshots.

    This is for tables whose rows do not fit into one process: create the model
    without a strategy, load its dense weights, and leave its tables empty. Only
    what is served is read from the snapshots, in chunks, with deltas merged.

    Args:
      model: a built Keras model, created without a strategy.
      snapshots: dict from the name of each of the model's tables to the
        directory that `SparseTable.save` wrote.
      path: see `export`.
      dtype: see `export`.
      unknown: see `export`.
      version: see `export`.
      warmup: see `export`.
      signature: see `export`.
      progress: see `export`.

    Returns:
      string, the folder of the version, `path/version`.

    Raises:
      FileNotFoundError: if there is no snapshot, or one on which it is based is
        missing.
      DamagedSnapshotError: if a snapshot is damaged; the error names the file
        and the byte.
      ValueError: if a snapshot does not fit its table, and for the reasons of
        `export`.

    Example:
    >>> import tempfile
    >>> from tf_ext._keras import keras
    >>> inputs = {"user": keras.Input((), dtype="int64", name="user")}
    >>> table = tf_ext.SparseTable("user", dim=1)
    >>> user = tf_ext.feature_column.category_column("user")
    >>> outputs = tf_ext.layers.EmbeddingFeatures([user], table)(inputs)
    >>> model = tf_ext.Model(inputs, outputs)
    >>> with tempfile.TemporaryDirectory() as path:
    ...     _ = table.save(f"{path}/snapshot")
    ...     folder = tf_ext.serving.export_snapshots(
    ...         model, {"user": f"{path}/snapshot"}, f"{path}/served")
    ...     tf_ext.serving.versions(f"{path}/served")
    [1]
    """
    given = Arguments(
        "tf_ext.serving.export_snapshots",
        model,
        path,
        dtype,
        unknown,
        version,
        warmup,
        signature,
        progress,
    )
    tables = tables_of(model)
    names = [table.name for table in tables]
    if sorted(names) != sorted(snapshots):
        raise ValueError(
            "Argument `snapshots` of tf_ext.serving.export_snapshots must name "
            f"each table of the model once: {sorted(names)}. Received: "
            f"{sorted(snapshots)}"
        )
    sources = {}
    for table in tables:
        snapshot = open_snapshot(snapshots[table.name])
        _check(table, snapshot, unknown)
        sources[table] = of_snapshot(snapshot, table.rows.served.names)
    return write(given, sources.__getitem__, holds_rows=False)


def _check(table: SparseTable, snapshot: Snapshot, unknown: str | None) -> None:
    """Raises ValueError unless the rows of a snapshot fit a table."""
    mine = dict(parse_config(table.rows.config))
    theirs = dict(parse_config(snapshot.manifest.config))
    zeros = unknown is not None or table.unknown == "zeros"
    for key in sorted(mine.keys() | theirs.keys()):
        kind = key.partition(".")[0]
        if kind in _NOT_EXPORTED or (kind in _OF_INITIAL_ROWS and zeros):
            continue
        if mine.get(key) != theirs.get(key):
            how = (
                ", or export with unknown='zeros'"
                if kind in _OF_INITIAL_ROWS
                else ""
            )
            raise ValueError(
                f"The snapshot {snapshot.path} does not fit table "
                f"{table.name!r}: its `{key}` is {theirs.get(key)!r}, that of "
                f"the table is {mine.get(key)!r}. Make the table as it was "
                f"when it was saved{how}."
            )
    for where, manifest in snapshot.chain:
        check_fields(
            where, manifest, table.rows.served.stored_fields, and_others=True
        )
