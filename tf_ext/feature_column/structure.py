# SPDX-License-Identifier: Apache-2.0
"""The structure of features: their values, and which bag holds which."""

import typing

import tensorflow as tf

from tf_ext.feature_column.batch_checks import BatchChecks

Feature: typing.TypeAlias = tf.Tensor | tf.SparseTensor | tf.RaggedTensor


def to_tensor(key: str, feature: typing.Any) -> Feature:
    """A feature as a tensor; raises ValueError if it is none."""
    if isinstance(feature, tf.SparseTensor | tf.RaggedTensor | tf.Tensor):
        return feature
    try:
        return tf.convert_to_tensor(feature)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The feature {key!r} must be a tensor, a tf.SparseTensor, a "
            "tf.RaggedTensor or an array. Received: "
            f"{type(feature).__name__} ({error})"
        ) from error


def split(
    key: str, feature: Feature, checks: BatchChecks
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """A feature's values, and its row_splits or None."""
    rank = feature.shape.rank
    if isinstance(feature, tf.Tensor):
        return feature, None
    if isinstance(feature, tf.RaggedTensor):
        if rank != 2 or feature.ragged_rank != 1:
            raise ValueError(
                f"The feature {key!r} is a RaggedTensor of shape "
                f"{feature.shape}, but its shape must be [batch_size, None]: "
                "use merge_dims to make one bag of all inner dimensions."
            )
        return feature.flat_values, tf.cast(feature.row_splits, tf.int64)
    if rank not in (2, None):
        raise ValueError(
            f"The feature {key!r} is a SparseTensor of shape {feature.shape}, "
            "but its shape must be [batch_size, n]: use tf.sparse.reshape."
        )
    return feature.values, _sparse_row_splits(key, feature, checks)


def _sparse_row_splits(
    key: str, feature: tf.SparseTensor, checks: BatchChecks
) -> tf.Tensor:
    rows = feature.indices[:, 0]
    checks.add(
        tf.reduce_all(rows[:-1] <= rows[1:]),
        f"The indices of the SparseTensor of feature {key!r} must be in "
        "row-major order: use tf.sparse.reorder.",
    )
    bags = tf.range(feature.dense_shape[0] + 1)
    return tf.searchsorted(rows, bags, out_type=tf.int64)


def repeat(
    key: str,
    feature: tf.Tensor,
    of: tuple[str, tf.Tensor, tf.Tensor | None],
    checks: BatchChecks,
) -> tf.Tensor:
    """A dense feature's value of each sample, for all values of another one.

    Args:
      key: string.
      feature: tensor `[batch_size]` or `[batch_size, 1]`.
      of: `(key, values, row_splits)` of the other, as of `split`.
      checks: BatchChecks, to which that of batch sizes is added.

    Returns:
      Tensor that can be broadcast to `values`.
    """
    other, values, row_splits = of
    moments = tf.reshape(feature, [-1])
    sizes = tf.shape(values, tf.int64)
    batch = (
        tf.reduce_sum(sizes[:1])
        if row_splits is None
        else tf.size(row_splits, tf.int64) - 1
    )
    count = tf.size(moments, tf.int64)
    checks.add(
        tf.equal(count, batch),
        f"The features {key!r} and {other!r} must have the same batch size.",
    )
    # No error comes from here where they do not.
    samples = tf.range(batch)
    if row_splits is not None:
        samples = tf.repeat(samples, row_splits[1:] - row_splits[:-1])
    padded = tf.concat([moments, tf.zeros([1], moments.dtype)], 0)
    found = tf.gather(padded, tf.minimum(samples, count))
    if row_splits is not None:
        return found
    shape = tf.concat([sizes[:1], tf.ones_like(sizes[1:])], 0)
    return tf.reshape(found, shape)


def align(
    key: str,
    feature: Feature,
    weights_key: str,
    weights: Feature,
    checks: BatchChecks,
) -> tf.Tensor:
    """The weights of a feature's values, in the same order."""
    wrong = (
        f"The weights {weights_key!r} must have the structure of the feature "
        f"{key!r}"
    )
    for kind in (tf.SparseTensor, tf.RaggedTensor):
        if isinstance(feature, kind) != isinstance(weights, kind):
            raise ValueError(
                f"{wrong}, which is a {type(feature).__name__}, but are a "
                f"{type(weights).__name__}."
            )
    _check_shapes(wrong, feature.shape, weights.shape, checks)
    differ = f"{wrong}, but their indices or row_splits differ."
    if isinstance(feature, tf.SparseTensor):
        checks.add(are_equal(weights.indices, feature.indices), differ)
        weights = weights.values
    elif isinstance(feature, tf.RaggedTensor):
        found, wanted = (
            tf.cast(ragged.row_splits, tf.int64)
            for ragged in (weights, feature)
        )
        checks.add(are_equal(found, wanted), differ)
        weights = weights.flat_values
    return tf.cast(weights, tf.float32)


def _check_shapes(
    wrong: str,
    wanted: tf.TensorShape,
    found: tf.TensorShape,
    checks: BatchChecks,
) -> None:
    if found.is_compatible_with(wanted):
        return
    message = f"{wrong}, whose shape is {wanted}, but their shape is {found}."
    if found.rank != wanted.rank:
        raise ValueError(message)
    checks.fail(message)


def are_equal(found: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Whether two tensors are equal; their lengths may differ."""
    if found.shape.is_fully_defined() and wanted.shape.is_fully_defined():
        if found.shape != wanted.shape:
            return tf.constant(False)
        return tf.reduce_all(tf.equal(found, wanted))
    # Equal refuses different lengths, except for 1, which it broadcasts.
    lengths = [tf.shape(tensor)[0] for tensor in (found, wanted)]
    common = tf.minimum(*lengths)
    return tf.logical_and(
        tf.equal(*lengths),
        tf.reduce_all(tf.equal(found[:common], wanted[:common])),
    )
