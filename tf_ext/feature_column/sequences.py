# SPDX-License-Identifier: Apache-2.0
"""The positions of sequences: which of them have an id, and which are kept.

A position is hashed like an example of its own, whose bag has at most one
value. So the hash op decides which values are missing, and combines the values
of one position in crosses.
"""

import typing
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_ext.feature_column import structure
from tf_ext.feature_column.bag_blocks import Bags
from tf_ext.feature_column.batch_checks import BatchChecks
from tf_ext.feature_column.part import Part


class Positions(typing.NamedTuple):
    """The positions of a batch's sequences.

    Attributes:
      features: dict of the features and weights that the column reads, `[n]`,
        by key: one value for each position.
      splits: int64 `[batch_size + 1]`; example b has the positions from
        `splits[b]` up to, but not including, `splits[b + 1]`.
      width: int64 scalar or int, the number of positions of each example of a
        dense feature; None for other features.
    """

    features: dict[str, tf.Tensor]
    splits: tf.Tensor
    width: typing.Any

    def batch_size(self) -> tf.Tensor:
        """The batch size, an int64 scalar."""
        return tf.size(self.splits, tf.int64) - 1

    def size(self) -> tf.Tensor:
        """The number of positions, an int64 scalar."""
        return tf.size(next(iter(self.features.values())), tf.int64)


class Kept(typing.NamedTuple):
    """The ids of a batch's sequences that remain after truncation.

    Attributes:
      signs: int64 `[m]`, in the order of the positions.
      counts: int64 `[batch_size]`, how many of them each example has.
      weights: float32 `[m]`; None without weights.
      mask: bool `[batch_size, length]`, with m times True.
      lengths: int64 `[batch_size]`, how many positions of the mask each
        example has; the others are padding of the batch.
    """

    signs: tf.Tensor
    counts: tf.Tensor
    weights: tf.Tensor | None
    mask: tf.Tensor
    lengths: tf.Tensor

    def bags(self, batch_size: tf.Tensor) -> Bags:
        """The ids in bags; of empty examples where batch sizes differ."""
        zeros = tf.zeros(tf.reshape(batch_size, [1]), tf.int64)
        counts = tf.concat([self.counts, zeros], 0)[:batch_size]
        splits = tf.concat([[0], tf.cumsum(counts)], 0)
        weights = tf.zeros([0]) if self.weights is None else self.weights
        return Bags(self.signs, splits, weights)


def positions_of(
    name: str,
    parts: Sequence[Part],
    inputs: Mapping[str, structure.Feature],
    checks: BatchChecks,
) -> Positions | None:
    """The positions of a column's sequences; None if it has no feature.

    Args:
      name: string, the column's.
      parts: list of Part, the column's.
      inputs: dict of tensors by key, which the column has checked.
      checks: BatchChecks, to which those of the structure are added.
    """
    keys = dict.fromkeys(
        key for part in parts if part.key in inputs for key in part.keys
    )
    if not keys:
        return None
    runs = {key: _flatten(key, inputs[key], checks) for key in keys}
    (first, found), *others = runs.items()
    for key, one in others:
        checks.add(
            structure.are_equal(one.splits, found.splits),
            f"The features {first!r} and {key!r} of the sequence "
            f"{name!r} must have the same lengths.",
        )
    flat = {key: one.features[key] for key, one in runs.items()}
    return found._replace(features=flat)


def _flatten(
    key: str, feature: structure.Feature, checks: BatchChecks
) -> Positions:
    """The positions of one feature."""
    values, splits = structure.split(key, feature, checks)
    width = None
    if splits is None:
        sizes = tf.shape(values, tf.int64)
        inner = values.shape[1:]
        width = inner.num_elements()  # 1 for [batch_size].
        if width is None:
            width = tf.reduce_prod(sizes[1:])
        splits = tf.range(tf.reduce_sum(sizes[:1]) + 1) * width
        if values.shape.rank is not None and values.shape[0] is not None:
            splits.set_shape([values.shape[0] + 1])
        values = tf.reshape(values, [-1])
    elif isinstance(feature, tf.SparseTensor):
        _check_gaps(key, feature, splits, checks)
    else:
        checks.add(
            tf.reduce_all(splits[:1] == 0)
            & tf.reduce_all(splits[:-1] <= splits[1:])
            & tf.reduce_all(splits[-1:] == tf.size(values, tf.int64)),
            f"The row_splits of the feature {key!r} must start at 0, not "
            "decrease, and end at the number of values.",
        )
    return Positions({key: values}, splits, width)


