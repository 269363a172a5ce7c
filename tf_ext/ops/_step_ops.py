# SPDX-License-Identifier: Apache-2.0
"""Ops on all tables of a step: what their number costs is paid once.

They raise what the ops on a single table do, and name the table by its place in
the lists.
"""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.ops._library import library
from tf_ext.ops._signs import to_signs
from tf_ext.ops._stock import bags as stock_bags
from tf_ext.ops._stock.scope import stock_lookup

for _op in (
    "CutBags",
    "UniqueByShardEach",
    "SparseTablesPull",
    "SparseTablesPush",
):
    tf.no_gradient(f"TfExt>{_op}")


def cut_bags(
    signs: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor,
    columns: int,
    runs: Sequence[tuple[int, int]],
    weighted: Sequence[bool],
    name: str | None = None,
) -> typing.Any:
    """Copies the bags of ranges of columns. No gradient flows.

    Args:
      signs: int64 `[n]`, of all bags, by column and then by example.
      row_splits: int64 `[columns * batch_size + 1]`, where each bag begins, and
        the end of the last one: never decreases, from 0 to n.
      weights: float32 `[n]`, or `[0]` for weights of 1.
      columns: int, the number of columns.
      runs: list of `(begin, end)`, ints, the columns of each range.
      weighted: list of bool, whether the weights of each range are wanted.
      name: optional name of the operation.

    Returns:
      A named tuple of lists, of one tensor for each range: `part_signs` int64
      `[n_i]`; `part_row_splits` int64 `[(end - begin) * batch_size + 1]`,
      starting with 0; `part_weights` float32 `[n_i]`, or `[0]`.

    Raises:
      tf.errors.InvalidArgumentError: an argument has another shape, or a range
        ends outside of the columns or signs.

    Example:
      >>> from tf_ext.ops import _step_ops
      >>> parts = _step_ops.cut_bags(
      ...     [7, 8, 9], [0, 1, 3], [], columns=2, runs=[(0, 1), (1, 2)],
      ...     weighted=[False, False])
      >>> [x.numpy().tolist() for x in parts.part_signs]
      [[7], [8, 9]]
      >>> [x.numpy().tolist() for x in parts.part_row_splits]
      [[0, 1], [0, 2]]
    """
    begins, ends = zip(*runs)
    return library().tf_ext_cut_bags(
        to_signs(signs, "cut_bags"),
        tf.convert_to_tensor(row_splits, tf.int64),
        tf.convert_to_tensor(weights, tf.float32),
        N=len(runs),
        columns=columns,
        begins=list(begins),
        ends=list(ends),
        weighted=list(weighted),
        name=name,
    )


def unique_by_shard_each(
    signs: Sequence[tf.Tensor], num_shards: int = 1, name: str | None = None
) -> typing.Any:
    """What `unique_by_shard` returns for each of several vectors.

    Args:
      signs: list of int64 `[n_i]`, not empty, each n_i less than 2^31.
      num_shards: int, the number of shards, 1 to 2^20.
      name: optional name of the operation.

    Returns:
      A named tuple of lists, of one tensor for each of `signs`: `unique`,
      `counts`, `inverse` and `split_sizes`.

    Raises:
      tf.errors.InvalidArgumentError: one of `signs` is not a vector.

    Example:
      >>> from tf_ext.ops import _step_ops
      >>> found = _step_ops.unique_by_shard_each([[7, -1, 7], [5, 5]])
      >>> [x.numpy().tolist() for x in found.unique]
      [[7, -1], [5]]
      >>> [x.numpy().tolist() for x in found.inverse]
      [[0, 1, 0], [0, 0]]
    """
    signs = [to_signs(each, "unique_by_shard_each") for each in signs]
    if stock_lookup() is not None:
        found = [stock_bags.unique_by_shard(s, num_shards) for s in signs]
        return stock_bags.Unique(*map(list, zip(*found)))
    return library().tf_ext_unique_by_shard_each(
        signs, num_shards=num_shards, name=name
    )


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
      >>> from tf_ext.ops import _step_ops
      >>> handles = [tf_ext.ops.sparse_table_handle(
      ...     f"dim={dim}\ninitializer=constant\ninitializer.value=0.5\n"
      ...     f"name=t{dim}\noptimizer=sgd") for dim in (1, 2)]
      >>> [rows.numpy().tolist() for rows in _step_ops.sparse_tables_pull(
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
      name: optional name of the operation.

    Returns:
      int64 `[N]`, the number of updates made in each table.

    Raises:
      tf.errors.InvalidArgumentError: an argument has another shape, or is out
        of its range, such as a gradient that is not finite.

    Example:
      >>> from tf_ext.ops import _step_ops
      >>> handles = [tf_ext.ops.sparse_table_handle(
      ...     f"dim={dim}\ninitializer=zeros\nname=t{dim}\noptimizer=sgd")
      ...     for dim in (1, 2)]
      >>> _step_ops.sparse_tables_push(
      ...     handles, [[7], [8, 9]], [[[1.0]], [[1.0, 2.0], [3.0, 4.0]]],
      ...     [None, None], [0.5, 0.0, 0.1, 0.0], [2, 2], step=1).numpy()
      array([1, 2])
      >>> tf_ext.ops.sparse_table_pull(handles[0], [7], dim=1).numpy()
      array([[-0.5]], dtype=float32)
    """
    none = None
    if any(each is None for each in statistics):
        none = tf.zeros([0, 0], tf.float32)
    return library().tf_ext_sparse_tables_push(
        handles,
        [to_signs(each, "sparse_tables_push") for each in signs],
        gradients,
        [none if each is None else each for each in statistics],
        hyperparameters,
        step,
        time,
        counts=list(counts),
        name=name,
    )
