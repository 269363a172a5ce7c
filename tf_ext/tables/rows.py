# SPDX-License-Identifier: Apache-2.0
"""The rows of a table over all its shards, and their form in checkpoints."""

import copy
import functools
import threading
import typing
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

import numpy.typing as npt
import tensorflow as tf

from tf_ext import eviction as policies
from tf_ext import ops
from tf_ext._compat.checkpoints import SavedResource, tensors_being_restored
from tf_ext.ops.table import owner_ops
from tf_ext.regimes import LocalRegime, Regime
from tf_ext.regimes.table_interface import Chunk, Exports
from tf_ext.snapshot.counting import Counting, counting_of
from tf_ext.tables import row_counters
from tf_ext.tables.identity import check_identity
from tf_ext.tables.shard import (
    Field,
    TableShard,
    parse_config,
)
from tf_ext.tables.weights_only import (
    FIELDS_OF_STATISTICS,
    holds_weights_only,
    without_rule,
)

if typing.TYPE_CHECKING:
    from tf_ext.tables.each_shard import Tasks

# The size of the chunks in which rows are streamed out of a table, in bytes.
_CHUNK_BYTES = 32 << 20

_State: typing.TypeAlias = tuple[
    Callable[[], dict[str, str]], Callable[[dict[str, str]], None]
]