def _check_gaps(
    key: str, feature: tf.SparseTensor, splits: tf.Tensor, checks: BatchChecks
) -> None:
    """A gap would be closed silently, and its sequence be out of step."""
    rows, places = feature.indices[:, 0], feature.indices[:, 1]
    last = tf.size(splits, tf.int64) - 1
    starts = tf.gather(splits, tf.clip_by_value(rows, 0, last))
    checks.add(
        tf.reduce_all(places == tf.range(tf.size(rows, tf.int64)) - starts),
        f"The SparseTensor of feature {key!r}, a sequence, must have no gaps: "
        "use a dense feature, and the column's `missing`.",
    )


def _lengths(positions: Positions, is_there: tf.Tensor) -> tf.Tensor:
    """The lengths of the sequences before truncation, int64 `[batch_size]`."""
    splits = positions.splits
    if positions.width is None:
        return tf.clip_by_value(splits[1:] - splits[:-1], 0, positions.size())
    # Missing values at the end of a row are padding.
    shape = tf.stack([positions.batch_size(), positions.width])
    ends = tf.range(1, positions.width + 1, dtype=tf.int64)
    ends *= tf.cast(tf.reshape(is_there, shape), tf.int64)
    # 0 if there are no positions.
    return tf.maximum(tf.reduce_max(ends, 1), 0)


def _static(length: typing.Any) -> int | None:
    return max(length, 1) if isinstance(length, int) else None


class SequenceLayout(typing.NamedTuple):
    """How the ids of a bag are put at the positions of an output.

    Attributes:
      max_length: int, the length of the output; None: that of the batch.
      truncating: which end of a longer sequence is cut off, "pre" or "post".
    """

    max_length: int | None
    truncating: str

    def keep(self, positions: Positions, bags: Bags, weighted: bool) -> Kept:
        """Chooses the ids that remain after truncation.

        Sizes that do not fit together, which the checks report, are no error
        here.

        Args:
          positions: its Positions, n in all.
          bags: Bags of the n positions, with at most one sign each.
          weighted: bool, whether the column has weights.
        """
        signs, sign_splits, weights = bags
        count = positions.size()
        # One more, without an id, for what is outside of the sequences.
        is_there = tf.concat(
            [
                sign_splits[1:] > sign_splits[:-1],
                tf.zeros([count + 1], tf.bool),
            ],
            0,
        )[: count + 1]
        lengths = _lengths(positions, is_there[:-1])
        length = self._length(positions, lengths)
        places = tf.range(length)[tf.newaxis]
        if self.truncating == "pre":
            places += tf.maximum(lengths - length, 0)[:, tf.newaxis]
        sources = tf.where(
            places < lengths[:, tf.newaxis],
            tf.clip_by_value(
                positions.splits[:-1, tf.newaxis] + places, 0, count
            ),
            count,
        )
        mask = tf.gather(is_there, sources)
        mask.set_shape([None, _static(self.max_length or positions.width)])
        kept = tf.gather(sign_splits, tf.boolean_mask(sources, mask))
        return Kept(
            tf.gather(signs, kept),
            tf.reduce_sum(tf.cast(mask, tf.int64), 1),
            tf.gather(weights, kept) if weighted else None,
            mask,
            # All rows of a dense feature are of one length.
            tf.minimum(lengths, length)
            if positions.width is None
            else tf.fill(tf.shape(lengths), length),
        )

    def keep_none(self, batch_size: tf.Tensor, weighted: bool) -> Kept:
        """Empty sequences, for a column whose feature is not in the batch."""
        length = self.max_length or 1
        mask = tf.zeros(tf.stack([batch_size, length]), tf.bool)
        mask.set_shape([None, length])
        zeros = tf.zeros(tf.reshape(batch_size, [1]), tf.int64)
        return Kept(
            tf.zeros([0], tf.int64),
            zeros,
            tf.zeros([0], tf.float32) if weighted else None,
            mask,
            zeros,
        )

    def _length(self, positions: Positions, lengths: tf.Tensor) -> tf.Tensor:
        """The length of the output; Keras's layers need at least 1."""
        if self.max_length is not None:
            return tf.constant(self.max_length, tf.int64)
        if positions.width is not None:
            return tf.maximum(tf.cast(positions.width, tf.int64), 1)
        return tf.maximum(tf.reduce_max(lengths), 1)
