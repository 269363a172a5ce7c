"""One shard of a table: the resource in one process."""

import collections

import tensorflow as tf

from tf_ext import ops

Field = collections.namedtuple("Field", ["name", "dtype", "count"])


def parse_config(text):
    """The entries of a table's configuration text, as a dict of strings."""
    return dict(line.split("=", 1) for line in text.splitlines() if line)


def config_text(entries):
    """The configuration text of a table, from a dict of strings."""
    return "".join(f"{k}={v}\n" for k, v in sorted(entries.items()))


class TableShard:
    """The rows of a table in one process.

    Args:
      handle: resource `[]`, that of the op `sparse_table_handle`.
      fields: tuple of `Field`, what a row holds, `weights` first.
    """

    def __init__(self, handle, fields):
        self.resource_handle = handle
        self._fields = fields

    @property
    def device(self):
        """The device that holds the rows, for `tf.device`."""
        return self.resource_handle.device

    def pull(self, signs, insert, dim):
        """Weights of signs.

        Args:
          signs: int64 `[n]`.
          insert: bool or bool scalar tensor, whether absent signs are created.
          dim: int, the table's.

        Returns:
          float32 `[n, dim]`, on the shard's device.
        """
        with tf.device(self.device):
            return ops.sparse_table_pull(
                self.resource_handle, signs, training=insert, dim=dim
            )

    def push(self, signs, gradients, hyperparameters, step):
        """Updates rows.

        Args:
          signs: int64 `[n]`, distinct.
          gradients: float32 `[n, dim]`.
          hyperparameters: float64, of the table's rule.
          step: int64 scalar, counting from 1.

        Returns:
          int64 scalar, the number of rows updated.
        """
        with tf.device(self.device):
            return ops.sparse_table_push(
                self.resource_handle,
                signs,
                gradients,
                hyperparameters=hyperparameters,
                step=step,
            )

    def export(self, cursor=0, limit=-1, names=None):
        """Rows from `cursor` on.

        Args:
          cursor: int64 scalar, 0 or the last call's `next_cursor`.
          limit: int64 scalar, rows at most; -1 for all.
          names: fields wanted; all by default.

        Returns:
          `(signs [n], next_cursor [] (-1: no more), {field: [n, count]})`.
        """
        fields = [f for f in self._fields if names is None or f.name in names]
        with tf.device(self.device):
            signs, next_cursor, values = ops.sparse_table_export(
                self.resource_handle,
                cursor,
                limit,
                field_names=[f.name for f in fields],
                field_dtypes=[f.dtype for f in fields],
            )
        return signs, next_cursor, dict(zip([f.name for f in fields], values))

    def import_rows(self, signs, values, clear=False):
        """Sets fields of rows; creates absent rows.

        Args:
          signs: int64 `[n]`; of a repeated sign the last counts.
          values: `{field: [n, count]}`.
          clear: whether all other rows are removed first.

        Returns:
          int64 scalar, the number of rows set.
        """
        with tf.device(self.device):
            return ops.sparse_table_import(
                self.resource_handle,
                signs,
                list(values.values()),
                field_names=list(values),
                clear=clear,
            )

    def size(self):
        """The number of rows, int64 scalar."""
        with tf.device(self.device):
            return ops.sparse_table_size(self.resource_handle)

    def stats(self):
        """Counts and bytes, int64 `[len(ops.TABLE_STATS)]`."""
        with tf.device(self.device):
            return ops.sparse_table_stats(self.resource_handle)

    def erase(self, signs):
        """Removes rows of signs `[n]`; int64 scalar, how many were there."""
        with tf.device(self.device):
            return ops.sparse_table_erase(self.resource_handle, signs)

    def clear(self):
        """Removes all rows; int64 scalar, how many there were."""
        with tf.device(self.device):
            return ops.sparse_table_clear(self.resource_handle)

    def save(
        self, directory, snapshot_id, base, tracked, index, max_bytes_per_second
    ):
        """Writes the rows of the shard to files of a snapshot.

        Args:
          directory: string.
          snapshot_id: string.
          base: string, the id of the snapshot that is continued; "": none.
          tracked: bool, whether `end_save` will follow.
          index: int, which shard of the table this is.
          max_bytes_per_second: int; 0 for as fast as it goes.

        Returns:
          What `ops.sparse_table_save` does.
        """
        with tf.device(self.device):
            return ops.sparse_table_save(
                self.resource_handle,
                directory,
                snapshot_id,
                base,
                tracked,
                index,
                max_bytes_per_second,
            )

    def end_save(self, snapshot_id, committed):
        """Ends a tracked save; `committed`: whether its manifest is there."""
        with tf.device(self.device):
            ops.sparse_table_end_save(
                self.resource_handle, snapshot_id, committed
            )

    def set_chain(self, snapshot_id):
        """Marks changes since a snapshot; "" marks none."""
        with tf.device(self.device):
            ops.sparse_table_set_chain(self.resource_handle, snapshot_id)

    def restore(
        self,
        paths,
        files,
        file_shards,
        manifest,
        fields,
        index,
        shards,
        verify_only,
    ):
        """Applies files of a snapshot, or only checks them.

        Args:
          paths: list of strings.
          files: int64 `[f, 5]`, as of `ops.sparse_table_save`.
          file_shards: list of ints, the snapshot's shard that each is of.
          manifest: Manifest of the snapshot.
          fields: list of RowField, those to set.
          index: int, which shard of the table this is.
          shards: int, how many there are.
          verify_only: bool.

        Returns:
          int64 scalar, the number of rows set.
        """
        with tf.device(self.device):
            return ops.sparse_table_restore(
                self.resource_handle,
                tf.constant(paths, tf.string, [len(paths)]),
                files,
                manifest.chunk_bytes,
                manifest.row_bytes,
                index,
                shards,
                verify_only,
                tf.constant(file_shards, tf.int64, [len(paths)]),
                manifest.shards,
                field_names=[f.name for f in fields],
                field_types=[f.dtype for f in fields],
                field_counts=[f.count for f in fields],
                field_offsets=[f.offset for f in fields],
            )
