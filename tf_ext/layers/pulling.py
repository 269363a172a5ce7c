# SPDX-License-Identifier: Apache-2.0
"""From the bags of a batch to the rows of tables, whose gradient goes back."""

import dataclasses
import typing
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf

from tf_ext import ops
from tf_ext._keras import tf_variable
from tf_ext.feature_column import Bags, bag_blocks
from tf_ext.feature_column.column import Column
from tf_ext.layers import clicks
from tf_ext.regimes import (
    PullPlan,
    PullRequest,
    Regime,
    current_step,
    plan_pulls,
)
from tf_ext.regimes.shared_rows import counting_readers, with_shared
from tf_ext.tables.sparse_table import SparseTable


class TableBags(typing.NamedTuple):
    """The bags of a table's columns.

    Attributes:
      key: equal for equal bags.
      bags: Bags.
    """

    key: tuple[int, ...]
    bags: Bags


class ColumnSets:
    """Arranges the columns of several tables for one call of the hash op.

    Columns are ordered by the tables they belong to, so that a table's part
    of the hashed batch is one slice, or a few.

    Args:
      columns: a list of columns for each table.
    """

    def __init__(self, columns: Sequence[Sequence[Column]]) -> None:
        members: dict[Column, list[int]] = {}
        for index, its_columns in enumerate(columns):
            for column in its_columns:
                members.setdefault(column, []).append(index)
        first = {column: i for i, column in enumerate(members)}
        # Sequences are hashed apart from the others, and follow them.
        self.columns = sorted(
            members,
            key=lambda c: (c.sequence is not None, members[c], first[c]),
        )
        place = {column: i for i, column in enumerate(self.columns)}
        self._places = [
            tuple(place[column] for column in its_columns)
            for its_columns in columns
        ]

    def split(self, bags: Bags) -> list[TableBags]:
        """The bags of each table, in the order of its columns.

        Args:
          bags: Bags of `self.columns`.
        """
        sets = list(dict.fromkeys(self._places))
        weighted = [column.is_weighted for column in self.columns]
        found = dict(zip(sets, bag_blocks.select_each(bags, weighted, sets)))
        return [TableBags(places, found[places]) for places in self._places]


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A batch of a layer, for which no row has been read.

    Attributes:
      bags: list of TableBags, one for each table.
      plans: list of PullPlan, one for each table; tables that read the same
        columns have one.
      masks: dict of bool `[batch_size, length]`, by sequence.
      error: string scalar, the error of the batch, or ""; None where it has
        been raised already.
    """

    bags: Sequence[TableBags]
    plans: Sequence[PullPlan]
    masks: Mapping[Column, tf.Tensor]
    error: tf.Tensor | None

    def distinct_plans(self) -> list[PullPlan]:
        """The plans, each once."""
        return list(dict.fromkeys(self.plans))

    def tensors(self) -> list[tf.Tensor]:
        """What a call of the layer needs but routes, for `with_tensors`."""
        found = [t for t in (self.error, *self.masks.values()) if t is not None]
        for bags in dict(self.bags).values():
            found += [bags.row_splits, bags.weights]
        for plan in self.distinct_plans():
            found += plan.tensors()
        return found

    def with_tensors(self, tensors: Iterable[tf.Tensor]) -> "Prepared":
        """Another batch of the same layer, whose plans have no routes.

        Args:
          tensors: those that `tensors` returned for it.
        """
        rest = iter(tensors)
        error = None if self.error is None else next(rest)
        masks = {column: next(rest) for column in self.masks}
        # The plans hold the distinct ones.
        no_signs = tf.zeros([0], tf.int64)
        bags = {
            key: Bags(no_signs, next(rest), next(rest))
            for key in dict(self.bags)
        }
        plans = {
            plan: plan.with_tensors(rest) for plan in self.distinct_plans()
        }
        return Prepared(
            [TableBags(key, bags[key]) for key, _ in self.bags],
            [plans[plan] for plan in self.plans],
            masks,
            error,
        )


def plan_tables(
    tables: Sequence[SparseTable],
    bags: Sequence[TableBags],
    its_clicks: tf.Tensor | None,
    shares_rows: bool,
) -> list[PullPlan]:
    """The plans of a batch; tables that read the same columns have one.

    Args:
      tables: list of SparseTable.
      bags: list of TableBags, one for each table.
      its_clicks: float32 `[batch_size]`, or None.
      shares_rows: bool, as of `Exchange`.

    Returns:
      List of PullPlan, one for each table.
    """
    kinds = [
        (table.rows.num_shards, table.shared_rows if shares_rows else 0)
        for table in tables
    ]
    signs: dict[tuple[int, int], dict[typing.Any, tf.Tensor]] = {}
    for kind, one in zip(kinds, bags):
        signs.setdefault(kind, {}).setdefault(one.key, one.bags.signs)
    plans = {
        kind: dict(
            zip(of_columns, plan_pulls(list(of_columns.values()), *kind))
        )
        for kind, of_columns in signs.items()
    }
    found = []
    for table, kind, one in zip(tables, kinds, bags):
        plan = plans[kind][one.key]
        counts_clicks = its_clicks is not None and "click" in table.statistics
        if counts_clicks and plan.counted is None:
            plan.count(clicks.of_signs(its_clicks, one.bags.row_splits))
        found.append(plan)
    return found


def pull_differentiable(
    regime: Regime,
    requests: Sequence[PullRequest],
    trainable: bool = True,
    error: tf.Tensor | None = None,
) -> list[tuple[tf.Tensor, tf.Tensor | None]]:
    """Reads rows so that their gradient goes to the tables' shadows.

    Args:
      regime: Regime of the tables.
      requests: list of PullRequest of distinct signs.
      trainable: bool; if False no gradient flows.
      error: string scalar, the error of the batch, or ""; None where it has
        been raised already.

    Returns:
      List of `(weights [n, dim], statistics)`, float32; the statistics are
      `[n, s]`, without a gradient, or None where none are requested.
    """
    pairs = []
    pulled = regime.exchange.pull(requests, error, current_step().rows_after)
    for request, rows in zip(requests, pulled):
        dim, statistics = request.table.dim, None
        if request.statistics:
            rows, statistics = rows[:, :dim], rows[:, dim:]
        if trainable and request.table.trainable and regime.exchange.trains:
            rows = _attach_gradient(request, rows)
        if request.plan.shared is not None:
            rows = with_shared(request.plan, rows)
        pairs.append((rows, statistics))
    return pairs


def _attach_gradient(request: PullRequest, pulled: tf.Tensor) -> tf.Tensor:
    shadow, plan = request.table.shadow, request.plan
    counts = request.table.statistics_width > 0
    if counts and plan.counted is None:
        plan.count()
    if counts and plan.shared is not None:
        plan = counting_readers(plan, pulled)
    return ops.route_gradient(
        pulled,
        tf_variable(shadow),
        plan.counted if counts else plan.signs,
    )
