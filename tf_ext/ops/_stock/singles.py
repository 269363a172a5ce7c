# SPDX-License-Identifier: Apache-2.0
"""Marks tensors of columns that all have exactly one value per sample.

Most features are of this kind. Their bags need no sums, so that their rows can
be looked up in sample-major order and the result only needs to be reshaped.
Marks are stored in the graph, in a dict beside the tensors, because no stock op
has an attribute for them. Eager tensors are not marked.
"""

import typing

import tensorflow as tf

from tf_ext._compat.graphs import attached_to_graph

_SINGLES = "stock_singles"
_IN_ORDER = "stock_in_order"


def mark_singles(tensors: typing.Iterable[tf.Tensor], columns: int) -> None:
    """Marks signs and row splits of bags with one value each.

    Args:
      tensors: signs, int64 `[columns * batch_size]` in column-major order, or
        the row splits of their bags.
      columns: int, the number of columns.
    """
    for tensor in tensors:
        _mark(tensor, _SINGLES, columns)


def columns_of_singles(tensor: tf.Tensor) -> int | None:
    """The number of columns that `mark_singles` stored, or None."""
    return _mark_of(tensor, _SINGLES)


def mark_order(inverse: tf.Tensor, columns: int) -> None:
    """Marks the result of `unique_by_shard` with the order of the rows.

    Args:
      inverse: int32 `[n]`, the index of each value's row.
      columns: int. If greater than 1, the rows are in sample-major order, and
        are those of this number of columns with one value per sample. If 1,
        row i is that of value i.
    """
    _mark(inverse, _IN_ORDER, columns)


def columns_in_order(inverse: tf.Tensor) -> int | None:
    """The number of columns that `mark_order` stored, or None."""
    return _mark_of(inverse, _IN_ORDER)


def _mark(tensor: tf.Tensor, key: str, columns: int) -> None:
    if tf.is_symbolic_tensor(tensor):
        attached_to_graph(tensor.graph, key)[tensor.op] = columns


def _mark_of(tensor: tf.Tensor, key: str) -> int | None:
    if not tf.is_symbolic_tensor(tensor):
        return None
    return attached_to_graph(tensor.graph, key).get(tensor.op)
