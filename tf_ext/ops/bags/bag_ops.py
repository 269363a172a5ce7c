# SPDX-License-Identifier: Apache-2.0
"""Ops between the signs of a batch and its bags.

They raise `tf.errors.InvalidArgumentError` for an argument of the wrong shape
or a position out of range.
"""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.ops._library import library
from tf_ext.ops._signs import to_signs
from tf_ext.ops._stock import bags as stock_bags
from tf_ext.ops._stock.scope import or_stock
from tf_ext.ops.bags.gradient_sum_ops import sum_segments

# CombineBagsGrad is not listed: a second derivative is an error, not zero.
for _op in ("CutBags", "UniqueByShard", "UniqueByShardEach"):
    tf.no_gradient(f"TfExt>{_op}")

UNIQUE_SIGNS = "tf_ext_unique_signs"
"""The name of the op that returns the signs of a `route_gradient`.

If the indices of a gradient come from an op of this name, the gradient is that
of a single pull, and its signs are distinct.
"""


@or_stock(stock_bags.unique_by_shard)
def unique_by_shard(
    signs: tf.Tensor, num_shards: int = 1, name: str | None = None
) -> typing.Any:
    """Finds the distinct signs of a batch, ordered by owning shard.

    Args:
      signs: int64 `[n]`, n less than 2^31.
      num_shards: int, the number of shards, 1 to 2^20.
      name: optional name of the operation.

    Returns:
      A named tuple: `unique` int64 `[u]`, the distinct signs, ordered by shard
      (with one shard by first occurrence, with several also in an order that
      suits their tables); `counts` int64 `[u]`, the number of occurrences of
      each in `signs`; `inverse` int32 `[n]`, the index in `unique` of each of
      `signs`; `split_sizes` int64 `[num_shards]`, how many of `unique` each
      shard owns.

    Example:
      >>> unique, counts, inverse, split_sizes = tf_ext.ops.unique_by_shard(
      ...     [7, -1, 7])
      >>> unique.numpy(), counts.numpy(), inverse.numpy()
      (array([ 7, -1]), array([2, 1]), array([0, 1, 0], dtype=int32))
      >>> split_sizes.numpy()
      array([2])
    """
    signs = to_signs(signs, "unique_by_shard")
    return library().tf_ext_unique_by_shard(
        signs, num_shards=num_shards, name=name
    )


