# SPDX-License-Identifier: Apache-2.0
"""Makes the outputs of columns from the rows of a batch."""

import itertools
import typing
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf_ext import ops
from tf_ext.feature_column import Bags
from tf_ext.feature_column.column import Column

_POOLED = "pooled"
_MAX = "max"


def combine(
    rows: tf.Tensor,
    inverse: tf.Tensor,
    bags: Bags,
    columns: Sequence[Column],
    masks: Mapping[Column, tf.Tensor],
) -> Sequence[tuple[Sequence[Column], tf.Tensor]]:
    """Makes the outputs of columns on one table.

    Adjacent columns whose rows are combined share an op; so do the positions of
    a sequence, each a bag of at most one row. The other columns arrange their
    rows themselves.

    Args:
      rows: float32 `[u, dim]`.
      inverse: int32 `[n]`.
      bags: Bags of the columns; its weights are `[0]` if none has any.
      columns: list of columns.
      masks: dict of bool `[batch_size, length]`, by sequence.

    Returns:
      List of `(columns, output)`: adjacent columns, in their order, with
      `[batch_size, len(columns) * dim]`; or a single column with its output,
      `[batch_size, *output_shape(dim)]`.

    Raises:
      ValueError: a column's output has another shape than its `output_shape`.
    """
    weighted = any(column.is_weighted for column in columns)
    runs = [
        list(run)
        for _, run in itertools.groupby(columns, lambda c: _kind(c, weighted))
    ]
    if len(runs) == 1 and columns[0].combiner is not None:
        weights = bags.weights if weighted else None
        pooled = _pool(rows, inverse, bags.row_splits, weights, columns)
        return [(columns, pooled)]
    batch = (tf.size(bags.row_splits, tf.int64) - 1) // len(columns)
    outputs, begin = [], 0
    for run in runs:
        end = begin + len(run)
        splits = bags.row_splits[begin * batch : end * batch + 1]
        values = slice(splits[0], splits[-1])
        weights = bags.weights[values] if weighted else None
        first, its, splits = run[0], inverse[values], splits - splits[0]
        if first.combiner is not None:
            output = _pool(rows, its, splits, weights, run)
        else:
            its_weights = weights if first.is_weighted else None
            mask = masks.get(first)
            output = first.place(rows, its, splits, its_weights, mask)
        outputs.append((run, output))
        begin = end
    return outputs


def _kind(column: Column, weighted: bool) -> Column | str:
    """A key that is equal for columns that one op can combine."""
    if column.combiner is None:
        return column
    # max takes no weights.
    return _MAX if weighted and column.combiner == _MAX else _POOLED


def _pool(
    rows: tf.Tensor,
    inverse: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor | None,
    columns: Sequence[Column],
) -> tf.Tensor:
    combiners: list[typing.Any] = [column.combiner for column in columns]
    if _MAX in combiners:
        weights = None
    return ops.combine_bags(
        rows, inverse, row_splits, weights, combiners=combiners
    )
