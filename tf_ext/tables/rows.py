# SPDX-License-Identifier: Apache-2.0
"""The rows of a table over all its shards."""

import contextlib
import copy
import dataclasses
import functools
import typing
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

import tensorflow as tf

from tf_ext import _core, ops
from tf_ext import eviction as policies
from tf_ext._compat.checkpoints import SavedResource
from tf_ext.ops.table import owner_ops
from tf_ext.regimes import Regime, local_regime
from tf_ext.regimes.table_interface import Chunk, Field, ShardDevices
from tf_ext.snapshot.adam_steps import LATE, factors
from tf_ext.snapshot.clocks import (
    ABSENT_STATE,
    CLOCK_FIELDS,
    SHRINKAGE_CLOCK,
    decoded,
    encoded,
)
from tf_ext.snapshot.counting import Counting, counting_of, entries_of
from tf_ext.snapshot.manifest import DamagedSnapshotError
from tf_ext.tables.config import (
    TableConfig,
    check_identity,
    exported_text,
    served_text,
)
from tf_ext.tables.each_shard import EachShard
from tf_ext.tables.saved_state import SavedState
from tf_ext.tables.saving.chain import SnapshotChain
from tf_ext.tables.shard import TableShard, add

_T = typing.TypeVar("_T")
_IN_SCOPE = ShardDevices([""])

# The size of the chunks in which rows are streamed out of a table, in bytes.
_CHUNK_BYTES = 32 << 20


