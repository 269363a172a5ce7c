# SPDX-License-Identifier: Apache-2.0
"""Ops on all tables of a step: what their number costs is paid once.

They raise what the ops on a single table do, and name the table by its place in
the lists.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_ext.ops._library import library
from tf_ext.ops._signs import to_signs

tf.no_gradient("TfExt>SparseTablesPull")
tf.no_gradient("TfExt>SparseTablesPush")


def sparse_tables_pull(
    handles: Sequence[tf.Tensor],
    signs: Sequence[tf.Tensor],
    training: Sequence[bool] | tf.Tensor,
    dims: Sequence[int],
    statistics: Sequence[int],
    name: str | None = None,
) -> list[tf.Tensor]:
    r"""Reads the weights of signs, and their statistics, from several tables.

    All arguments are checked before a row is inserted.

    Args:
      handles: list of resource `[]`, the tables, on one device.
      signs: list of int64 `[n_i]`, any values, possibly repeated.
      training: bool `[N]`, of each table, whether absent signs are inserted.
      dims: list of int, the dims of the tables.
      statistics: list of int, how many statistics are read of each table: 0, or
        how many it has.
      name: optional name of the operation.

    Returns:
      List of float32 `[n_i, dims[i] + statistics[i]]`.

    Raises:
      tf.errors.InvalidArgumentError: an argument has another shape, or dims or
        statistics are not those of a table.

    Example:
      >>> from tf_ext.ops.table import step_ops
      >>> handles = [tf_ext.ops.sparse_table_handle(
      ...     f"dim={dim}\ninitializer=constant\ninitializer.value=0.5\n"
      ...     f"name=t{dim}\noptimizer=sgd") for dim in (1, 2)]
      >>> [rows.numpy().tolist() for rows in step_ops.sparse_tables_pull(
      ...     handles, [[7, 8], [9]], [False, True], [1, 2], [0, 0])]
      [[[0.5], [0.5]], [[0.5, 0.5]]]
    """
    return library().tf_ext_sparse_tables_pull(
        handles,
        [to_signs(each, "sparse_tables_pull") for each in signs],
        training,
        dims=list(dims),
        statistics=list(statistics),
        name=name,
    )


def sparse_tables_push(
    handles: Sequence[tf.Tensor],
    signs: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor],
    statistics: Sequence[tf.Tensor | None],
    hyperparameters: tf.Tensor,
    counts: Sequence[int],
    step: int | tf.Tensor,
    time: int | tf.Tensor = 0,
    starts: Sequence[tuple[tf.Tensor, tf.Tensor] | None] = (),
    numbers: tf.Tensor | None = None,
    part: int = 0,
    name: str | None = None,
) -> tf.Tensor:
    r"""Updates the rows of signs of several tables with their update rules.

    If it fails because of an argument, no table is changed.

    Args:
      handles: list of resource `[]`, the tables, on one device. One that occurs
        more than once is updated in this order.
      signs: list of int64 `[n_i]`, as of `sparse_table_push`.
      gradients: list of float32 `[n_i, dim of the table]`.
      statistics: list of float32 `[n_i, s_i]`, as of `sparse_table_push`, or
        None.
      hyperparameters: float64 `[sum(counts)]`, those of each table's rule.
      counts: list of int, how many of them each table's rule has.
      step: int64 `[]`, the number of this update, counted from 1.
      time: int64 `[]`, in seconds since 1970, for tables whose `last_seen` is
        in seconds.
      starts: list of `(signs [k], rows [k, dim])` for each table: of those with
        `unknown=shared` the shared rows that new rows start from, or None.
        Empty: none of any table.
      numbers: int64 `[2]`, of a step that may run again: its number, which is
        its own, and that of the oldest step that may run again. Tables that
        this push has updated before, or that come after the end of the step,
        are left as they are. None: all are updated.
      part: int, at least 0, tells the pushes of a step apart.
      name: optional name of the operation.

    Returns:
      int64 `[N]`, the number of updates made in each table.

    Raises:
      tf.errors.InvalidArgumentError: an argument has another shape, or is out
        of its range, such as a gradient that is not finite.

    Example:
      >>> from tf_ext.ops.table import step_ops
      >>> handles = [tf_ext.ops.sparse_table_handle(
      ...     f"dim={dim}\ninitializer=zeros\nname=t{dim}\noptimizer=sgd")
      ...     for dim in (1, 2)]
      >>> step_ops.sparse_tables_push(
      ...     handles, [[7], [8, 9]], [[[1.0]], [[1.0, 2.0], [3.0, 4.0]]],
      ...     [None, None], [0.5, 0.0, 0.1, 0.0], [2, 2], step=1).numpy()
      array([1, 2])
      >>> tf_ext.ops.sparse_table_pull(handles[0], [7], dim=1).numpy()
      array([[-0.5]], dtype=float32)
      >>> [int(step_ops.sparse_tables_push(
      ...     handles[:1], [[7]], [[[1.0]]], [None], [0.5, 0.0], [2], step=2,
      ...     numbers=each)[0]) for each in ([3, 3], [4, 3], [3, 3], [2, 2])]
      [1, 1, 0, 0]
    """
    none = None
    if any(each is None for each in statistics):
        none = tf.zeros([0, 0], tf.float32)
    starting = {i: one for i, one in enumerate(starts) if one is not None}
    return library().tf_ext_sparse_tables_push(
        handles,
        [to_signs(each, "sparse_tables_push") for each in signs],
        gradients,
        [none if each is None else each for each in statistics],
        hyperparameters,
        step,
        time,
        [its_signs for its_signs, _ in starting.values()],
        [rows for _, rows in starting.values()],
        [] if numbers is None else [numbers],
        counts=list(counts),
        starts_of=list(starting),
        part=part,
        name=name,
    )