class TableRows(SavedResource):
    """The rows of a table, one shard per device, as a trackable object.

    A checkpoint holds a part for each shard and can be restored into any
    number of shards. In a SavedModel the object is the resource of its first
    shard, under a name that is unique to the export.

    Args:
      config: string, the table's configuration (`key=value` lines).
      fields: list of `Field`, the fields of a row, `weights` first.
      state: optional callables `(save, restore)`: `save()` returns a dict of
        strings that is saved with the rows, `restore(strings)` receives it.
      devices: list of strings, the devices of the shards; "" is the device in
        scope.
      regime: the Regime that the table is created under. None: one process.
      owner: `(owner, run)`, the arguments of `ops.sparse_table_set_owner`, for
        shards that outlive this process; else None.
    """

    def __init__(
        self,
        config: str,
        fields: Iterable[tuple[str, tf.DType, int]],
        state: _State | None = None,
        devices: Sequence[str] = ("",),
        regime: Regime | None = None,
        owner: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(device=devices[0])
        self.regime = regime or LocalRegime()
        self._fields = tuple(Field(*field) for field in fields)
        self._state = state
        self._config = config
        self._place = devices, owner
        self._serves_statistics = False
        # Of the module `snapshots`: `(path, id)` of the incremental snapshots;
        # the id of one that has not ended in all shards, or ""; what is held
        # while these change. Of `each_shard`: the tasks of each thread.
        self.snapshot_chain: tuple[tuple[str, str], ...] = ()
        self.saving = ""
        self.chain_lock = threading.RLock()
        self.under_way: dict[int, Tasks] = {}
        with tf.init_scope():
            # Created here, so that no traced function creates one of its own.
            # The core returns the configuration in canonical form.
            handle = self.resource_handle
            with tf.device(handle.device):
                self.config = ops.sparse_table_config(handle).numpy().decode()
            self._more_handles = tuple(map(self._create_on, devices[1:]))
            if owner is not None:
                for shard in (handle, *self._more_handles):
                    with tf.device(shard.device):
                        owner_ops.sparse_table_set_owner(shard, *owner)

    def _create_resource(self) -> tf.Tensor:
        if tf.executing_eagerly():
            return ops.sparse_table_handle(self._config)
        # In a graph: a SavedModel is being written. Sessions, including
        # TensorFlow Serving's, run the op in each call and must find the
        # restored rows; Python's loader adds a suffix to the name per load.
        return ops.sparse_table_serving_handle(
            self._config, shared_name=uuid.uuid4().hex
        )

    @functools.cached_property
    def records_seconds(self) -> bool:
        """Whether rows store the time of their last push in seconds."""
        return parse_config(self.config).get("last_seen") == "second"

    @functools.cached_property
    def served(self) -> "TableRows":
        """The same rows as an exported model holds them: weights only.

        And statistics, after `serve_statistics`.
        """
        served = copy.copy(self)
        read = FIELDS_OF_STATISTICS if self._serves_statistics else ()
        wanted = ("weights", *read)
        served._fields = tuple(f for f in self._fields if f.name in wanted)
        served._state = None
        served.config = served._config = without_rule(
            self.config, self._serves_statistics
        )
        return served

    def serve_statistics(self) -> None:
        """Lets exported models hold the statistics of rows."""
        self._serves_statistics = True
        self.__dict__.pop("served", None)

    def emptied(
        self, config: str, fields: Iterable[tuple[str, tf.DType, int]]
    ) -> "TableRows":
        """New, empty rows of another configuration, in the same places."""
        devices, owner = self._place
        return TableRows(
            config, fields, self._state, devices, self.regime, owner
        )

    def _check_exportable(self) -> None:
        self.regime.check_exportable(self._label)

    def _create_on(self, device: str) -> tf.Tensor:
        with tf.device(device):
            return self._create_resource()

    def _initialize(self) -> None:
        pass

    def _destroy_resource(self) -> None:
        # The handle is reference-counted and frees the table with the last one.
        pass

    @property
    def shards(self) -> list[TableShard]:
        """The shards that this process accesses, a list of `TableShard`."""
        return [
            TableShard(handle, self._fields)
            for handle in (self.resource_handle, *self._more_handles)
        ]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a row: a tuple of `Field`, `weights` first."""
        return self._fields

    @property
    def names(self) -> list[str]:
        """The names of the fields of a row, a list of strings."""
        return [field.name for field in self._fields]

    @property
    def weights_only(self) -> bool:
        """Whether rows hold only weights and so cannot be trained."""
        return holds_weights_only(self.config)

    @property
    def counting(self) -> Counting | None:
        """The Counting of the table's admission; None if it counts nothing."""
        return counting_of(self.config)

    @property
    def _label(self) -> str:
        return parse_config(self.config)["name"]

    @property
    def bytes_per_row(self) -> int:
        """Bytes of a row in a checkpoint: its sign and all fields."""
        return 8 + sum(f.dtype.size * f.count for f in self._fields)

    @property
    def num_shards(self) -> int:
        """The number of shards, an int."""
        return self.regime.num_processes * (1 + len(self._more_handles))

    @property
    def first_shard(self) -> int:
        """The index, among all shards, of the first in `shards`, an int."""
        return self.regime.rank

    def _split(
        self, value: tf.Tensor, split_sizes: tf.Tensor
    ) -> list[tf.Tensor]:
        if self.num_shards == 1:
            return [value]
        return tf.split(value, split_sizes, num=self.num_shards)

    def import_rows(
        self,
        signs: tf.Tensor,
        values: Mapping[str, tf.Tensor],
        clear: bool = False,
    ) -> tf.Tensor:
        """Sets fields of rows; inserts absent rows.

        Where each of several workers has a shard, only the rows of the shards
        that this process accesses are set.

        Args:
          signs: int64 `[n]`; the last occurrence of a repeated sign wins.
          values: `{field: [n, count]}`.
          clear: whether all rows are removed first.

        Returns:
          int64 scalar, the number of rows set.
        """
        return _add(
            [
                shard.import_rows(part, its_values, clear)
                for shard, part, its_values in self.by_owner(signs, values)
            ]
        )

    def by_owner(
        self, signs: tf.Tensor, values: Mapping[str, tf.Tensor]
    ) -> list[tuple[TableShard, tf.Tensor, Mapping[str, tf.Tensor]]]:
        """Divides what is set among the shards that this process accesses.

        Args:
          signs: int64 `[n]`; the last occurrence of a repeated sign counts.
          values: `{name: [n, count]}`.

        Returns:
          List of `(shard, signs, values)`, the latter two like the arguments.
        """
        if self.num_shards == 1:
            return [(self.shards[0], signs, values)]
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
        parts = self._split(unique, split_sizes)
        mine = range(self.first_shard, self.first_shard + len(self.shards))
        return [
            (shard, parts[i], {name: v[i] for name, v in values.items()})
            for i, shard in zip(mine, self.shards)
        ]

    def chunks(self) -> Generator[Chunk, None, None]:
        """All rows in chunks of bounded size; see `Regime.chunks`."""
        return self.regime.chunks(
            self.shards, self._fields, self._rows_of_chunk
        )

    @property
    def _rows_of_chunk(self) -> int:
        return max(1, _CHUNK_BYTES // self.bytes_per_row)

    def export(self) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """All rows of `shards`: `(signs [n], {field: [n, count]})`.

        Floats are float32, whatever type they are stored in.
        """
        parts = [shard.export(as_float32=True) for shard in self.shards]
        return _concat([signs for signs, _, _ in parts]), {
            field.name: _concat([values[field.name] for _, _, values in parts])
            for field in self._fields
        }

    def size(self) -> tf.Tensor:
        """The number of rows in all shards, int64 scalar."""
        size = _add([shard.size() for shard in self.shards])
        return tf.reduce_sum(self.regime.gather(size[tf.newaxis]))

    def stats(self) -> list[tf.Tensor]:
        """Statistics: int64 `[len(ops.TABLE_STATS)]` for each shard."""
        return [
            stats
            for shard in self.shards
            for stats in tf.unstack(self.regime.gather(shard.stats()))
        ]

    def erase(self, signs: tf.Tensor) -> tf.Tensor:
        """Removes the rows of signs `[n]`; returns how many it removed."""
        return _add([shard.erase(signs) for shard in self.shards])

    def evict(
        self, policy: policies.Policy, now: int | tf.Tensor | None
    ) -> tf.Tensor:
        """Evicts rows from all shards.

        Args:
          policy: `tf_ext.eviction.Policy`.
          now: int64 `[]`, the current step, or the time in seconds since 1970.
            None: that of the clock of each shard's device.

        Returns:
          int64 `[2]`, the numbers of rows examined and evicted.
        """
        counts = [
            tf.stack(shard.evict(now, **policy.limits(i, self.num_shards)))
            for i, shard in enumerate(self.shards, self.first_shard)
        ]
        return tf.reduce_sum(self.regime.gather(_add(counts)), 0)

    def decay(self, factor: float) -> tf.Tensor:
        """Multiplies the statistics of all rows of all shards by a factor.

        Args:
          factor: float, above 0 and at most 1.

        Returns:
          int64 scalar, the number of rows.
        """
        rows = _add([shard.decay(factor) for shard in self.shards])
        return tf.reduce_sum(self.regime.gather(rows[tf.newaxis]))

    def clear(self) -> tf.Tensor:
        """Removes all rows of `shards`; returns how many there were."""
        return _add([shard.clear() for shard in self.shards])

    def compact(self) -> tf.Tensor:
        """Compacts `shards`; returns the bytes freed, an int64 scalar."""
        return _add([shard.compact() for shard in self.shards])

    def check_rows(
        self,
        label: str,
        config: str,
        values: Mapping[str, npt.NDArray[typing.Any]],
    ) -> None:
        """Raises unless the saved rows can be restored into this table.

        Args:
          label: string, this table's name, for the message.
          config: string, the configuration of the table that was saved.
          values: `{field: [n, count]}`, the saved rows.
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

    def check_config(
        self,
        label: str,
        config: str,
        weights_only: bool = False,
        convert: bool = False,
    ) -> None:
        """Raises unless rows of a table of `config` fit this table.

        Args:
          label: string, this table's name, for the message.
          config: string, the configuration of the table that was saved.
          weights_only: bool, whether seed, initializer and optimizer may
            differ.
          convert: bool, whether the types of weights and slots may differ.
        """
        check_identity(label, self.config, config, weights_only, convert)

    def _saved_tensors(self) -> dict[str, tf.Tensor]:
        # Also called during a restore, where only names and devices of the
        # tensors matter. The small values are read now: the rest of a restore
        # may be in a graph, where nothing can be compared.
        saved = tensors_being_restored()
        if saved is not None:
            self.check_config(self._label, saved["config"]().decode())
            self._restore_state(saved)
        count = len(self.shards)
        if saved is not None:
            count = sum(name.startswith("signs") for name in saved)
        tensors = {}
        for part in range(count):
            shard = self.shards[part % len(self.shards)]
            signs, values = self._part(shard, saved is None)
            # No "/" in keys: TensorFlow maps it differently on save and on
            # restore.
            tensors[_part_name("signs", part)] = signs
            for name, value in values.items():
                tensors[f"{_part_name('field', part)}_{name}"] = value
        tensors |= row_counters.saved_tensors(self, saved, self._label)
        tensors["config"] = tf.constant(self.config)
        if self._state is not None:
            for name, text in self._state[0]().items():
                # Older checkpoints do not have all of them.
                if saved is None or name in saved:
                    tensors[name] = tf.constant(text)
        return tensors

    def _part(
        self, shard: Exports, whole: bool
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Signs and fields of a shard; empty tensors unless `whole`."""
        if whole:
            return self.regime.checkpoint_part(
                shard, self._fields, self._rows_of_chunk
            )
        signs, _, values = shard.export(limit=0)
        return signs, values

    def _restore_state(
        self, saved: Mapping[str, Callable[[], typing.Any]]
    ) -> None:
        if self._state is not None:
            names = saved.keys() & self._state[0]().keys()
            self._state[1]({name: saved[name]().decode() for name in names})

    def _restore_tensors(
        self, restored_tensors: Mapping[str, tf.Tensor]
    ) -> tf.Tensor:
        parts: list[tuple[tf.Tensor, dict[str, tf.Tensor]]] = []
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
        imported = self._import_parts(parts)
        with tf.control_dependencies([imported]):
            # Signs that have a row get no counter.
            return _add(
                [
                    imported,
                    *row_counters.restore_tensors(self, restored_tensors),
                ]
            )

    def _import_parts(
        self, parts: Sequence[tuple[tf.Tensor, Mapping[str, tf.Tensor]]]
    ) -> tf.Tensor:
        if len(parts) == len(self.shards) == self.num_shards:
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


def _part_name(prefix: str, part: int) -> str:
    return f"{prefix}{part}" if part else prefix


def _concat(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return values[0] if len(values) == 1 else tf.concat(values, 0)


def _add(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return values[0] if len(values) == 1 else tf.add_n(values)
