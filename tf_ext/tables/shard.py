"""One shard of a table: the resource in one process, and its checkpoint."""

import collections
import sys

import numpy as np
import tensorflow as tf

from tf_ext import ops

Field = collections.namedtuple("Field", ["name", "dtype", "count"])

# Rows copied out of a table at a time where they are streamed, in bytes.
_CHUNK_BYTES = 32 << 20

# Lines of a table's configuration that rows can only move under if they are
# equal. Name and slot start values are not among them.
_NOT_IDENTITY = ("name", "optimizer.initial_accumulator_value")


def parse_config(text):
    """The entries of a table's configuration text, as a dict of strings."""
    return dict(line.split("=", 1) for line in text.splitlines() if line)


def config_text(entries):
    """The configuration text of a table, from a dict of strings."""
    return "".join(f"{k}={v}\n" for k, v in sorted(entries.items()))


class TableShard(tf.saved_model.experimental.TrackableResource):
    """The table in one process, as TensorFlow's savers see it.

    Args:
      config: string, the table's configuration (`key=value` lines).
      fields: list of `Field`, what a row holds, `weights` first.
      state: optional callables `(save, restore)`: `save()` gives a dict of
        small tensors that travel with the rows, `restore(tensors)` takes it.
    """

    def __init__(self, config, fields, state=None):
        super().__init__()
        self._fields = tuple(Field(*field) for field in fields)
        self._state = state
        self._config = config
        with tf.init_scope():
            # Created now, so that no traced function makes a private one; the
            # canonical text is the core's.
            self.config = (
                ops.sparse_table_config(self.resource_handle).numpy().decode()
            )

    def _create_resource(self):
        return ops.sparse_table_handle(self._config)

    def _initialize(self):
        pass

    def _destroy_resource(self):
        # The handle counts references and frees the table with the last one.
        pass

    @property
    def device(self):
        """The device that holds the rows, for `tf.device`."""
        return self.resource_handle.device

    @property
    def fields(self):
        """What a row holds: a tuple of `Field`, `weights` first."""
        return self._fields

    @property
    def bytes_per_row(self):
        """Bytes of a row that a checkpoint holds: the sign and all fields."""
        return 8 + sum(4 * field.count for field in self._fields)

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
          signs: int64 `[n]`.
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

    def clear(self):
        """Removes all rows; int64 scalar, how many there were."""
        with tf.device(self.device):
            return ops.sparse_table_clear(self.resource_handle)

    def chunks(self):
        """Yields all rows in chunks of bounded size, as NumPy arrays."""
        limit = max(1, _CHUNK_BYTES // self.bytes_per_row)
        cursor = 0
        while cursor >= 0:
            signs, cursor, values = self.export(cursor, limit)
            cursor = int(cursor)
            yield signs.numpy(), {k: v.numpy() for k, v in values.items()}

    def check_rows(self, label, config, values):
        """Raises unless rows of another table can be put into this one.

        Args:
          label: string, this table's name, for the message.
          config: string, the configuration the rows were written under.
          values: `{field: [n, count]}` of them.
        """
        mine, theirs = parse_config(self.config), parse_config(config)
        for key in sorted(mine.keys() | theirs.keys()):
            if key not in _NOT_IDENTITY and mine.get(key) != theirs.get(key):
                raise ValueError(
                    f"Rows cannot be restored into table {label!r}: its "
                    f"`{key}` is {mine.get(key)!r}, that of the saved rows is "
                    f"{theirs.get(key)!r}. Make the table as it was saved."
                )
        for field in self._fields:
            found = values.get(field.name)
            if found is None or found.shape[-1] != field.count:
                shape = None if found is None else list(found.shape)
                raise ValueError(
                    f"Rows cannot be restored into table {label!r}: field "
                    f"{field.name!r} should be [n, {field.count}], the saved "
                    f"rows have {shape}."
                )

    def _check_names(self, saved):
        """Raises if a checkpoint lacks a field; TensorFlow would not say why.

        Args:
          saved: list of strings, the names of the tensors that it holds.
        """
        prefix = "field_"
        theirs = [n.removeprefix(prefix) for n in saved if prefix in n]
        mine = [field.name for field in self._fields]
        if not set(mine) <= set(theirs):
            label = parse_config(self.config)["name"]
            raise ValueError(
                f"Rows cannot be restored into table {label!r}: its fields "
                f"are {sorted(mine)}, those of the saved rows are "
                f"{sorted(theirs)}. Make the table as it was saved."
            )

    def _serialize_to_tensors(self):
        # A restore asks for the tensors too, but only to learn their names.
        restored = _restored_object()
        if restored is not None:
            self._check_names([one.name for one in restored.attributes])
        signs, _, values = self.export(limit=-1 if restored is None else 0)
        # No "/" in keys: TensorFlow writes and reads it differently.
        tensors = {f"field_{name}": value for name, value in values.items()}
        tensors["signs"] = signs
        tensors["config"] = tf.constant(self.config)
        if self._state is not None:
            tensors.update(self._state[0]())
        return tensors

    def _restore_from_tensors(self, restored_tensors):
        tensors = dict(restored_tensors)
        signs = tensors.pop("signs")
        config = tensors.pop("config")
        values = {
            field.name: tensors.pop(f"field_{field.name}")
            for field in self._fields
        }
        if hasattr(config, "numpy"):
            # In a SavedModel's restore function, table and rows come from the
            # same program and there is nothing to compare.
            text = config.numpy().decode()
            self.check_rows(parse_config(text).get("name"), text, values)
        if self._state is not None:
            self._state[1](tensors)
        return self.import_rows(signs, values, clear=True)


def _restored_object():
    """What a checkpoint says of the object that is about to be restored.

    Returns:
      The `TrackableObject` proto, or None outside of TensorFlow's restore.
    """
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        position = frame.f_locals.get("self")
        if name == "tensorflow.python.checkpoint.restore":
            return getattr(position, "object_proto", None)
        frame = frame.f_back
    return None


def array_of(text):
    """A string as the uint8 array that HDF5 stores can hold."""
    return np.frombuffer(text.encode(), np.uint8)


def text_of(array):
    """The string of `array_of`."""
    return np.asarray(array, np.uint8).tobytes().decode()
