# SPDX-License-Identifier: Apache-2.0
"""The parts of columns: drops missing values and converts others to texts."""

import typing
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_ext.ops._stock import ragged
from tf_ext.ops._stock.inputs import Input


class Part(typing.NamedTuple):
    """How a part of a column reads its input.

    Attributes:
      input: int, the index of the input.
      bucket_size: int; 0 for no buckets, and in columns with one part.
      missing: the text of the missing value, or None.
      boundaries: tuple of floats.
    """

    input: int
    bucket_size: int
    missing: str | None
    boundaries: tuple[float, ...]

    def can_drop(self, dtype: tf.DType) -> bool:
        """Whether values of a type may be missing."""
        return self.missing is not None or dtype == tf.float32


class Values(typing.NamedTuple):
    """The values of a part that are not missing.

    Attributes:
      values: `[n]`.
      sizes: int64 `[batch_size]`, the sizes of the bags; None if all have
        `per_bag` values.
      per_bag: int.
      weights: float32 `[n]`, or None.
    """

    values: tf.Tensor
    sizes: tf.Tensor | None
    per_bag: int
    weights: tf.Tensor | None

    def bag_sizes(self, batch: tf.Tensor) -> tf.Tensor:
        """The sizes of the bags, int64 `[batch_size]`."""
        if self.sizes is not None:
            return self.sizes
        return tf.fill(
            tf.reshape(batch, [1]), tf.constant(self.per_bag, tf.int64)
        )


def read(part: Part, source: Input, batch: tf.Tensor) -> Values:
    """The values of a part's input that are not missing."""
    values = source.flat()
    if not part.can_drop(values.dtype):
        if source.per_bag is not None:
            return Values(values, None, source.per_bag, source.weights)
        return Values(values, source.bag_sizes(batch), 0, source.weights)
    keep = is_there(part, values)
    places = tf.reshape(tf.where(keep), [-1])
    weights = source.weights
    return Values(
        tf.gather(values, places),
        _sizes_of_kept(source, keep, batch),
        0,
        None if weights is None else tf.gather(weights, places),
    )


def is_there(part: Part, values: tf.Tensor) -> tf.Tensor:
    """Whether each value is not missing; `values` have any shape."""
    if values.dtype != tf.float32:
        return tf.not_equal(values, _missing(part, values.dtype))
    there = tf.logical_not(tf.math.is_nan(values))
    if part.missing is None:
        return there
    wanted = tf.not_equal(values, _missing(part, tf.float32))
    return tf.logical_and(there, wanted)


def _missing(part: Part, dtype: tf.DType) -> tf.Tensor:
    text = typing.cast(str, part.missing)
    if dtype == tf.string:
        return tf.constant(text)
    if dtype == tf.float32:
        return tf.constant(np.float32(text))
    return tf.constant(int(text), dtype)


def _sizes_of_kept(
    source: Input, keep: tf.Tensor, batch: tf.Tensor
) -> tf.Tensor:
    kept = tf.cast(keep, tf.int64)
    if source.row_splits is not None:
        ends = tf.gather(ragged.splits_of(kept), source.row_splits)
        return ends[1:] - ends[:-1]
    if source.per_bag == 1:
        return kept
    per_bag = source.per_bag
    if per_bag is None:
        per_bag = tf.reduce_prod(tf.shape(source.values, tf.int64)[1:])
    return tf.reduce_sum(tf.reshape(kept, tf.stack([batch, per_bag])), 1)


def numbers_of(boundaries: Sequence[float], values: tf.Tensor) -> tf.Tensor:
    """The number of boundaries that are less than or equal to each value."""
    if values.dtype != tf.float32:
        # The op would convert integers to float32 for the comparison.
        values = tf.cast(values, tf.float64)
    return tf.raw_ops.Bucketize(input=values, boundaries=list(boundaries))


def texts_of(
    boundaries: Sequence[float], bucket_size: int, values: tf.Tensor
) -> tf.Tensor:
    """Converts values, of any shape, to the texts that are hashed."""
    if boundaries:
        values = numbers_of(boundaries, values)
    texts = values
    if values.dtype != tf.string:
        texts = tf.strings.as_string(values)
    return bucket_of(texts, bucket_size) if bucket_size else texts


def bucket_of(texts: tf.Tensor, bucket_size: int) -> tf.Tensor:
    """The bucket numbers of texts, as texts."""
    return tf.strings.as_string(
        tf.strings.to_hash_bucket_fast(texts, bucket_size)
    )
