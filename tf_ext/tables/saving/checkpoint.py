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

    def _saved_tensors(self) -> dict[str, tf.Tensor]:
        return _saved_tensors(self)

    def _restore_tensors(
        self, restored_tensors: Mapping[str, tf.Tensor]
    ) -> tf.Tensor:
        return _restore_tensors(self, restored_tensors)


def _saved_tensors(rows: TableRows) -> dict[str, tf.Tensor]:
    """The tensors of a checkpoint, by name.

    Also called during a restore, where only names and devices of the tensors
    matter. The small values are read now: the rest of a restore may be in a
    graph, where nothing can be compared.
    """
    saved = tensors_being_restored()
    if saved is not None:
        rows.check_config(saved["config"]().decode())
        _restore_state(rows, saved)
    count = len(rows.shards)
    if saved is not None:
        count = sum(name.startswith("signs") for name in saved)
    tensors = {}
    for part in range(count):
        shard = rows.shards[part % len(rows.shards)]
        signs, values = _part(rows, shard, saved is None)
        # No "/" in keys: TensorFlow maps it differently on save and on restore.
        tensors[_part_name("signs", part)] = signs
        for name, value in values.items():
            tensors[f"{_part_name('field', part)}_{name}"] = value
    tensors |= _saved_counters(rows, saved)
    tensors["config"] = tf.constant(rows.config)
    if rows.state is not None:
        for name, text in rows.state.strings().items():
            # Older checkpoints do not have all of them.
            if saved is None or name in saved:
                tensors[name] = tf.constant(text)
    return tensors


def _part(
    rows: TableRows, shard: Exports, whole: bool
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Signs and fields of a shard; empty tensors unless `whole`."""
    if whole:
        return rows.regime.processes.checkpoint_part(
            shard, rows.fields, rows.rows_of_chunk
        )
    signs, _, values = shard.export(limit=0)
    return signs, values


def _restore_state(rows: TableRows, saved: _Saved) -> None:
    if rows.state is not None:
        names = saved.keys() & rows.state.strings().keys()
        rows.state.restore({name: saved[name]().decode() for name in names})


def _restore_tensors(
    rows: TableRows, restored: Mapping[str, tf.Tensor]
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
                    for field in rows.fields
                },
            )
        )
    imported = _import_parts(rows, parts)
    with tf.control_dependencies([imported]):
        # Signs that have a row get no counter.
        return add([imported, *_restore_counters(rows, restored)])


def _import_parts(
    rows: TableRows,
    parts: Sequence[tuple[tf.Tensor, Mapping[str, tf.Tensor]]],
) -> tf.Tensor:
    if len(parts) == len(rows.shards) == rows.num_shards:
        imported = [
            shard.import_rows(signs, values, clear=True)
            for shard, (signs, values) in zip(rows.shards, parts)
        ]
    else:
        imported = [
            rows.import_rows(signs, values, clear=index == 0)
            for index, (signs, values) in enumerate(parts)
        ]
    return add(imported)


def _part_name(prefix: str, part: int) -> str:
    return f"{prefix}{part}" if part else prefix


def _saved_counters(
    rows: TableRows, saved: _Saved | None
) -> dict[str, tf.Tensor]:
    """The tensors of counters; checks all of them during a restore."""
    if rows.counting is None:
        return {}
    count = len(rows.shards)
    if saved is None:
        period = row_counters.current_period(rows)
    else:
        counting = counting_of(saved["config"]().decode())
        if _PERIOD not in saved or not rows.counting.can_take(counting):
            return {}
        period = int(saved[_PERIOD]())
        check = row_counters.Check(rows.name, counting, period)
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
            rows.shards[part % len(rows.shards)], period
        )
        if saved is None:
            signs, values = rows.regime.processes.checkpoint_part(
                shard, row_counters.FIELDS, row_counters.ROWS_OF_CHUNK
            )
        else:
            signs, _, values = shard.export(limit=0)
        tensors[f"counter_signs{part}"] = signs
        tensors[f"counter_counts{part}"] = values["count"]
    return tensors


def _restore_counters(
    rows: TableRows, restored: Mapping[str, tf.Tensor]
) -> list[tf.Tensor]:
    """Sets counters; a list of int64 scalars, how many."""
    imported: list[tf.Tensor] = []
    while f"counter_signs{len(imported)}" in restored:
        part = len(imported)
        imported.append(
            row_counters.import_counters(
                rows,
                restored[f"counter_signs{part}"],
                restored[f"counter_counts{part}"],
                restored[_PERIOD],
            )
        )
    return imported
