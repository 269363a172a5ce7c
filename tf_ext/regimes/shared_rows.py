# SPDX-License-Identifier: Apache-2.0
"""Rows that ids without one share: tables with `unknown="shared"`.

They are rows of the table under signs of their own, which a pull asks for
beside those of the batch, as they may be in other shards. The core reads NaN
for a sign without a row, and the shared row takes its place here. So a gradient
goes to the row that was read, as the index says.
"""

import dataclasses

import tensorflow as tf

from tf_ext import ops
from tf_ext.regimes import counted_signs
from tf_ext.regimes.plan import PullPlan, shared_signs
from tf_ext.regimes.table_interface import Table


def is_absent(rows: tf.Tensor) -> tf.Tensor:
    """Whether signs have no row, bool `[n, 1]`, by what a pull has read."""
    return tf.math.is_nan(rows[:, :1])


def with_shared(plan: PullPlan, rows: tf.Tensor) -> tf.Tensor:
    """Puts the shared rows in the places of those that are absent.

    Args:
      plan: PullPlan of a table with shared rows.
      rows: float32 `[u, dim]`, of the signs of the plan.
    """
    return tf.where(is_absent(rows), tf.gather(rows, plan.shared), rows)


def counting_readers(plan: PullPlan, rows: tf.Tensor) -> PullPlan:
    """The plan with statistics of the shared rows: those of their readers.

    Args:
      plan: PullPlan with statistics.
      rows: float32 `[u, dim]`, as of `with_shared`.
    """
    own = tf.convert_to_tensor(plan.statistics)
    readers = tf.where(is_absent(rows), own, 0.0)
    count = tf.size(plan.signs, tf.int64)
    statistics = own + ops.sum_segments(readers, plan.shared, count)
    counted = counted_signs.join(plan.signs, statistics)
    found = dataclasses.replace(plan, statistics=statistics, counted=counted)
    found.attach(counted)
    return found


def to_rows_read(
    table: Table,
    plan: PullPlan,
    rows: tf.Tensor,
    indices: tf.Tensor,
    gradients: tf.Tensor,
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """The gradients of the rows that signs read now.

    Args:
      table: SparseTable with shared rows.
      plan: PullPlan of the signs.
      rows: float32 `[u, dim]`, what a pull has read for the plan.
      indices: int64 `[n]`, the signs; or as of `counted_signs`.
      gradients: float32 `[n, dim]`.

    Returns:
      List of `(indices, values)`, as of `Exchange.merge`.
    """
    signs, statistics = counted_signs.split(indices, table.statistics_width)
    absent = tf.cast(tf.gather(is_absent(rows), plan.inverse), tf.float32)
    shared = shared_signs(signs, table.shared_rows)
    return [
        # Products, as what is not finite has to be refused.
        (counted_signs.join(signs, statistics), gradients * (1.0 - absent)),
        (counted_signs.join(shared, statistics * absent), gradients * absent),
    ]
