"""Makes the outputs of columns from the rows of a batch."""

import itertools
import typing
from collections.abc import Sequence

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
) -> Sequence[tuple[Sequence[Column], tf.Tensor]]:
    """Makes the outputs of columns on one table.

    Adjacent columns whose rows are combined share an op; the other columns
    arrange their rows themselves.

    Args:
      rows: float32 `[u, dim]`.
      inverse: int32 `[n]`.
      bags: Bags of the columns; its weights are `[0]` if none has any.
      columns: list of columns.

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
        make = _pool if run[0].combiner is not None else _arrange
        weights = bags.weights[values] if weighted else None
        output = make(rows, inverse[values], splits - splits[0], weights, run)
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


def _arrange(
    rows: tf.Tensor,
    inverse: tf.Tensor,
    row_splits: tf.Tensor,
    weights: tf.Tensor | None,
    columns: Sequence[Column],
) -> tf.Tensor:
    [column] = columns
    output = column.arrange(
        tf.gather(rows, inverse),
        row_splits,
        weights if column.is_weighted else None,
    )
    wanted = [None, *column.output_shape(rows.shape[1])]
    if not output.shape.is_compatible_with(wanted):
        raise ValueError(
            f"Method `arrange` of column {column.name!r} must return a tensor "
            f"of shape {wanted}, as `output_shape` says. Received: a tensor of "
            f"shape {output.shape}"
        )
    return output
