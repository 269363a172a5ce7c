# SPDX-License-Identifier: Apache-2.0
"""The clicks of a batch: which occurrences of signs count, and how much."""

import typing
from collections.abc import Iterable, Mapping

import tensorflow as tf

from tf_ext._checks import listed, refuse
from tf_ext.ops.exchange import exchange_ops
from tf_ext.tables.sparse_table import SparseTable


def check_key(key: object, tables: Iterable[SparseTable]) -> None:
    """Raises ValueError unless the argument `click` suits the tables."""
    if key is None:
        return
    if not isinstance(key, str):
        refuse("EmbeddingFeatures", "click", "a string or None", key)
    if not any("click" in table.statistics for table in tables):
        refuse(
            "EmbeddingFeatures",
            "click",
            'None unless a table has statistics=["show", "click"]',
            key,
        )


def of_batch(
    key: str,
    inputs: Mapping[str, typing.Any],
    batch_size: tf.Tensor,
    required: bool,
    error: tf.Tensor | None,
) -> tuple[tf.Tensor | None, tf.Tensor | None]:
    """The clicks of a batch's examples.

    Args:
      key: string, the feature that holds them.
      inputs: dict of features.
      batch_size: int64 scalar.
      required: bool, whether the feature may not be missing.
      error: string scalar, the error of the batch, or ""; None where an error
        is raised at once.

    Returns:
      `(clicks, error)`: float32 `[batch_size]`, finite and not negative, or
      None if the feature is missing; and the error of the batch again, or if
      there is none, that of the feature.

    Raises:
      ValueError: it is missing, or of another type or shape.
      tf.errors.InvalidArgumentError: when it runs, without `error`: the clicks
        are not finite and at least 0, or not of the batch size.
    """
    if key not in inputs:
        if not required:
            return None, error
        raise ValueError(
            f"The feature {key!r}, the `click` of an EmbeddingFeatures, is "
            "missing from the inputs. Present are: "
            f"{listed(inputs)}. It may be missing unless "
            "training=True."
        )
    clicks = inputs[key]
    if isinstance(clicks, tf.RaggedTensor | tf.SparseTensor):
        raise _not_a_click(key, type(clicks).__name__)
    clicks = tf.convert_to_tensor(clicks)
    columns = clicks.shape[1:].as_list() if clicks.shape.rank else None
    if columns not in ([], [1], [None]):
        raise _not_a_click(key, f"shape {clicks.shape}")
    if not (clicks.dtype.is_bool or clicks.dtype.is_integer) and (
        not clicks.dtype.is_floating
    ):
        raise _not_a_click(key, clicks.dtype.name)
    clicks = tf.reshape(tf.cast(clicks, tf.float32), [-1])
    counts = tf.math.is_finite(clicks) & (clicks >= 0)
    found = tf.where(
        tf.equal(tf.size(clicks, tf.int64), batch_size),
        tf.where(
            tf.reduce_all(counts),
            "",
            f"The feature {key!r}, the `click` of an EmbeddingFeatures, must "
            "be finite and not negative.",
        ),
        f"The feature {key!r}, the `click` of an EmbeddingFeatures, must have "
        "the batch size of the other features.",
    )
    if error is None:
        with tf.control_dependencies([exchange_ops.raise_error(found)]):
            return tf.identity(clicks), None
    # All workers go on with something until they raise together.
    clicks = tf.where(counts, clicks, 0.0)
    clicks = tf.concat([clicks, tf.zeros([batch_size])], 0)[:batch_size]
    return clicks, tf.where(tf.equal(error, ""), found, error)


def _not_a_click(key: str, found: str) -> ValueError:
    return ValueError(
        f"The feature {key!r}, the `click` of an EmbeddingFeatures, must be a "
        "dense tensor of numbers or booleans, [batch_size] or [batch_size, 1]. "
        f"Received: {found}"
    )


def of_signs(clicks: tf.Tensor, row_splits: tf.Tensor) -> tf.Tensor:
    """The clicks of the examples in which the signs of bags occur.

    Args:
      clicks: float32 `[batch_size]`.
      row_splits: int64 `[columns * batch_size + 1]`, of Bags.

    Returns:
      float32 `[m]`, one for each sign of the bags.
    """
    lengths = row_splits[1:] - row_splits[:-1]
    examples = tf.math.floormod(
        tf.range(tf.size(lengths)), tf.maximum(tf.size(clicks), 1)
    )
    return tf.repeat(tf.gather(clicks, examples), lengths)
