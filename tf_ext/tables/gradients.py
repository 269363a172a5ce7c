"""Gradients of tables: signs and values."""

import typing

import tensorflow as tf

from tf_ext import ops


class TableGradient(typing.NamedTuple):
    """The gradient of a table's rows in one step.

    Attributes:
      table: SparseTable.
      signs: int64 `[n]`, distinct.
      values: float `[n, dim]`.
      finite: bool scalar, whether the gradients of all workers are finite;
        None if nobody has looked.
    """

    table: typing.Any
    signs: tf.Tensor
    values: tf.Tensor
    finite: tf.Tensor | None = None


def sum_by_sign(signs, gradients, num_shards=1, name=None):
    """Sums gradients of equal signs.

    Args:
      signs: int64 `[n]`.
      gradients: float32 `[n, dim]`.
      num_shards: int, of the table.
      name: optional name of the operations.

    Returns:
      `(signs [u], gradients [u, dim], split_sizes [num_shards])`, in the order
      of `ops.unique_by_shard`.
    """
    with tf.name_scope(name or "sum_by_sign"):
        unique, _, inverse, split_sizes = ops.unique_by_shard(signs, num_shards)
        summed = ops.sum_segments(gradients, inverse, tf.size(unique, tf.int64))
        return unique, summed, split_sizes


def from_one_pull(signs):
    """Whether signs are those of one pull's gradient, and so distinct."""
    operation = None if tf.executing_eagerly() else signs.op
    return (
        operation is not None
        and operation.type == "Identity"
        and operation.name.rsplit("/", 1)[-1].startswith(ops.UNIQUE_SIGNS)
    )


def unique_signs_op(signs):
    """The `UniqueByShard` that made signs.

    Args:
      signs: int64 `[n]`.

    Returns:
      The operation; None if the signs come from elsewhere, or from another
      graph.
    """
    if tf.executing_eagerly():
        return None
    operation = signs.op
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    return operation if operation.type == ops.UNIQUE_BY_SHARD else None


def check_finite(gradients):
    """Raises where all workers know that one of them has a bad gradient.

    Args:
      gradients: list of TableGradient.

    Returns:
      List of operations to wait for; empty where nobody has looked, and a push
      looks itself.

    Raises:
      tf.errors.InvalidArgumentError: when it runs.
    """
    return [
        ops.raise_error(
            tf.where(
                gradient.finite,
                "",
                f"Gradients of table {gradient.table.name!r}, or of one that "
                "is updated with it, are not finite on at least one worker; no "
                "table was changed. Lower the learning rate, clip gradients, "
                'or leave such steps out with on_nonfinite="skip" of '
                "tf_ext.optimizers.Optimizer.",
            )
        )
        for gradient in gradients
        if gradient.finite is not None
    ]
