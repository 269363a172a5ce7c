# SPDX-License-Identifier: Apache-2.0
"""The ids of sequences, and their rows at the positions of an output.

A position is hashed like a sample of its own, whose bag has at most one value.
"""

import typing
from collections.abc import Mapping

import numpy as np

from tf_ext.serving.lookups.bags import Bags, ColumnHasher
from tf_ext.serving.lookups.columns import Column, Layout
from tf_ext.serving.lookups.features import Array, Feature, Signs


class Kept(typing.NamedTuple):
    """The ids of sequences that remain after truncation.

    Attributes:
      signs: int64 `[m]`, in the order of the positions.
      counts: int64 `[batch_size]`, how many of them each sample has.
      weights: float32 `[m]`; None without weights.
      mask: bool `[batch_size, length]`, with m times True.
    """

    signs: Signs
    counts: Signs
    weights: Array | None
    mask: Array


def hasher_of(column: Column) -> ColumnHasher:
    """The ColumnHasher of a column alone, with keys for names."""
    keys = [key for part in column.parts for key in part.keys]
    return ColumnHasher([(column, dict(zip(keys, keys, strict=True)))])


def keep(
    column: Column,
    hasher: ColumnHasher,
    given: Mapping[str, Feature],
    batch_size: int,
) -> Kept:
    """Hashes the sequences of a column.

    Args:
      column: Column with a `sequence`.
      hasher: what `hasher_of` has returned of it.
      given: the features that it reads, by key.
      batch_size: int.

    Raises:
      ValueError: a feature is not what the column takes.
    """
    layout = typing.cast(Layout, column.sequence)
    present = {
        key: given[key]
        for part in column.parts
        if part.key in given
        for key in part.keys
    }
    if not present:
        return Kept(
            np.zeros(0, np.int64),
            np.zeros(batch_size, np.int64),
            np.zeros(0, np.float32) if column.is_weighted else None,
            np.zeros([batch_size, layout.max_length or 1], bool),
        )
    (first, found), *others = present.items()
    for key, one in present.items():
        if one.row_splits is None and len(one.shape) > 2:
            raise ValueError(
                f"The feature {key!r} of the sequence {column.name!r} must be "
                "of shape [batch_size, length] or [batch_size], but is of "
                f"{list(one.shape)}."
            )
    for key, one in others:
        if not np.array_equal(one.splits, found.splits):
            raise ValueError(
                f"The features {first!r} and {key!r} of the sequence "
                f"{column.name!r} must have the same lengths."
            )
    count = len(found.values)
    # Each position is a sample.
    flat = {
        key: Feature(one.values, None, count, (count,))
        for key, one in present.items()
    }
    bags = hasher.hash(flat, count)
    return _truncated(layout, found, bags, column.is_weighted)


def _truncated(
    layout: Layout, found: Feature, bags: Bags, weighted: bool
) -> Kept:
    is_there = bags.row_splits[1:] > bags.row_splits[:-1]
    lengths = _lengths(found, is_there)
    length = layout.max_length
    if length is None:
        longest = lengths.max(initial=0) if found.width is None else found.width
        length = max(int(longest), 1)
    places = np.arange(length)[np.newaxis]
    if layout.truncating == "pre":
        places = places + np.maximum(lengths - length, 0)[:, np.newaxis]
    mask = places < lengths[:, np.newaxis]
    sources = found.splits[:-1, np.newaxis] + places
    mask[mask] = is_there[sources[mask]]
    kept = bags.row_splits[sources[mask]]
    weights = None
    if weighted:
        all_weights = bags.weights
        if all_weights is None:
            all_weights = np.ones(len(bags.signs), np.float32)
        weights = all_weights[kept]
    return Kept(bags.signs[kept], mask.sum(1), weights, mask)


def _lengths(found: Feature, is_there: Array) -> Signs:
    """The lengths of the sequences before truncation."""
    if found.width is None:
        return np.diff(found.splits)
    # Missing values at the end of a row are padding.
    ends = np.arange(1, found.width + 1)
    shape = (found.batch_size, found.width)
    return (is_there.reshape(shape) * ends).max(1, initial=0)


def place(layout: Layout, kept: Kept, rows: Array) -> Array:
    """Rows at their positions.

    Args:
      layout: Layout.
      kept: Kept.
      rows: float32 `[m, dim]`, of its signs.

    Returns:
      float32 `[batch_size, length, width]`; of a ragged sequence `[m, width]`.
    """
    if kept.weights is not None:
        weights = kept.weights[:, np.newaxis]
        if layout.append_weight:
            rows = np.concatenate([rows, weights], 1)
        else:
            rows = rows * weights
    if layout.ragged:
        return rows
    output = np.zeros([*kept.mask.shape, rows.shape[1]], np.float32)
    output[kept.mask] = rows
    return output
