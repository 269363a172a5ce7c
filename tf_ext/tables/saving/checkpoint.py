# SPDX-License-Identifier: Apache-2.0
"""The rows of a table in a checkpoint of TensorFlow.

A checkpoint holds a part for each shard, of a tensor for each field, and can be
restored into any number of shards.
"""

import typing
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tf_ext._compat.checkpoints import tensors_being_restored
from tf_ext.regimes.table_interface import Exports
from tf_ext.snapshot.counting import counting_of
from tf_ext.tables import row_counters
from tf_ext.tables.rows import TableRows
from tf_ext.tables.shard import add

_PERIOD = "counter_period"

# What `tensors_being_restored` returns.
_Saved: typing.TypeAlias = Mapping[str, Callable[[], typing.Any]]


class CheckpointedRows(TableRows):
    """The rows of a table, which checkpoints hold."""

    # Of a restore that has begun.
    _state_to_restore: Mapping[str, str] = {}

    def _saved_tensors(self) -> dict[str, tf.Tensor]:
        """The tensors of a checkpoint, by name.

        Also called when a restore begins, where only names and devices of the
        tensors matter. The small values are read now: the rest of a restore may
        be in a graph, where nothing can be compared.
        """
        saved = tensors_being_restored()
        if saved is not None:
            self.check_config(saved["config"]().decode())
            names = saved.keys() & self.saved_state().keys()
            state = {name: saved[name]().decode() for name in names}
            self.check_state(state)
            self._state_to_restore = state
        return _saved_tensors(self, saved)

    def _restore_tensors(
        self, restored_tensors: Mapping[str, tf.Tensor]
    ) -> tf.Tensor:
        restored = _restore_tensors(self, restored_tensors)
        # Not before, as tensors that cannot be read leave the rows as they are.
        self.restore_state(self._state_to_restore)
        return restored


def _saved_tensors(
    table_rows: TableRows, saved: _Saved | None
) -> dict[str, tf.Tensor]:
    count = len(table_rows.shards)
    if saved is not None:
        count = sum(name.startswith("signs") for name in saved)
    tensors = {}
    for part in range(count):
        shard = table_rows.shards[part % len(table_rows.shards)]
        signs, values = _part(table_rows, shard, saved is None)
        # No "/" in keys: TensorFlow maps it differently on save and on restore.
        tensors[_part_name("signs", part)] = signs
        for name, value in values.items():
            tensors[f"{_part_name('field', part)}_{name}"] = value
    tensors |= _saved_counters(table_rows, saved)
    tensors["config"] = tf.constant(table_rows.config)
    for name, text in table_rows.saved_state().items():
        # Older checkpoints do not have all of them.
        if saved is None or name in saved:
            tensors[name] = tf.constant(text)
    return tensors


def _part(
    table_rows: TableRows, shard: Exports, whole: bool
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Signs and fields of a shard; empty tensors unless `whole`."""
    if whole:
        return table_rows.regime.processes.checkpoint_part(
            shard, table_rows.fields, table_rows.rows_of_chunk
        )
    signs, _, values = shard.export(limit=0)
    return signs, values


def _restore_tensors(
    table_rows: TableRows, restored: Mapping[str, tf.Tensor]
) -> tf.Tensor:
    """Replaces the rows by tensors that `_saved_tensors` named."""
    parts: list[tuple[tf.Tensor, dict[str, tf.Tensor]]] = []
    while _part_name("signs", len(parts)) in restored:
        prefix = _part_name("field", len(parts))
        parts.append(
            (
                restored[_part_name("signs", len(parts))],
                {
                    field.name: restored[f"{prefix}_{field.name}"]
                    for field in table_rows.fields
                },
            )
        )
    imported = _import_parts(table_rows, parts)
    with tf.control_dependencies([imported]):
        # Signs that have a row get no counter.
        return add([imported, *_restore_counters(table_rows, restored)])


def _import_parts(
    table_rows: TableRows,
    parts: Sequence[tuple[tf.Tensor, Mapping[str, tf.Tensor]]],
) -> tf.Tensor:
    if len(parts) == len(table_rows.shards) == table_rows.num_shards:
        imported = [
            shard.import_rows(signs, values, clear=True)
            for shard, (signs, values) in zip(table_rows.shards, parts)
        ]
    else:
        imported = [
            table_rows.import_rows(signs, values, clear=index == 0)
            for index, (signs, values) in enumerate(parts)
        ]
    return add(imported)


def _part_name(prefix: str, part: int) -> str:
    return f"{prefix}{part}" if part else prefix


def _saved_counters(
    table_rows: TableRows, saved: _Saved | None
) -> dict[str, tf.Tensor]:
    """The tensors of counters; checks all of them during a restore."""
    if table_rows.counting is None:
        return {}
    count = len(table_rows.shards)
    if saved is None:
        period = row_counters.current_period(table_rows)
    else:
        counting = counting_of(saved["config"]().decode())
        if _PERIOD not in saved or not table_rows.counting.can_take(counting):
            return {}
        period = int(saved[_PERIOD]())
        check = row_counters.Check(table_rows.name, counting, period)
        count = 0
        while f"counter_signs{count}" in saved:
            check.add(
                saved[f"counter_signs{count}"](),
                saved[f"counter_counts{count}"](),
            )
            count += 1
    tensors = {_PERIOD: tf.cast(period, tf.int64)}
    for part in range(count):
        shard = row_counters.CounterShard(
            table_rows.shards[part % len(table_rows.shards)], period
        )
        if saved is None:
            signs, values = table_rows.regime.processes.checkpoint_part(
                shard, row_counters.FIELDS, row_counters.ROWS_OF_CHUNK
            )
        else:
            signs, _, values = shard.export(limit=0)
        tensors[f"counter_signs{part}"] = signs
        tensors[f"counter_counts{part}"] = values["count"]
    return tensors


def _restore_counters(
    table_rows: TableRows, restored: Mapping[str, tf.Tensor]
) -> list[tf.Tensor]:
    """Sets counters; a list of int64 scalars, how many."""
    imported: list[tf.Tensor] = []
    while f"counter_signs{len(imported)}" in restored:
        part = len(imported)
        imported.append(
            row_counters.import_counters(
                table_rows,
                restored[f"counter_signs{part}"],
                restored[f"counter_counts{part}"],
                restored[_PERIOD],
            )
        )
    return imported