class TableRows(SavedResource):
    """The rows of a table, one shard per device, as a trackable object.

    In a SavedModel the object is the resource of its first shard, under a name
    that is unique to the export. Tables have `CheckpointedRows`.

    Args:
      table_config: TableConfig.
      state: SavedState, which is saved with the rows, or None.
      regime: the Regime that the table is created under. None: one process.
      placement: ShardDevices; the device "" is the one in scope.

    Attributes:
      table_config: TableConfig.
      config: string, its text in the core's canonical form.
      state: SavedState or None.
      regime: the Regime.
      chain: SnapshotChain, the incremental snapshots of the rows.
    """

    def __init__(
        self,
        table_config: TableConfig,
        state: SavedState | None = None,
        regime: Regime | None = None,
        placement: ShardDevices = _IN_SCOPE,
    ) -> None:
        super().__init__(device=placement.devices[0])
        self.regime = regime or local_regime()
        self.table_config = table_config
        self.state = state
        self._fields = table_config.fields
        self._config = table_config.text
        self._placement = placement
        self._serves_statistics = False
        self.chain = SnapshotChain()
        self._each_shard = EachShard(self.first_shard)
        with tf.init_scope():
            # Created here, so that no traced function creates one of its own.
            # The core returns the configuration in canonical form.
            handle = self.resource_handle
            with tf.device(handle.device):
                self.config = ops.sparse_table_config(handle).numpy().decode()
            self._more_handles = tuple(
                map(self._create_on, placement.devices[1:])
            )
            if placement.owner is not None:
                for shard in (handle, *self._more_handles):
                    with tf.device(shard.device):
                        owner_ops.sparse_table_set_owner(
                            shard, *placement.owner
                        )

    def _create_resource(self) -> tf.Tensor:
        if tf.executing_eagerly():
            return ops.sparse_table_handle(self._config)
        # In a graph: a SavedModel is being written. Sessions, including
        # TensorFlow Serving's, run the op in each call and must find the
        # restored rows; Python's loader adds a suffix to the name per load.
        return ops.sparse_table_serving_handle(
            self._config, shared_name=uuid.uuid4().hex
        )

    @property
    def records_seconds(self) -> bool:
        """Whether rows store the time of their last push in seconds."""
        return self.table_config.last_seen == "second"

    @functools.cached_property
    def served(self) -> "TableRows":
        """The same rows as an exported model holds them: weights only.

        And statistics, after `serve_statistics`.
        """
        served = copy.copy(self)
        config = self.table_config
        statistics = config.stored_statistics if self._serves_statistics else ()
        # They are shrunk, and moved, when they are exported.
        served.table_config = dataclasses.replace(
            config, served_statistics=statistics, l2=0.0, l1=0.0
        )
        served.state = None
        served._fields = served.table_config.fields
        served.config = served._config = served_text(
            exported_text(self.config), statistics
        )
        return served

    def serve_statistics(self) -> None:
        """Lets exported models hold the statistics of rows."""
        self._serves_statistics = True
        self.__dict__.pop("served", None)

    def emptied(self, table_config: TableConfig) -> typing.Self:
        """New, empty rows of another configuration, in the same places."""
        return type(self)(
            table_config, self.state, self.regime, self._placement
        )

    def _check_exportable(self) -> None:
        self.regime.placement.check_exportable(self.name)

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
        return self._shards_with(self._fields)

    def _shards_with(self, fields: Sequence[Field]) -> list[TableShard]:
        return [
            TableShard(handle, fields)
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
    def counting(self) -> Counting | None:
        """The Counting of the table's admission; None if it counts nothing."""
        return counting_of(self.config)

    @property
    def stored_fields(self) -> list[tuple[str, str, int]]:
        """The fields as manifests list them: `[(name, dtype, count)]`."""
        return [(f.name, f.dtype.name, f.count) for f in self._fields]

    @contextlib.contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Runs a block in all processes; all of them raise if one does.

        Args:
          what: string, what is done, for messages.
        """
        try:
            with self.regime.processes.together(what):
                yield
        except RuntimeError as error:
            if DamagedSnapshotError.__name__ in str(error):
                raise DamagedSnapshotError(str(error)) from None
            raise

    @property
    def name(self) -> str:
        """The name of the table."""
        return self.table_config.name

    @property
    def bytes_per_row(self) -> int:
        """Bytes of a row in a checkpoint: its sign and all fields."""
        return 8 + sum(f.dtype.size * f.count for f in self._fields)

    @property
    def num_shards(self) -> int:
        """The number of shards, an int."""
        return self.regime.processes.count * (1 + len(self._more_handles))

    @property
    def first_shard(self) -> int:
        """The index, among all shards, of the first in `shards`, an int."""
        return self.regime.processes.rank

    def on_each(self, function: Callable[[int, TableShard], _T]) -> list[_T]:
        """Runs `function(index, shard)` for each of `shards`, in parallel.

        Nothing that it has begun runs any longer when it returns or raises,
        also after an interrupt. After a second one, while it waits for that,
        the next call of the thread waits.

        Returns:
          The list of results.
        """
        return self._each_shard.run(function, self.shards)

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
        return add(
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

    def chunks(self, stored: bool = False) -> Generator[Chunk, None, None]:
        """All rows in chunks of bounded size; see `Processes.chunks`.

        Args:
          stored: bool, whether rows are as they are stored: with how far they
            have been shrunk and moved, instead of as when they are read.
        """
        fields = self._fields if stored else self._read_fields
        return self.regime.processes.chunks(
            self._shards_with(fields), fields, self.rows_of_chunk
        )

    @property
    def _read_fields(self) -> tuple[Field, ...]:
        """The fields of a row that has been shrunk and moved."""
        return tuple(f for f in self._fields if f.name not in CLOCK_FIELDS)

    @property
    def rows_of_chunk(self) -> int:
        """How many rows are streamed out of a table together."""
        return max(1, _CHUNK_BYTES // self.bytes_per_row)

    def export(self) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """All rows of `shards`: `(signs [n], {field: [n, count]})`.

        Floats are float32, whatever type they are stored in.
        """
        fields = self._read_fields
        parts = [
            shard.export(as_float32=True) for shard in self._shards_with(fields)
        ]
        return _concat([signs for signs, _, _ in parts]), {
            field.name: _concat([values[field.name] for _, _, values in parts])
            for field in fields
        }

    def size(self) -> tf.Tensor:
        """The number of rows in all shards, int64 scalar."""
        size = add([shard.size() for shard in self.shards])
        return tf.reduce_sum(self.regime.processes.gather(size[tf.newaxis]))

    def stats(self) -> list[tf.Tensor]:
        """Statistics: int64 `[len(ops.TABLE_STATS)]` for each shard."""
        return [
            stats
            for shard in self.shards
            for stats in tf.unstack(self.regime.processes.gather(shard.stats()))
        ]

    def erase(self, signs: tf.Tensor) -> tf.Tensor:
        """Removes the rows of signs `[n]`; returns how many it removed."""
        return add([shard.erase(signs) for shard in self.shards])

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
        return tf.reduce_sum(self.regime.processes.gather(add(counts)), 0)

    def decay(self, factor: float) -> tf.Tensor:
        """Multiplies the statistics of all rows of all shards by a factor.

        Args:
          factor: float, above 0 and at most 1.

        Returns:
          int64 scalar, the number of rows.
        """
        count = add([shard.decay(factor) for shard in self.shards])
        return tf.reduce_sum(self.regime.processes.gather(count[tf.newaxis]))

    def clear(self) -> tf.Tensor:
        """Removes all rows of `shards`; returns how many there were.

        What changes rows while they are absent is counted anew.
        """
        removed = add([shard.clear() for shard in self.shards])
        if self.table_config.shrinks:
            self._clocks(0)
        self.reset_absent_state()
        return removed

    def compact(self) -> tf.Tensor:
        """Compacts `shards`; returns the bytes freed, an int64 scalar."""
        return add([shard.compact() for shard in self.shards])

    def saved_state(self) -> dict[str, str]:
        """The strings that are saved with the rows.

        Raises:
          ValueError: they are asked for in the graph of a SavedModel, in which
            clocks can be neither saved nor restored.
        """
        config = self.table_config
        strings = {} if self.state is None else self.state.strings()
        with tf.init_scope():
            has_clock = config.shrinks or config.moves_absent_rows
            if has_clock and not tf.executing_eagerly():
                what = "l2" if config.shrinks else 'absent="decay"'
                raise ValueError(
                    f"Table {self.name!r} has {what}, so tf_keras cannot save "
                    "it in a SavedModel that goes on training. Save the model "
                    "as a .keras file, or its weights."
                )
        if config.shrinks:
            strings[SHRINKAGE_CLOCK] = str(max(self._clocks()))
        if config.moves_absent_rows:
            state = max(self._absent_states(), key=_core.absent_steps)
            strings[ABSENT_STATE] = encoded(state)
        return strings

    def check_state(self, saved: Mapping[str, str]) -> None:
        """Raises ValueError if saved strings cannot be restored."""
        clock = saved.get(SHRINKAGE_CLOCK, "0")
        if (
            not clock.isascii()
            or not clock.isdecimal()
            or len(clock) > 19
            or int(clock) > _core.LAST_SHRINKAGE_CLOCK
        ):
            raise ValueError(f"{SHRINKAGE_CLOCK} is {clock!r}.")
        if self.table_config.moves_absent_rows and ABSENT_STATE in saved:
            _core.check_absent_state(self.config, decoded(saved[ABSENT_STATE]))
        if self.state is not None:
            self.state.check(saved)

    def restore_state(self, saved: Mapping[str, str]) -> None:
        """Restores strings, of which there may be fewer than `saved_state`."""
        if self.state is not None:
            self.state.restore(saved)
        self.restore_clocks(saved)

    def restore_clocks(self, saved: Mapping[str, str]) -> None:
        """Sets up to when rows are shrunk and moved, to what was saved."""
        if self.table_config.shrinks and SHRINKAGE_CLOCK in saved:
            self._clocks(int(saved[SHRINKAGE_CLOCK]))
        if self.table_config.moves_absent_rows and ABSENT_STATE in saved:
            self._absent_states(decoded(saved[ABSENT_STATE]))

    def reset_absent_state(self) -> None:
        """Forgets the steps that move absent rows, which have no slots yet."""
        if self.table_config.moves_absent_rows:
            self._absent_states(_core.new_absent_state(self.config))

    @property
    def adam_step(self) -> int | None:
        """The t of Adam's bias correction; None if it is not the table's."""
        if not self.table_config.moves_absent_rows:
            return None
        if entries_of(self.config)["optimizer.bias_correction"] != "row":
            return None
        return max(map(_core.absent_steps, self._absent_states()))

    def take_adam_step(self, step: int) -> dict[str, float]:
        """Makes moments of a bias correction elsewhere those of this table.

        A table that has made no step goes on from that one. Others do not
        change, as their rows have moments already.

        Args:
          step: int of at least 0, the t of moments that are to be set.

        Returns:
          Dict from fields to what their values are multiplied by before.
        """
        mine = self.adam_step
        if mine == 0:
            step = min(step, LATE)
            self._absent_states(_core.new_absent_state(self.config, step))
        if mine in (None, 0, step):
            return {}
        return {
            field: float(factor)
            for field, factor in factors(self.config, mine, step).items()
        }

    def _clocks(self, clock: int = -1) -> list[int]:
        """Up to when the rows of each shard are shrunk when they are read.

        Args:
          clock: int, what they are set to; -1: they stay as they are.
        """
        with tf.init_scope():
            return [int(shard.shrinkage_clock(clock)) for shard in self.shards]

    def _absent_states(self, state: bytes = b"") -> list[bytes]:
        """What moves absent rows, of each shard.

        Args:
          state: bytes, what they are set to; b"": they stay as they are.
        """
        with tf.init_scope():
            return [shard.absent_state(state).numpy() for shard in self.shards]

    def check_config(
        self,
        config: str,
        weights_only: bool = False,
        convert: bool = False,
    ) -> None:
        """Raises unless rows of a table of `config` fit this table.

        Args:
          config: string, the configuration of the table that was saved.
          weights_only: bool, whether seed, initializer and optimizer may
            differ.
          convert: bool, whether the types of weights and slots may differ.
        """
        check_identity(self.name, self.config, config, weights_only, convert)


def _concat(values: Sequence[tf.Tensor]) -> tf.Tensor:
    return values[0] if len(values) == 1 else tf.concat(values, 0)
