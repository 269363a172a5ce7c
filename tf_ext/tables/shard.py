# SPDX-License-Identifier: Apache-2.0
"""One shard of a table: a resource on one device."""

import typing
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import ops
from tf_ext.ops.snapshot import counter_ops, snapshot_ops
from tf_ext.ops.table import clock_ops
from tf_ext.regimes import clock
from tf_ext.regimes.table_interface import Field
from tf_ext.snapshot.manifest import Manifest, RowField


class SnapshotFiles(typing.NamedTuple):
    """The files of a snapshot that a shard of a table reads.

    Attributes:
      paths: list of strings.
      numbers: int64 `[f, 5]`, as returned by `sparse_table_save`.
      stored: list of ints, the snapshot's shard of each file.
      index: int, the index of the shard in the table.
      num_shards: int, the number of shards of the table.
    """

    paths: list[str]
    numbers: npt.NDArray[np.int64]
    stored: list[int]
    # Instead of the method of tuples.
    index: int  # type: ignore[assignment]
    num_shards: int


class TableShard:
    """The rows of a table on one device.

    Args:
      handle: resource `[]`, from the op `sparse_table_handle`.
      fields: tuple of `Field`, the fields of a row, `weights` first.
    """

    def __init__(self, handle: tf.Tensor, fields: Sequence[Field]) -> None:
        self.resource_handle = handle
        self._fields = fields

    @property
    def device(self) -> str:
        """The device that holds the rows, for `tf.device`."""
        return self.resource_handle.device

    def run(
        self,
        op: Callable[..., typing.Any],
        *inputs: typing.Any,
        **more: typing.Any,
    ) -> typing.Any:
        """The outputs of a table's op, on the shard's device."""
        with tf.device(self.device):
            return op(self.resource_handle, *inputs, **more)

    def export(
        self,
        cursor: int | tf.Tensor = 0,
        limit: int = -1,
        names: Collection[str] | None = None,
        as_float32: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
        """Copies out rows, starting at `cursor`.

        Args:
          cursor: int64 scalar, 0 or the last call's `next_cursor`.
          limit: int64 scalar, the maximum number of rows; -1 for all.
          names: the fields to copy; None for all.
          as_float32: bool, whether all floats are returned as float32, rather
            than in the types in which they are stored.

        Returns:
          `(signs [n], next_cursor [] (-1: no more), {field: [n, count]})`.
        """
        fields = [f for f in self._fields if names is None or f.name in names]
        signs, next_cursor, values = self.run(
            ops.sparse_table_export,
            cursor,
            limit,
            field_names=[f.name for f in fields],
            field_dtypes=[
                tf.float32 if as_float32 and f.dtype.is_floating else f.dtype
                for f in fields
            ],
        )
        return signs, next_cursor, dict(zip([f.name for f in fields], values))

    def sample(self, limit: int, position: int) -> tf.Tensor:
        """Copies the weights of a sample of the rows.

        They are the rows that follow a position in the order of the hashes of
        signs, beyond which an export goes on at the first row. Hashes do not
        depend on what a row holds, so this is a random sample of the signs.

        Args:
          limit: int, the most rows.
          position: int, at least 0 and less than 2^63. 0 for all rows of a
            shard that has at most `limit`.

        Returns:
          float32 `[n, dim]`.
        """
        parts, left, cursor = [], limit, position
        ends = 1 if position == 0 else 2
        while left > 0 and ends > 0:
            signs, cursor, values = self.export(
                cursor, left, ["weights"], as_float32=True
            )
            parts.append(values["weights"])
            left -= signs.shape[0]
            if cursor == -1:
                ends, cursor = ends - 1, 0
        return tf.concat(parts, 0)

    def import_rows(
        self,
        signs: tf.Tensor,
        values: Mapping[str, tf.Tensor],
        clear: bool = False,
    ) -> tf.Tensor:
        """Sets fields of rows; see `TableRows.import_rows`."""
        return self.run(
            ops.sparse_table_import,
            signs,
            list(values.values()),
            field_names=list(values),
            clear=clear,
        )

    def size(self) -> tf.Tensor:
        """The number of rows, int64 scalar."""
        return self.run(ops.sparse_table_size)

    def stats(self) -> tf.Tensor:
        """Statistics, int64 `[len(ops.TABLE_STATS)]`."""
        return self.run(ops.sparse_table_stats)

    def erase(self, signs: tf.Tensor) -> tf.Tensor:
        """Removes the rows of signs `[n]`; returns how many it removed."""
        return self.run(ops.sparse_table_erase, signs)

    def evict(
        self, now: int | tf.Tensor | None, **limits: typing.Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Evicts rows; `(examined, evicted)`, see `ops.sparse_table_evict`.

        Args:
          now: int64 scalar; None: the clock of the shard's device.
          **limits: of the op.
        """
        with tf.device(self.device):
            if now is None:
                now = clock.seconds()
            return ops.sparse_table_evict(self.resource_handle, now, **limits)

    def decay(self, factor: float | tf.Tensor) -> tf.Tensor:
        """Multiplies statistics by a factor; returns the number of rows."""
        return self.run(ops.sparse_table_decay, factor)

    def shrinkage_clock(self, clock: int) -> tf.Tensor:
        """Returns or sets its clock: see `sparse_table_shrinkage_clock`."""
        return self.run(clock_ops.sparse_table_shrinkage_clock, clock)

    def absent_state(self, state: bytes) -> tf.Tensor:
        """Returns or sets its state: see `sparse_table_absent_state`."""
        return self.run(clock_ops.sparse_table_absent_state, state)

    def clear(self) -> tf.Tensor:
        """Removes all rows; returns how many there were, an int64 scalar."""
        return self.run(ops.sparse_table_clear)

    def compact(self) -> tf.Tensor:
        """Frees the memory of erased rows; int64 scalar, the bytes freed."""
        return self.run(ops.sparse_table_compact)

    def restore(
        self,
        files: SnapshotFiles,
        manifest: Manifest,
        fields: Sequence[RowField],
        action: str,
        convert: bool,
    ) -> typing.Any:
        """Applies files of a snapshot, as part of an update or on their own.

        Args:
          files: SnapshotFiles.
          manifest: Manifest of the snapshot.
          fields: list of RowField, the fields to set.
          action: string, as for `sparse_table_restore`.
          convert: bool, as for `sparse_table_restore`.

        Returns:
          The outputs of `sparse_table_restore`.
        """
        return self.run(
            snapshot_ops.sparse_table_restore,
            tf.constant(files.paths, tf.string, [len(files.paths)]),
            files.numbers,
            manifest.chunk_bytes,
            manifest.row_bytes,
            files.index,
            files.num_shards,
            action,
            tf.constant(files.stored, tf.int64, [len(files.paths)]),
            manifest.shards,
            field_names=[f.name for f in fields],
            field_types=[f.dtype for f in fields],
            field_counts=[f.count for f in fields],
            field_offsets=[f.offset for f in fields],
            convert=convert,
        )

    def restore_counters(
        self,
        files: SnapshotFiles,
        manifest: Manifest,
        n: int,
        period: int,
        load: bool,
    ) -> None:
        """Sets counters of signs without a row from files of a snapshot.

        Args:
          files: SnapshotFiles.
          manifest: Manifest of the snapshot.
          n: int, at how many occurrences the saved table admits a sign.
          period: int, the period as of which they were saved.
          load: bool, whether the table is changed.
        """
        self.run(
            counter_ops.sparse_table_restore_counters,
            tf.constant(files.paths, tf.string, [len(files.paths)]),
            files.numbers,
            tf.constant(files.stored, tf.int64, [len(files.paths)]),
            manifest.shards,
            files.index,
            files.num_shards,
            n,
            period,
            load,
        )


def add(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """The sum of what the shards of a table return."""
    return values[0] if len(values) == 1 else tf.add_n(values)
