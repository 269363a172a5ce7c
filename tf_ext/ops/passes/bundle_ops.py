# SPDX-License-Identifier: Apache-2.0
"""Ops that let tensors travel between tasks together."""

from collections.abc import Sequence

import tensorflow as tf

from tf_ext.ops._library import library

for _op in ("Bundle", "BundleTransfers", "NextStage", "Unbundle"):
    tf.no_gradient(f"TfExt>{_op}")


def bundle_transfers(name: str | None = None) -> tf.Operation | None:
    """Lets tensors between the tasks of a function travel together.

    To be called once while a `tf.function` is traced. Where it runs on several
    tasks, what one task sends to another without waiting for its answer is one
    message, instead of one for each tensor. Values that are in loops or depend
    on branches are sent one by one, and strings too. Elsewhere it does nothing.

    Args:
      name: optional name of the operation.

    Returns:
      The operation; None in eager mode.
    """
    return library().tf_ext_bundle_transfers(name=name)


def next_stage(
    values: Sequence[tf.Tensor], name: str | None = None
) -> list[tf.Tensor]:
    """Returns tensors unchanged, and keeps bundles before and after apart.

    Where `bundle_transfers` was called, tensors that are made from these values
    do not travel together with those that these values, or the operation's
    control inputs, waited for. No gradient flows.

    Args:
      values: list of tensors.
      name: optional name of the operation.

    Returns:
      List of tensors.

    Example:
      >>> from tf_ext.ops.passes import bundle_ops
      >>> [x.numpy().tolist() for x in bundle_ops.next_stage([[1.0], 2])]
      [[1.0], 2]
    """
    return library().tf_ext_next_stage(
        [tf.convert_to_tensor(value) for value in values], name=name
    )


def bundle(values: Sequence[tf.Tensor], name: str | None = None) -> tf.Tensor:
    """Puts tensors, with their shapes, into one.

    Args:
      values: list of tensors of any shapes and types, except strings.
      name: optional name of the operation.

    Returns:
      uint8 `[bytes]`.

    Raises:
      tf.errors.InvalidArgumentError: a value is of strings, or of another type
        that is not copied byte by byte.

    Example:
      >>> from tf_ext.ops.passes import bundle_ops
      >>> bundled = bundle_ops.bundle([[1.0, 2.0], True])
      >>> [x.numpy().tolist() for x in bundle_ops.unbundle(
      ...     bundled, [tf.TensorSpec([None]), tf.TensorSpec([], tf.bool)])]
      [[1.0, 2.0], True]
    """
    return library().tf_ext_bundle(
        [tf.convert_to_tensor(value) for value in values], name=name
    )


def unbundle(
    bundle: tf.Tensor, specs: Sequence[tf.TensorSpec], name: str | None = None
) -> list[tf.Tensor]:
    """Takes the tensors from a bundle. They share its memory.

    Args:
      bundle: uint8 `[bytes]`, from `bundle`.
      specs: list of `tf.TensorSpec`, of the tensors that were put in.
      name: optional name of the operation.

    Returns:
      List of tensors.

    Raises:
      tf.errors.InvalidArgumentError: the bundle is malformed, or its tensors
        are others than `specs`.

    Example: see `bundle`.
    """
    return library().tf_ext_unbundle(
        bundle,
        T=[spec.dtype for spec in specs],
        shapes=[spec.shape for spec in specs],
        name=name,
    )