@or_stock(stock_bags.unique_by_shard_each)
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
      >>> from tf_ext.ops.bags import bag_ops
      >>> found = bag_ops.unique_by_shard_each([[7, -1, 7], [5, 5]])
      >>> [x.numpy().tolist() for x in found.unique]
      [[7, -1], [5]]
      >>> [x.numpy().tolist() for x in found.inverse]
      [[0, 1, 0], [0, 0]]
    """
    signs = [to_signs(each, "unique_by_shard_each") for each in signs]
    return library().tf_ext_unique_by_shard_each(
        signs, num_shards=num_shards, name=name
    )


@or_stock(stock_bags.route_gradient)
def route_gradient(
    rows: tf.Tensor,
    shadow: tf.Tensor,
    signs: tf.Tensor,
    name: str | None = None,
) -> tf.Tensor:
    """Returns rows unchanged; routes their gradient to a shadow variable.

    The gradient of `shadow` is a `tf.IndexedSlices` with `signs` as indices;
    `rows` and `signs` have no gradient. (This is an op because TensorFlow keeps
    the graphs of `tf.custom_gradient`, and with them the tables, alive until
    the process ends.)

    Args:
      rows: float32 `[u, dim]`, the rows of `signs`.
      shadow: float32 `[1, dim]`, the shadow's value, which is not used.
      signs: int64 `[u]`, distinct. For a table with statistics complex128
        `[u]`, the bits of each sign and of two float32 statistics.
      name: optional name of the operation.

    Returns:
      float32 `[u, dim]`, the same as `rows`.

    Example:
      >>> shadow = tf.Variable([[0.0, 0.0]])
      >>> with tf.GradientTape() as tape:
      ...     rows = tf_ext.ops.route_gradient(
      ...         [[1.0, 2.0]], shadow.value(), tf.constant([-7], tf.int64))
      >>> tape.gradient(rows, shadow).indices.numpy()
      array([-7])
    """
    if getattr(signs, "dtype", None) != tf.complex128:
        signs = to_signs(signs, "route_gradient")
    return library().tf_ext_route_gradient(rows, shadow, signs, name=name)


@tf.RegisterGradient("TfExt>RouteGradient")
def _route_gradient_gradient(
    op: tf.Operation, gradient: tf.Tensor
) -> list[typing.Any]:
    rows, shadow, signs = op.inputs
    if isinstance(gradient, tf.IndexedSlices):
        # Of a layer that gathers rows.
        gradient = sum_segments(
            gradient.values,
            tf.cast(gradient.indices, tf.int32),
            tf.shape(rows, tf.int64)[0],
        )
    slices = tf.IndexedSlices(
        gradient,
        # A separate op, as nested functions would lose the signs otherwise.
        tf.identity(signs, name=UNIQUE_SIGNS),
        tf.shape(shadow, tf.int64),
    )
    return [None, slices, None]


@or_stock(stock_bags.cut_bags)
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
      >>> from tf_ext.ops.bags import bag_ops
      >>> parts = bag_ops.cut_bags(
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


@or_stock(stock_bags.combine_bags)
def combine_bags(
    rows: Sequence[tf.Tensor],
    inverse: Sequence[tf.Tensor],
    row_splits: Sequence[tf.Tensor],
    weights: Sequence[tf.Tensor] | None = None,
    *,
    combiners: Sequence[str],
    name: str | None = None,
) -> tf.Tensor:
    """Combines each bag of rows into a vector, for several columns at once.

    Bag b of column c holds the values from `row_splits[c * batch_size + b]` up
    to, but not including, `row_splits[c * batch_size + b + 1]`. With values x
    and weights w (1 without weights) the result is

    - "sum": sum(w x)
    - "mean": sum(w x) / sum(w)
    - "sqrtn": sum(w x) / sqrt(sum(w^2)), as `tf.nn.embedding_lookup_sparse`
    - "max": the maximum x in each dimension

    or zeros if the bag is empty or the divisor is zero. The gradient of "max"
    is divided equally between all values of the bag that equal the maximum.

    Args:
      rows: float32 `[u, dim]`, the distinct rows.
      inverse: int32 `[n]`, the row of each value: 0 to u - 1.
      row_splits: int64 `[len(combiners) * batch_size + 1]`: starts with 0,
        never decreases, ends with n.
      weights: float32 `[n]`, or `[0]` for none. None is `[0]`. Not for "max".
      combiners: list of strings, how the bags of each column are combined.
      name: optional name of the operation.

    Returns:
      float32 `[batch_size, len(combiners) * dim]`, the columns concatenated.

    Example:
      >>> tf_ext.ops.combine_bags(
      ...     rows=[[1.0, 2.0], [3.0, 6.0]], inverse=[0, 1, 1],
      ...     row_splits=[0, 2, 3, 3], combiners=["mean"]).numpy()
      array([[2., 4.],
             [3., 6.],
             [0., 0.]], dtype=float32)
    """
    if weights is None:
        weights = tf.zeros([0], tf.float32)
    return library().tf_ext_combine_bags(
        rows, inverse, row_splits, weights, combiners=combiners, name=name
    )


def combine_bags_grad(
    gradient: tf.Tensor,
    rows: Sequence[tf.Tensor],
    inverse: Sequence[tf.Tensor],
    row_splits: Sequence[tf.Tensor],
    weights: Sequence[tf.Tensor] | None = None,
    *,
    combiners: Sequence[str],
    name: str | None = None,
) -> typing.Any:
    """The gradient of `combine_bags`, which is registered with TensorFlow.

    Args:
      gradient: float32 `[batch_size, len(combiners) * dim]`, the gradient of
        the combined bags.
      rows: float32 `[u, dim]`.
      inverse: int32 `[n]`.
      row_splits: int64 `[len(combiners) * batch_size + 1]`.
      weights: float32 `[n]`, or `[0]` for none. None is `[0]`.
      combiners: list of strings.
      name: optional name of the operation.

    Returns:
      A named tuple: `rows_gradient` float32 `[u, dim]`; `weights_gradient`
      float32 `[n]`, or `[0]` without weights.

    Example:
      >>> from tf_ext.ops.bags import bag_ops
      >>> bag_ops.combine_bags_grad(
      ...     [[1.0], [4.0]], rows=[[1.0], [2.0]], inverse=[0, 1, 1],
      ...     row_splits=[0, 2, 3], combiners=["mean"]).rows_gradient.numpy()
      array([[0.5],
             [4.5]], dtype=float32)
    """
    if weights is None:
        weights = tf.zeros([0], tf.float32)
    return library().tf_ext_combine_bags_grad(
        gradient,
        rows,
        inverse,
        row_splits,
        weights,
        combiners=combiners,
        name=name,
    )


@tf.RegisterGradient("TfExt>CombineBags")
def _combine_bags_gradient(
    op: tf.Operation, gradient: tf.Tensor
) -> list[typing.Any]:
    rows, inverse, row_splits, weights = op.inputs
    rows_gradient, weights_gradient = combine_bags_grad(
        gradient,
        rows,
        inverse,
        row_splits,
        weights,
        combiners=op.get_attr("combiners"),
    )
    return [rows_gradient, None, None, weights_gradient]
