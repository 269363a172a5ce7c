# SPDX-License-Identifier: Apache-2.0
"""The counters of ids without a row, of tables with admission by count.

In files they have the form of rows with a single field, `count`, which is
negative if the id was last counted in the period before the current one.
"""

import typing
from collections.abc import Generator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import _core, ops
from tf_ext.ops.snapshot import counter_ops
from tf_ext.regimes.table_interface import Chunk, Field
from tf_ext.snapshot.counting import Counting
from tf_ext.tables.rows import TableRows
from tf_ext.tables.shard import TableShard

FIELDS = (Field("count", tf.int32, 1),)

# How many counters are streamed out of a table together.
ROWS_OF_CHUNK = 1 << 20


class CounterShard:
    """The counters of a shard, exported like the rows of a TableShard.

    Args:
      shard: TableShard.
      period: int64 scalar, the current period of the whole table.
    """

    def __init__(self, shard: TableShard, period: int | tf.Tensor) -> None:
        self._shard = shard
        self._period = period

    def export(
        self, cursor: int | tf.Tensor = 0, limit: int = -1
    ) -> tuple[tf.Tensor, tf.Tensor, dict[str, tf.Tensor]]:
        """Copies out counters: see `TableShard.export`."""
        exported = self._shard.run(
            counter_ops.sparse_table_export_counters,
            *(cursor, limit, self._period),
        )
        return (
            exported.signs,
            exported.next_cursor,
            {"count": exported.counts},
        )


def current_period(table_rows: TableRows) -> tf.Tensor:
    """The latest period of a push to any shard, int64 `[]`."""
    export = counter_ops.sparse_table_export_counters
    periods = [
        shard.run(export, 0, 0, 0).its_period for shard in table_rows.shards
    ]
    latest = tf.reduce_max(tf.stack(periods))
    return tf.reduce_max(table_rows.regime.processes.gather(latest[tf.newaxis]))


def bytes_of(table_rows: TableRows) -> int:
    """The bytes of all counters in files, an int."""
    if table_rows.counting is None:
        return 0
    waiting = ops.TABLE_STATS.index("waiting")
    counters = sum(int(stats[waiting]) for stats in table_rows.stats())
    return counters * _core.COUNTER_BYTES


def chunks(
    table_rows: TableRows, period: int | tf.Tensor
) -> Generator[Chunk, None, None]:
    """All counters in chunks of bounded size; see `Processes.chunks`."""
    return table_rows.regime.processes.chunks(
        [CounterShard(shard, period) for shard in table_rows.shards],
        FIELDS,
        ROWS_OF_CHUNK,
    )


def import_counters(
    table_rows: TableRows,
    signs: tf.Tensor,
    counts: tf.Tensor,
    period: int | tf.Tensor,
) -> tf.Tensor:
    """Sets counters in the shards that this process accesses.

    Args:
      table_rows: TableRows with `counting`.
      signs: int64 `[n]`, of any shards.
      counts: int32 `[n, 1]`.
      period: int64 scalar, as of which they were saved.

    Returns:
      int64 scalar, the number of counters that this process has set.
    """
    return tf.add_n(
        [
            _import(shard, part, its_values["count"], period)
            for shard, part, its_values in table_rows.by_owner(
                signs, {"count": counts}
            )
        ]
    )


def _import(
    shard: TableShard,
    signs: tf.Tensor,
    counts: tf.Tensor,
    period: int | tf.Tensor,
    clear: bool = False,
) -> tf.Tensor:
    return shard.run(
        counter_ops.sparse_table_import_counters, signs, counts, period, clear
    )


def clear(shard: TableShard, period: int | tf.Tensor = 0) -> None:
    """Removes the counters of a shard, and sets its period."""
    _import(
        shard, tf.zeros([0], tf.int64), tf.zeros([0, 1], tf.int32), period, True
    )


class Check:
    """Checks counters that were saved; raises ValueError.

    Args:
      name: string, the table's name, for messages.
      counting: Counting of the table that was saved, or None.
      period: what is said to be the period.
    """

    def __init__(
        self, name: str, counting: Counting | None, period: object
    ) -> None:
        self._name = name
        if counting is None:
            raise self._damaged("the saved table's admission is not by count.")
        if type(period) is not int or not 0 <= period <= counting.last_period:
            raise self._damaged(
                f"their period must be from 0 to {counting.last_period}, but "
                f"is {period!r}."
            )
        self._most = counting.n - 1
        self._least = -self._most if period else 1
        self._seen = _core.SignSet()

    def add(
        self, signs: npt.NDArray[typing.Any], counts: npt.NDArray[typing.Any]
    ) -> None:
        """Checks the next ones, arrays `[n]` and `[n, 1]`."""
        if (
            signs.dtype != np.int64
            or counts.dtype != np.int32
            or signs.ndim != 1
            or counts.shape != (*signs.shape, 1)
        ):
            raise self._damaged(
                f"signs must be int64 [n] and counts int32 [n, 1], but they "
                f"are {signs.dtype} {list(signs.shape)} and {counts.dtype} "
                f"{list(counts.shape)}."
            )
        bad = counts[
            (counts == 0) | (counts < self._least) | (counts > self._most)
        ]
        if bad.size:
            raise self._damaged(
                f"counts must be from {self._least} to {self._most} and not "
                f"0, but one is {bad[0]}."
            )
        new = self._seen.add_from_the_end(signs)
        if not new.all():
            raise self._damaged(f"{signs[~new][0]} occurs twice.")

    def _damaged(self, what: str) -> ValueError:
        return ValueError(
            f"The counters of table {self._name!r} are damaged: {what}"
        )
