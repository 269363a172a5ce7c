# SPDX-License-Identifier: Apache-2.0
"""Ops that evict rows, and decay the statistics by which rows are evicted."""

from collections.abc import Sequence

import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>SparseTableDecay")


def sparse_table_evict(
    handle: tf.Tensor,
    now: int | tf.Tensor,
    *,
    unseen: int | tf.Tensor = 0,
    capacity: int | tf.Tensor = -1,
    by_show: bool | tf.Tensor = False,
    score: Sequence[float] | tf.Tensor = (),
    require_all: bool | tf.Tensor = False,
    policy: str = "",
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    r"""Removes rows based on the time of their last push or their statistics.

    If rows have `last_seen`, a row that was never pushed, or is newer than both
    `now` and the table's last push, gets the later of these as its time.

    Args:
      handle: resource `[]`, of a table whose config has the fields that the
        eviction reads: `last_seen`, `show` or `click`.
      now: int64 `[]`, the current step, or the current time in seconds since
        1970, depending on the config; without effect for a table without
        `last_seen`.
      unseen: int64 `[]`; rows that were not pushed for this number of steps or
        seconds are evicted. 0: none of them, as required with `capacity`.
      capacity: int64 `[]`, the number of rows that remain: the most recently
        pushed ones, and among rows with the same time those with the larger
        hashes of their signs. -1 if `unseen` or `score` is given.
      by_show: bool `[]`, whether the rows that remain under `capacity` are
        instead those with the highest `show`.
      score: float64 `[0]` or `[3]`: threshold, show_weight and click_weight.
        Rows with `show_weight * show + click_weight * click < threshold` are
        evicted.
      require_all: bool `[]`, whether rows are evicted only if both `unseen` and
        `score` apply to them, rather than one of the two.
      policy: string, the name of a policy of cc/core/table/eviction, which says
        what the arguments above mean to it; "": they choose it.
      name: optional name of the operation.

    Returns:
      A named tuple: `examined` and `evicted`, int64 `[]`, numbers of rows.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=1\ninitializer=zeros\nlast_seen=step\nname=items\n"
      ...     "optimizer=sgd")
      >>> for step in (1, 2, 3):
      ...     updated = tf_ext.ops.sparse_table_push(
      ...         handle, [10 + step], [[1.0]], hyperparameters=[0.5, 0.0],
      ...         step=step)
      >>> [int(n) for n in tf_ext.ops.sparse_table_evict(handle, 3, unseen=1)]
      [3, 2]
    """
    return library().tf_ext_sparse_table_evict(
        handle,
        now,
        unseen,
        capacity,
        by_show,
        tf.convert_to_tensor(score, tf.float64),
        require_all,
        policy=policy,
        name=name,
    )


def sparse_table_decay(
    handle: tf.Tensor, factor: float | tf.Tensor, name: str | None = None
) -> tf.Tensor:
    r"""Multiplies the statistics of all rows of a table by a factor.

    All rows change, so the next incremental snapshot contains all of them.

    Args:
      handle: resource `[]`, of a table whose config has `statistics`.
      factor: float64 `[]`, above 0 and at most 1.
      name: optional name of the operation.

    Returns:
      int64 `[]`, the number of rows.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=1\ninitializer=zeros\nname=items\noptimizer=sgd\n"
      ...     "statistics=show")
      >>> updated = tf_ext.ops.sparse_table_push(
      ...     handle, [7], [[1.0]], [[4.0]], hyperparameters=[0.5, 0.0])
      >>> int(tf_ext.ops.sparse_table_decay(handle, 0.5))
      1
      >>> _, _, [show] = tf_ext.ops.sparse_table_export(
      ...     handle, field_names=["show"], field_dtypes=[tf.float32])
      >>> show.numpy()
      array([[2.]], dtype=float32)
    """
    return library().tf_ext_sparse_table_decay(handle, factor, name=name)
