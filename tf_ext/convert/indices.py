# SPDX-License-Identifier: Apache-2.0
"""What the indices of an Embedding stand for."""

import typing
from collections.abc import Iterator

import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext._compat.functional_graphs import vocabulary_table
from tf_ext._keras import IS_KERAS_3, keras

LOOKUPS = (keras.layers.StringLookup, keras.layers.IntegerLookup)


class Indices(typing.NamedTuple):
    """The values whose rows an Embedding has.

    Attributes:
      tokens: tensor `[n]` of strings or int64; None for the indices themselves.
      rows: int64 `[n]`, the index of each token; None like `tokens`.
      mask: the mask token, whose index is 0; None without any.
      unknown: range of the indices that unknown tokens share.
      size: int, the number of rows.
    """

    tokens: tf.Tensor | None
    rows: tf.Tensor | None
    mask: str | int | None
    unknown: range
    size: int

    def chunks(self, limit: int) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
        """Yields `(values, indices)` of at most `limit` values each."""
        if self.tokens is None or self.rows is None:
            for begin in range(0, self.size, limit):
                part = tf.range(
                    begin, min(begin + limit, self.size), dtype=tf.int64
                )
                yield part, part
            return
        if self.mask is not None:
            mask = tf.constant([self.mask], self.tokens.dtype)
            yield mask, tf.zeros([1], tf.int64)
        for begin in range(0, self.tokens.shape[0], limit):
            stop = begin + limit
            yield self.tokens[begin:stop], self.rows[begin:stop]


def indices_of(
    owner: str, embedding: keras.layers.Embedding, lookup: typing.Any
) -> Indices:
    """What the rows of an Embedding stand for.

    Args:
      owner: string, the function that was given the layers, for errors.
      embedding: the Embedding.
      lookup: the StringLookup, IntegerLookup or Hashing before it; None if its
        inputs are used as indices.

    Raises:
      ValueError: the lookup is none of these, or does not fit the Embedding.
    """
    size = int(embedding.input_dim)
    if lookup is None or isinstance(lookup, keras.layers.Hashing):
        _check_bins(owner, lookup, size)
        return Indices(None, None, None, range(0), size)
    if not isinstance(lookup, LOOKUPS):
        which = "Keras 3" if IS_KERAS_3 else "tf_keras"
        refuse(
            owner,
            "lookup",
            f"a StringLookup, IntegerLookup or Hashing of {which}, the Keras "
            "in use, or None for integers that are indices",
            lookup,
        )
    if lookup.output_mode != "int" or lookup.invert:
        raise ValueError(
            f"Argument `lookup` of {owner} must have output_mode='int' and "
            f"invert=False. Received: layer {lookup.name!r} with output_mode="
            f"{lookup.output_mode!r}, invert={lookup.invert}"
        )
    vocabulary = vocabulary_table(lookup)
    first = int(lookup.mask_token is not None)
    unknown = range(first, first + lookup.num_oov_indices)
    if vocabulary is None:
        raise ValueError(
            f"Argument `lookup` of {owner} must have a vocabulary: call "
            f"`adapt` or `set_vocabulary` first. Received: layer "
            f"{lookup.name!r} without one"
        )
    tokens, rows = vocabulary
    largest = int(tf.reduce_max(rows))
    if largest >= size:
        raise ValueError(
            f"Argument `embedding` of {owner} must have a row for each index "
            f"of layer {lookup.name!r}, whose largest is {largest}. Received: "
            f"layer {embedding.name!r} with input_dim={size}"
        )
    mask = lookup.mask_token
    if mask is not None and not isinstance(mask, str | bytes):
        mask = int(mask)
    return Indices(tokens, tf.cast(rows, tf.int64), mask, unknown, size)


def _check_bins(owner: str, lookup: typing.Any, size: int) -> None:
    if lookup is None:
        return
    if lookup.output_mode != "int" or lookup.num_bins > size:
        raise ValueError(
            f"Argument `lookup` of {owner} must have output_mode='int' and at "
            f"most as many bins as the Embedding has rows, {size}. Received: "
            f"layer {lookup.name!r} with output_mode={lookup.output_mode!r}, "
            f"num_bins={lookup.num_bins}"
        )
