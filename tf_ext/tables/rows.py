"""All rows of a table, over its shards, and how checkpoints hold them."""

import contextlib
import copy
import functools
import sys
import uuid

import tensorflow as tf

from tf_ext import ops
from tf_ext.tables.gathering import gathered_chunks
from tf_ext.tables.shard import (
    Field,
    TableShard,
    config_text,
    parse_config,
)

# Rows copied out of a table at a time where they are streamed, in bytes.
_CHUNK_BYTES = 32 << 20

# Lines of a table's configuration that rows can only move under if they are
# equal. Name and slot start values are not among them.
_NOT_IDENTITY = ("name", "optimizer.initial_accumulator_value")

# What decides how a row begins and what it holds beside its weights. Lines
# that begin so do not matter to rows of which the weights alone are taken.
_NOT_OF_WEIGHTS = ("seed", "initializer", "optimizer")


class TableRows(tf.saved_model.experimental.TrackableResource):
    """The rows of a table: one shard a device, as TensorFlow's savers see them.

    A checkpoint holds a part for each shard and is restored into any number
    of shards. As a resource of a SavedModel it is its first shard, under a
    name of that export.

    Args:
      config: string, the table's configuration (`key=value` lines).
      fields: list of `Field`, what a row holds, `weights` first.
      state: optional callables `(save, restore)`: `save()` gives a dict of
        strings that travel with the rows, `restore(strings)` takes it.
      devices: list of strings, where the shards are; "" is the device in
        scope.
      collectives: `tf_ext.distribute.collectives.Collectives` if each of
        several workers has one shard, that of its rank; else None.
      owner: `(owner, run)` as `ops.sparse_table_set_owner` takes them, of
        shards that do not end with this process; else None.
    """

    def __init__(
        self,
        config,
        fields,
        state=None,
        devices=("",),
        collectives=None,
        owner=None,
    ):
        super().__init__(device=devices[0])
        self.collectives = collectives
        self._fields = tuple(Field(*field) for field in fields)
        self._state = state
        self._config = config
        # `(path, id)` of the incremental snapshots, see `snapshots`.
        self.snapshot_chain = ()
        with tf.init_scope():
            # Created now, so that no traced function makes a private one; the
            # canonical text is the core's.
            handle = self.resource_handle
            with tf.device(handle.device):
                self.config = ops.sparse_table_config(handle).numpy().decode()
            self._more_handles = tuple(map(self._create_on, devices[1:]))
            if owner is not None:
                for shard in (handle, *self._more_handles):
                    with tf.device(shard.device):
                        ops.sparse_table_set_owner(shard, *owner)

    def _create_resource(self):
        if tf.executing_eagerly():
            return ops.sparse_table_handle(self._config)
        # Of a SavedModel that is being written. Sessions, TensorFlow Serving's
        # among them, run the op in each call, which has to find the restored
        # rows; Python's loader adds a suffix to the name for each load.
        return ops.sparse_table_serving_handle(
            self._config, shared_name=uuid.uuid4().hex
        )

    @functools.cached_property
    def served(self):
        """The same rows, as an exported model holds them: weights alone."""
        served = copy.copy(self)
        served._fields = self._fields[:1]
        served._state = None
        entries = parse_config(self.config)
        served.config = served._config = config_text(
            {
                **{
                    key: value
                    for key, value in entries.items()
                    if key.partition(".")[0] != "optimizer"
                },
                "optimizer": "none",
            }
        )
        return served

    def _export_to_saved_model_graph(self, *args, **kwargs):
        spread = (
            "on parameter servers"
            if "/job:ps/" in self.resource_handle.device
            else None
            if self.collectives is None
            else "spread over workers"
        )
        if spread is not None:
            label = parse_config(self.config)["name"]
            raise ValueError(
                f"Table {label!r} is {spread}, which a SavedModel "
                "does not have. Save the model's weights (save_weights, or "
                "tf.train.Checkpoint), load them into the same model made "
                "without a strategy, and export that."
            )
        return super()._export_to_saved_model_graph(*args, **kwargs)

    def _create_on(self, device):
        with tf.device(device):
            return self._create_resource()

    def _initialize(self):
        pass

    def _destroy_resource(self):
        # A handle counts references and frees the table with the last one.
        pass

    @property
    def shards(self):
        """The shards in reach of this process, a list of `TableShard`."""
        return [
            TableShard(handle, self._fields)
            for handle in (self.resource_handle, *self._more_handles)
        ]

    @property
    def fields(self):
        """What a row holds: a tuple of `Field`, `weights` first."""
        return self._fields

    @property
    def bytes_per_row(self):
        """Bytes of a row that a checkpoint holds: the sign and all fields."""
        return 8 + sum(4 * field.count for field in self._fields)

    @property
    def num_shards(self):
        """The number of shards, an int."""
        if self.collectives is not None:
            return self.collectives.size
        return 1 + len(self._more_handles)

    @property
    def first_shard(self):
        """Which of all shards the first in reach is, an int."""
        return 0 if self.collectives is None else self.collectives.rank

    def pull(self, signs, split_sizes, insert, dim):
        """Weights of signs, all shards asked side by side.

        Args:
          signs: int64 `[n]`, ordered by shard.
          split_sizes: int64 `[num_shards]`, how many each shard owns.
          insert: bool or bool scalar tensor, whether absent signs are created.
          dim: int, the table's.

        Returns:
          float32 `[n, dim]`.
        """
        parts = self._split(signs, split_sizes)
        return _concat(
            [
                shard.pull(part, insert, dim)
                for shard, part in zip(self.shards, parts)
            ]
        )

    def push(self, signs, split_sizes, gradients, hyperparameters, step):
        """Updates rows, in all shards side by side.

        Args:
          signs: int64 `[n]`, distinct, ordered by shard.
          split_sizes: int64 `[num_shards]`, how many each shard owns.
          gradients: float32 `[n, dim]`.
          hyperparameters: float64, of the table's rule.
          step: int64 scalar, counting from 1.

        Returns:
          int64 scalar, the number of rows updated.
        """
        updated = [
            shard.push(s, g, hyperparameters, step)
            for shard, s, g in zip(
                self.shards,
                self._split(signs, split_sizes),
                self._split(gradients, split_sizes),
            )
        ]
        return _add(updated)

    def _split(self, value, split_sizes):
        if self.num_shards == 1:
            return [value]
        return tf.split(value, split_sizes, num=self.num_shards)

    def import_rows(self, signs, values, clear=False):
        """Sets fields of rows; creates absent rows.

        Args:
          signs: int64 `[n]`; of a repeated sign the last counts.
          values: `{field: [n, count]}`.
          clear: whether all other rows are removed first.

        Returns:
          int64 scalar, the number of rows set. A shard in each of several
          workers takes its own and leaves the others.
        """
        if self.num_shards == 1:
            return self.shards[0].import_rows(signs, values, clear)
        unique, _, inverse, split_sizes = ops.unique_by_shard(
            signs, self.num_shards
        )
        last = tf.math.unsorted_segment_max(
            tf.range(tf.size(signs)), inverse, tf.size(unique)
        )
        values = {
            name: self._split(tf.gather(value, last), split_sizes)
            for name, value in values.items()
        }
        return _add(
            [
                shard.import_rows(
                    part, {name: v[i] for name, v in values.items()}, clear
                )
                for i, (shard, part) in self._mine(
                    self._split(unique, split_sizes)
                )
            ]
        )

    def _mine(self, parts):
        """(i, (shard, part)) of the parts of shards in reach."""
        first = self.first_shard
        return enumerate(zip(self.shards, parts[first:]), first)

    def chunks(self):
        """Yields all rows in chunks of bounded size, as NumPy arrays.

        The first of several workers gets all, the others none; all of them
        have to call this, and to close it if they stop before the end.
        """
        limit = max(1, _CHUNK_BYTES // self.bytes_per_row)
        if self.collectives is not None:
            # Those of all workers come at a time.
            limit = max(1, limit // self.num_shards)
            yield from gathered_chunks(
                self.collectives, self.shards[0], self._fields, limit
            )
            return
        for shard in self.shards:
            cursor = 0
            while cursor >= 0:
                signs, cursor, values = shard.export(cursor, limit)
                cursor = int(cursor)
                yield signs.numpy(), {k: v.numpy() for k, v in values.items()}

    def export(self):
        """All rows in reach: `(signs [n], {field: [n, count]})`, by shard."""
        parts = [shard.export() for shard in self.shards]
        return _concat([signs for signs, _, _ in parts]), {
            field.name: _concat([values[field.name] for _, _, values in parts])
            for field in self._fields
        }

    def size(self):
        """The number of rows of all shards, int64 scalar."""
        size = _add([shard.size() for shard in self.shards])
        if self.collectives is None:
            return size
        return tf.reduce_sum(self.collectives.gather(size[tf.newaxis]))

    def stats(self):
        """Counts and bytes: int64 `[len(ops.TABLE_STATS)]` for each shard."""
        stats = [shard.stats() for shard in self.shards]
        if self.collectives is None:
            return stats
        return tf.unstack(self.collectives.gather(stats[0]))

    def erase(self, signs):
        """Removes rows of signs `[n]`; int64 scalar, how many were in reach."""
        return _add([shard.erase(signs) for shard in self.shards])

    def clear(self):
        """Removes all rows in reach; int64 scalar, how many there were."""
        return _add([shard.clear() for shard in self.shards])

    def check_rows(self, label, config, values):
        """Raises unless rows of another table can be put into this one.

        Args:
          label: string, this table's name, for the message.
          config: string, the configuration the rows were written under.
          values: `{field: [n, count]}` of them.
        """
        self.check_config(label, config)
        for field in self._fields:
            found = values.get(field.name)
            if found is None or found.shape[-1] != field.count:
                shape = None if found is None else list(found.shape)
                raise ValueError(
                    f"Rows cannot be restored into table {label!r}: field "
                    f"{field.name!r} should be [n, {field.count}], the saved "
                    f"rows have {shape}."
                )

    def check_config(self, label, config, weights_only=False):
        """Raises unless rows written under another configuration fit.

        Args:
          label: string, this table's name, for the message.
          config: string, the configuration the rows were written under.
          weights_only: bool, whether seed, initializer and optimizer may be
            other ones.
        """
        mine, theirs = parse_config(self.config), parse_config(config)
        for key in sorted(mine.keys() | theirs.keys()):
            may_differ = key.partition(".")[0] in _NOT_OF_WEIGHTS
            if weights_only and may_differ:
                continue
            if key not in _NOT_IDENTITY and mine.get(key) != theirs.get(key):
                other_way = (
                    ", or take the weights alone: save(path) of that table, "
                    "load(path, weights_only=True) of this one."
                )
                raise ValueError(
                    f"Rows cannot be restored into table {label!r}: its "
                    f"`{key}` is {mine.get(key)!r}, that of the saved rows is "
                    f"{theirs.get(key)!r}. Make the table as it was saved"
                    f"{other_way if may_differ else '.'}"
                )

    def _serialize_to_tensors(self):
        # A restore asks for the tensors too, but only to learn their names
        # and devices. What is small is read now: the rest of a restore may be
        # in a graph, where nothing can be compared.
        saved = _saved_tensors()
        if saved is not None:
            label = parse_config(self.config)["name"]
            self.check_config(label, saved["config"]().decode())
            self._restore_state(saved)
        count = len(self.shards)
        if saved is not None:
            count = sum(name.startswith("signs") for name in saved)
        tensors = {}
        for part in range(count):
            shard = self.shards[part % len(self.shards)]
            signs, values = self._part(shard, saved is None)
            # No "/" in keys: TensorFlow writes and reads it differently.
            tensors[_part_name("signs", part)] = signs
            for name, value in values.items():
                tensors[f"{_part_name('field', part)}_{name}"] = value
        tensors["config"] = tf.constant(self.config)
        if self._state is not None:
            for name, text in self._state[0]().items():
                # Older checkpoints do not have all.
                if saved is None or name in saved:
                    tensors[name] = tf.constant(text)
        return tensors

    def _part(self, shard, whole):
        """What a checkpoint holds of a shard; none of its rows if not whole.

        The first of several workers, whose checkpoint is kept, writes the rows
        of all; the others write their own.
        """
        chunks = []
        if whole and self.collectives is not None:
            with contextlib.closing(self.chunks()) as gathered:
                chunks = list(gathered)
        if not chunks:
            signs, _, values = shard.export(limit=-1 if whole else 0)
            return signs, values
        return tf.concat([signs for signs, _ in chunks], 0), {
            field.name: tf.concat([v[field.name] for _, v in chunks], 0)
            for field in self._fields
        }

    def _restore_state(self, saved):
        if self._state is not None:
            names = saved.keys() & self._state[0]().keys()
            self._state[1]({name: saved[name]().decode() for name in names})

    def _restore_from_tensors(self, restored_tensors):
        parts = []
        while _part_name("signs", len(parts)) in restored_tensors:
            prefix = _part_name("field", len(parts))
            parts.append(
                (
                    restored_tensors[_part_name("signs", len(parts))],
                    {
                        field.name: restored_tensors[f"{prefix}_{field.name}"]
                        for field in self._fields
                    },
                )
            )
        return self._import_parts(parts)

    def _import_parts(self, parts):
        if len(parts) == self.num_shards and self.collectives is None:
            imported = [
                shard.import_rows(signs, values, clear=True)
                for shard, (signs, values) in zip(self.shards, parts)
            ]
        else:
            imported = [
                self.import_rows(signs, values, clear=index == 0)
                for index, (signs, values) in enumerate(parts)
            ]
        return _add(imported)


def _part_name(prefix, part):
    return f"{prefix}{part}" if part else prefix


def _concat(values):
    return values[0] if len(values) == 1 else tf.concat(values, 0)


def _add(values):
    return values[0] if len(values) == 1 else tf.add_n(values)


def _saved_tensors():
    """What the checkpoint that is being restored holds of this object.

    Returns:
      `{name: function that reads it}`; None outside of TensorFlow's restore.
    """
    position = _restored_position()
    if position is None:
        return None
    reader = tf.train.load_checkpoint(position.checkpoint.save_path_string)
    return {
        attribute.name: functools.partial(
            reader.get_tensor, attribute.checkpoint_key
        )
        for attribute in position.object_proto.attributes
    }


def _restored_position():
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        position = frame.f_locals.get("self")
        if name == "tensorflow.python.checkpoint.restore":
            if hasattr(position, "object_proto"):
                return position
        frame = frame.f_back
    return None
