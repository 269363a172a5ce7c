# SPDX-License-Identifier: Apache-2.0
"""The bags of a batch, and how those of several columns are put together."""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.ops._stock import singles
from tf_ext.ops.bags import bag_ops


class Bags(typing.NamedTuple):
    """The signs of a batch in bags, ordered by column and then by example.

    Bag b of column c holds the signs from `row_splits[c * batch_size + b]` up
    to, but not including, `row_splits[c * batch_size + b + 1]`.

    Attributes:
      signs: int64 `[m]`.
      row_splits: int64 `[number of columns * batch_size + 1]`.
      weights: float32 `[m]`, 1 for columns without weights; or `[0]` if no
        column has weights, or those that have are empty in the whole batch.
    """

    signs: tf.Tensor
    row_splits: tf.Tensor
    weights: tf.Tensor


def select(
    bags: Bags, weighted_columns: Sequence[bool], places: Sequence[int]
) -> Bags:
    """The bags of some columns.

    Args:
      bags: Bags of columns.
      weighted_columns: list of bool, whether each of them has weights.
      places: list of int, the indices of the columns wanted, in their order.
    """
    if list(places) == list(range(len(weighted_columns))):
        return bags
    count = len(weighted_columns)
    batch = (tf.size(bags.row_splits, tf.int64) - 1) // count
    weighted = any(weighted_columns[place] for place in places)
    signs, splits, weights = [], [], [] if weighted else [bags.weights[:0]]
    end = tf.zeros([], tf.int64)
    for begin, stop in _runs(places):
        part = bags.row_splits[begin * batch : stop * batch + 1]
        values = slice(part[0], part[-1])
        signs.append(bags.signs[values])
        if weighted:
            weights.append(bags.weights[values])
        # Each run ends where the next begins.
        splits.append(part[:-1] - part[0] + end)
        end += part[-1] - part[0]
    splits.append(end[tf.newaxis])
    part = Bags(_join(signs), tf.concat(splits, 0), _join(weights))
    if singles.columns_of_singles(bags.row_splits) is not None:
        singles.mark_singles([part.signs, part.row_splits], len(places))
    return part


def select_each(
    bags: Bags,
    weighted_columns: Sequence[bool],
    sets: Sequence[tuple[int, ...]],
) -> list[Bags]:
    """What `select` returns for each of several sets of columns.

    Sets of consecutive columns, as those of a table usually are, take one op
    together, instead of about 25 each.

    Args:
      bags: Bags of columns.
      weighted_columns: list of bool, as of `select`.
      sets: list of tuples of int, `places` as of `select`.
    """
    runs = {}
    for places in sets:
        found = _runs(places)
        if len(found) == 1 and len(places) < len(weighted_columns):
            runs[places] = found[0]
    if len(runs) < 2:
        return [select(bags, weighted_columns, places) for places in sets]
    cut = bag_ops.cut_bags(
        *bags,
        columns=len(weighted_columns),
        runs=list(runs.values()),
        weighted=[any(weighted_columns[b:e]) for b, e in runs.values()],
    )
    parts = dict(zip(runs, map(Bags._make, zip(*cut))))
    return [
        parts[places]
        if places in parts
        else select(bags, weighted_columns, places)
        for places in sets
    ]


def _join(pieces: list[tf.Tensor]) -> tf.Tensor:
    return pieces[0] if len(pieces) == 1 else tf.concat(pieces, 0)


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of consecutive numbers: (0, 1, 4) -> [(0, 2), (4, 5)]."""
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1][1] += 1
        else:
            runs.append([place, place + 1])
    return [(begin, stop) for begin, stop in runs]


def concatenate(blocks: Sequence[Bags], weighted: bool) -> Bags:
    """The bags of some columns, followed by those of others.

    Args:
      blocks: list of Bags of one batch size. Their weights may be `[0]`, for
        weights of 1.
      weighted: bool, whether a column has weights.
    """
    splits, end = [], tf.zeros([], tf.int64)
    for block in blocks:
        splits.append(block.row_splits[:-1] + end)
        end += block.row_splits[-1]
    weights = [
        tf.concat([one.weights, tf.ones([_missing_weights(one)])], 0)
        for one in blocks
        if weighted
    ]
    return Bags(
        tf.concat([block.signs for block in blocks], 0),
        tf.concat([*splits, end[tf.newaxis]], 0),
        tf.concat(weights, 0) if weighted else tf.zeros([0]),
    )


def _missing_weights(bags: Bags) -> tf.Tensor:
    return tf.size(bags.signs) - tf.size(bags.weights)
