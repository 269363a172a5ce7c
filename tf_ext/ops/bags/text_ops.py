# SPDX-License-Identifier: Apache-2.0
"""The op that makes strings of columns of text.

It is private: the reader of data uses it. It raises
`tf.errors.InvalidArgumentError` for offsets and rows that do not fit.
"""

import typing

import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>StringsOfColumns")


def strings_of_columns(
    text: typing.Any,
    offsets: typing.Any,
    rows: typing.Any,
    columns: int,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Makes strings of some rows of columns.

    Args:
      text: uint8 `[bytes]`, the values of all columns.
      offsets: int64 `[columns, n + 1]`: value i of a column is from
        `offsets[i]` up to `offsets[i + 1]`.
      rows: int64 `[m]`, 0 to n - 1.
      columns: int, the number of columns.
      name: optional name of the operation.

    Returns:
      List of string `[m]`, one for each column.

    Example:
      >>> from tf_ext.ops.bags import text_ops
      >>> [names] = text_ops.strings_of_columns(
      ...     list(b"annbob"), [[0, 3, 3, 6]], rows=[2, 0], columns=1)
      >>> names.numpy().tolist()
      [b'bob', b'ann']
    """
    return library().tf_ext_strings_of_columns(
        tf.convert_to_tensor(text, tf.uint8),
        tf.convert_to_tensor(offsets, tf.int64),
        tf.convert_to_tensor(rows, tf.int64),
        columns=columns,
        name=name,
    )
