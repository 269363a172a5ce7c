# SPDX-License-Identifier: Apache-2.0
"""Rows of shards, read and updated: one op on each device, for all tables."""

import collections
import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.ops.table import step_ops
from tf_ext.regimes import clock
from tf_ext.regimes.step_context import StepNumber
from tf_ext.regimes.table_interface import Rows


class RowsWanted(typing.NamedTuple):
    """What is read of a table.

    Attributes:
      table_rows: TableRows.
      signs: int64 `[n]`, ordered by shard.
      split_sizes: int64 `[num_shards]`, the number of signs of each shard; not
        used if this process accesses one shard only.
      insert: bool or bool scalar tensor, whether absent signs are inserted.
      dim: int, the table's dim.
      statistics: int, how many statistics follow the weights: 0, or how many
        the table has.
    """

    table_rows: Rows
    signs: tf.Tensor
    split_sizes: tf.Tensor | None
    insert: bool | tf.Tensor
    dim: int
    statistics: int = 0


class Starts(typing.NamedTuple):
    """The shared rows that new rows of a table start from.

    Attributes:
      signs: int64 `[k]`, distinct.
      rows: float32 `[k, dim]`.
    """

    signs: tf.Tensor
    rows: tf.Tensor


class RowsUpdate(typing.NamedTuple):
    """What a table is updated with.

    Attributes:
      table_rows: TableRows.
      signs: int64 `[n]`, distinct, ordered by shard.
      split_sizes: as of RowsWanted.
      gradients: float32 `[n, dim]`.
      statistics: float32 `[n, s]`, as of `TableGradient`, or None.
      starts: Starts for all shards, of a table with shared rows; or None.
    """

    table_rows: Rows
    signs: tf.Tensor
    split_sizes: tf.Tensor | None
    gradients: tf.Tensor
    statistics: tf.Tensor | None = None
    starts: Starts | None = None


class Hyperparameters(typing.NamedTuple):
    """Those of the rules of several tables, one after the other.

    Attributes:
      values: float64 `[sum(counts)]`.
      counts: list of int, how many each table has.
    """

    values: tf.Tensor
    counts: list[int]

    def select(self, places: list[int]) -> "Hyperparameters":
        """Those of some of the tables."""
        if places == list(range(len(self.counts))):
            return self
        parts = tf.split(self.values, self.counts)
        return Hyperparameters(
            tf.concat([parts[place] for place in places], 0),
            [self.counts[place] for place in places],
        )


def pull(wanted: list[RowsWanted]) -> list[tf.Tensor]:
    """Reads rows from all shards of several tables.

    Args:
      wanted: list of RowsWanted.

    Returns:
      List of float32 `[n, dim + statistics]`.
    """
    split = _Splits()
    signs = [
        split(each.table_rows, each.signs, each.split_sizes) for each in wanted
    ]
    rows: list[list[typing.Any]] = [[None] * len(parts) for parts in signs]
    for device, places in _by_device(
        each.table_rows for each in wanted
    ).items():
        its = [wanted[i] for i, _ in places]
        flags = _flags([each.insert for each in its])
        with tf.device(device):
            pulled = step_ops.sparse_tables_pull(
                _handles(wanted, places),
                [signs[i][shard] for i, shard in places],
                flags,
                [each.dim for each in its],
                [each.statistics for each in its],
            )
        for (i, shard), part in zip(places, pulled):
            rows[i][shard] = part
    return [
        parts[0] if len(parts) == 1 else tf.concat(parts, 0) for parts in rows
    ]


def push(
    updates: list[RowsUpdate],
    hyperparameters: Hyperparameters,
    step: tf.Tensor,
    time: tf.Tensor | None = None,
    number: StepNumber | None = None,
) -> tf.Tensor:
    """Updates rows in all shards of several tables.

    Args:
      updates: list of RowsUpdate, not empty.
      hyperparameters: Hyperparameters of their rules.
      step: int64 scalar, counting from 1.
      time: int64 scalar, in seconds since 1970, for the rows that record it.
        None: the clock of each device that holds such rows.
      number: StepNumber, as of `Exchange.push`.

    Returns:
      int64 `[len(updates)]`, the number of rows updated in each table.
    """
    split = _Splits()
    parts = [
        [
            [None] * len(one.table_rows.shards)
            if value is None
            else split(one.table_rows, value, one.split_sizes)
            for value in (one.signs, one.gradients, one.statistics)
        ]
        for one in updates
    ]
    numbers: dict[str, typing.Any] = {}
    if number is not None:
        part = number.part()  # Not by `:=`, of which AutoGraph warns.
        if part is not None:
            numbers = {"numbers": number.tensor, "part": part}
    totals = []
    for device, places in _by_device(
        each.table_rows for each in updates
    ).items():
        its = hyperparameters.select([i for i, _ in places])
        signs, gradients, statistics = (
            [parts[i][value][shard] for i, shard in places]
            for value in range(3)
        )
        records = any(updates[i].table_rows.records_seconds for i, _ in places)
        with tf.device(device):
            present = time
            if time is None:
                present = clock.seconds() if records else 0
            updated = step_ops.sparse_tables_push(
                _handles(updates, places),
                signs,
                gradients,
                statistics,
                its.values,
                its.counts,
                step,
                present,
                [updates[i].starts for i, _ in places],
                **numbers,
            )
        totals.append(_spread(updated, [i for i, _ in places], len(updates)))
    return totals[0] if len(totals) == 1 else tf.add_n(totals)


class _Splits:
    """Divides tensors among shards: those that tables share once."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], list[tf.Tensor]] = {}

    def __call__(
        self, table_rows: Rows, value: tf.Tensor, sizes: tf.Tensor | None
    ) -> list[tf.Tensor]:
        count = len(table_rows.shards)
        if count == 1:
            return [value]
        key = id(value), id(sizes)
        if key not in self._parts:
            self._parts[key] = tf.split(value, sizes, num=count)
        return self._parts[key]


def _by_device(
    tables: typing.Iterable[Rows],
) -> dict[str, list[tuple[int, int]]]:
    """The places of shards on each device: `(table, shard)`."""
    places = collections.defaultdict(list)
    for i, table_rows in enumerate(tables):
        for index, shard in enumerate(table_rows.shards):
            places[shard.device].append((i, index))
    return places


def _handles(
    of_tables: Sequence[RowsWanted | RowsUpdate], places: list[tuple[int, int]]
) -> list[tf.Tensor]:
    return [
        of_tables[i].table_rows.shards[j].resource_handle for i, j in places
    ]


def _flags(values: list[bool | tf.Tensor]) -> list[bool] | tf.Tensor:
    """Flags `[n]`; no tensor yet if it can be made where it is needed."""
    if any(tf.is_tensor(value) for value in values):
        return tf.stack([tf.cast(value, tf.bool) for value in values])
    return [bool(value) for value in values]


def _spread(values: tf.Tensor, places: list[int], size: int) -> tf.Tensor:
    """Puts values in their places of a vector, zeros elsewhere."""
    if places == list(range(size)):
        return values
    return tf.scatter_nd(tf.constant(places)[:, tf.newaxis], values, [size])
