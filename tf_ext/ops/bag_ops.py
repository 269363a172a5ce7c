"""Ops between the signs of a batch and its bags.

They raise `tf.errors.InvalidArgumentError` for an argument of the wrong shape
or a position out of range.
"""

import tensorflow as tf

from tf_ext.ops._library import library
from tf_ext.ops._signs import to_signs

# CombineBagsGrad is not listed: a second derivative is an error, not zero.
tf.no_gradient("TfExt>UniqueByShard")

UNIQUE_BY_SHARD = "TfExt>UniqueByShard"
"""The type of the op that puts signs in the order of their shards."""

UNIQUE_SIGNS = "tf_ext_unique_signs"
"""What the op is called that gives the signs of a `route_gradient`.

A gradient that still carries the name comes from one pull alone: its signs are
distinct.
"""


def unique_by_shard(signs, num_shards=1, name=None):
    """Finds the distinct signs of a batch, by the shards that own them.

    Args:
      signs: int64 `[n]`, n less than 2^31.
      num_shards: int, the number of shards, 1 to 2^20.
      name: optional name of the operation.

    Returns:
      A named tuple: `unique` int64 `[u]`, the distinct signs, by shard, of one
      shard by first appearance, of several in an order that suits their
      tables; `counts` int64 `[u]`, how often each is in
      `signs`; `inverse` int32 `[n]`, where each of `signs` is in `unique`;
      `split_sizes` int64 `[num_shards]`, how many of `unique` each shard owns.

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


def route_gradient(rows, shadow, signs, name=None):
    """Passes rows on, and sends their gradient to a table's shadow variable.

    The gradient of `shadow` is a `tf.IndexedSlices` at `signs`; `rows` and
    `signs` get none. (It is an op because TensorFlow keeps the graphs of
    `tf.custom_gradient`, and with them the tables, until the process ends.)

    Args:
      rows: float32 `[u, dim]`, the rows of `signs`.
      shadow: float32 `[1, dim]`, the shadow's value, which is not read.
      signs: int64 `[u]`, distinct.
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
    signs = to_signs(signs, "route_gradient")
    return library().tf_ext_route_gradient(rows, shadow, signs, name=name)


@tf.RegisterGradient("TfExt>RouteGradient")
def _route_gradient_gradient(op, gradient):
    _, shadow, signs = op.inputs
    slices = tf.IndexedSlices(
        gradient,
        # Without an op of its own nested functions lose the signs.
        tf.identity(signs, name=UNIQUE_SIGNS),
        tf.shape(shadow, tf.int64),
    )
    return None, slices, None


def combine_bags(
    rows, inverse, row_splits, weights=None, *, combiners, name=None
):
    """Combines bags of rows into one vector each, for several columns at once.

    Bag b of column c holds the values from `row_splits[c * batch_size + b]` to
    before `row_splits[c * batch_size + b + 1]`. With values x and weights w (1
    if there are none) it becomes

    - "sum": sum(w x)
    - "mean": sum(w x) / sum(w)
    - "sqrtn": sum(w x) / sqrt(sum(w^2)), as `tf.nn.embedding_lookup_sparse`
    - "max": the largest x in each dimension

    and zeros if it is empty or the divisor is zero. The gradient of "max" goes
    in equal parts to all values of the bag that reach it.

    Args:
      rows: float32 `[u, dim]`, the distinct rows.
      inverse: int32 `[n]`, the row of each value: 0 to u - 1.
      row_splits: int64 `[len(combiners) * batch_size + 1]`: starts with 0,
        never falls, ends with n.
      weights: float32 `[n]`, or `[0]` for none. None is `[0]`. Not for "max".
      combiners: list of strings, how the bags of each column are combined.
      name: optional name of the operation.

    Returns:
      float32 `[batch_size, len(combiners) * dim]`, the columns side by side.

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
    gradient,
    rows,
    inverse,
    row_splits,
    weights=None,
    *,
    combiners,
    name=None,
):
    """The gradient of `combine_bags`, which TensorFlow finds by itself.

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
      >>> tf_ext.ops.combine_bags_grad(
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
def _combine_bags_gradient(op, gradient):
    rows, inverse, row_splits, weights = op.inputs
    rows_gradient, weights_gradient = combine_bags_grad(
        gradient,
        rows,
        inverse,
        row_splits,
        weights,
        combiners=op.get_attr("combiners"),
    )
    return rows_gradient, None, None, weights_gradient
