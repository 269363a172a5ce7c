# SPDX-License-Identifier: Apache-2.0
"""Plans of pulls, and rows whose gradient goes to the tables."""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext import ops
from tf_ext._keras import IS_KERAS_3
from tf_ext.layers import clicks
from tf_ext.layers.column_sets import Part
from tf_ext.regimes import (
    PullPlan,
    PullRequest,
    Regime,
    current_step,
    plan_pulls,
)
from tf_ext.tables.sparse_table import SparseTable


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
    pulled = regime.pull(requests, error, current_step().rows_after)
    for request, rows in zip(requests, pulled):
        dim, statistics = request.table.dim, None
        if request.statistics:
            rows, statistics = rows[:, :dim], rows[:, dim:]
        if trainable and request.table.trainable and regime.trains:
            rows = _attach_gradient(request, rows)
        pairs.append((rows, statistics))
    return pairs


def plan_tables(
    tables: Sequence[SparseTable],
    parts: Sequence[Part],
    its_clicks: tf.Tensor | None,
) -> list[PullPlan]:
    """The plans of a batch; tables that read the same columns have one.

    Args:
      tables: list of SparseTable.
      parts: list of Part, one for each table.
      its_clicks: float32 `[batch_size]`, or None.

    Returns:
      List of PullPlan, one for each table.
    """
    signs: dict[int, dict[typing.Any, tf.Tensor]] = {}
    for table, part in zip(tables, parts):
        of_columns = signs.setdefault(table.rows.num_shards, {})
        of_columns.setdefault(part.key, part.bags.signs)
    plans = {
        num_shards: dict(
            zip(of_columns, plan_pulls(list(of_columns.values()), num_shards))
        )
        for num_shards, of_columns in signs.items()
    }
    found = []
    for table, part in zip(tables, parts):
        plan = plans[table.rows.num_shards][part.key]
        counts_clicks = its_clicks is not None and "click" in table.statistics
        if counts_clicks and plan.counted is None:
            plan.count(clicks.of_signs(its_clicks, part.bags.row_splits))
        found.append(plan)
    return found


def _attach_gradient(request: PullRequest, pulled: tf.Tensor) -> tf.Tensor:
    shadow, plan = request.table.shadow, request.plan
    counts = request.table.statistics_width > 0
    if counts and plan.counted is None:
        plan.count()
    return ops.route_gradient(
        pulled,
        shadow.value if IS_KERAS_3 else shadow,
        plan.counted if counts else plan.signs,
    )
