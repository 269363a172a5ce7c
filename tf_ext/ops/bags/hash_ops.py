# SPDX-License-Identifier: Apache-2.0
"""The op that turns raw feature values into signs.

The columns of `tf_ext.feature_column` are its user interface; `tf_ext.hashing`
computes the same signs in NumPy.
"""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.ops._library import library
from tf_ext.ops._stock import hashing as stock_hashing
from tf_ext.ops._stock.scope import or_stock

tf.no_gradient("TfExt>HashCategory")


def hash_category(
    values: Sequence[tf.Tensor],
    row_splits: Sequence[tf.Tensor] | None = None,
    weights: Sequence[tf.Tensor] | None = None,
    *,
    namespaces: Sequence[str],
    bucket_sizes: Sequence[int] | None = None,
    identity: Sequence[bool] | None = None,
    part_counts: Sequence[int] | None = None,
    part_inputs: Sequence[int] | None = None,
    part_bucket_sizes: Sequence[int] | None = None,
    part_has_missing: Sequence[bool] | None = None,
    part_missing: Sequence[str] | None = None,
    part_boundary_counts: Sequence[int] | None = None,
    part_boundaries: Sequence[float] = (),
    return_error: bool = False,
    name: str | None = None,
) -> typing.Any:
    r"""Turns the values of many columns into signs at once.

    There are C columns. Each has one or more parts, and each part reads one of
    the inputs. The lists of parts have P entries, ordered by column.

    The sign of a text is `Fingerprint64(namespace + "\x1f" + text)`, where
    Fingerprint64 is FarmHash's. The text of a string is the string itself; that
    of an integer is its decimal representation; that of a number with
    boundaries is the decimal number of boundaries that are not above it. With a
    bucket size b the text is replaced by the decimal representation of
    `Fingerprint64(text) mod b`. A column with several parts is their cross: for
    each element of the Cartesian product of the parts' bags, with the last part
    varying fastest, the texts are joined by "\x1e" and the weights are
    multiplied.

    Args:
      values: list of the inputs: string, int64, int32 or float32, `[batch_size,
        ...]`, where the other dimensions are the bag, or `[n]` with row_splits.
        NaN is always missing.
      row_splits: list of int64 `[batch_size + 1]`, the bags of each input:
        starts with 0, never decreases, ends with n; None or `[0]` for an input
        without row_splits. None: no input has any.
      weights: list of float32 tensors, one weight for each value of each input;
        None or `[0]` for an input without weights. None: no input has any.
      namespaces: list of C strings. Columns with the same namespace map a text
        to the same sign.
      bucket_sizes: list of C ints, the number of distinct signs of the column;
        0 for no limit. None: all 0.
      identity: list of C bools, whether integers are their own signs. None: all
        False.
      part_counts: list of C ints, the number of parts of the column, 1 to 64.
        None: all 1.
      part_inputs: list of P ints, the index of the part's input. None: part i
        reads input i.
      part_bucket_sizes: list of P ints, the bucket size of a part of a cross; 0
        for none, and for the part of a column with one part. None: all 0.
      part_has_missing: list of P bools, whether the part drops missing values.
        None: all False.
      part_missing: list of P strings, the text of the missing value. None: all
        "".
      part_boundary_counts: list of P ints, the number of boundaries; 0 for
        none. Floats need at least one. None: all 0.
      part_boundaries: list of floats, the boundaries of all parts, ascending
        within each part.
      return_error: whether errors in sizes, row_splits or the number of signs
        are returned as the output `error` instead of raised. Invalid attributes
        and types and ranks that are statically invalid always raise.
      name: optional name of the operation.

    Returns:
      A named tuple: `signs` int64 `[m]`, ordered by column, then by bag;
      `sign_splits` int64 `[C * batch_size + 1]`, where bag b of column c has
      the index `c * batch_size + b`; `sign_weights` float32 `[m]`, 1 for
      columns without weights, or `[0]` if no column has any; `error`, a string
      scalar: "", or, with return_error, the error. If it is not "", m is 0, all
      `sign_splits` are 0, and batch_size is that of the first input that has
      one, or 0 if none has or there would be more than 2^31 - 1 bags.

    Raises:
      tf.errors.InvalidArgumentError: if lists or inputs are inconsistent, or
        there are more than 2^31 - 1 signs.

    Example:
      >>> signs, sign_splits, _, _ = tf_ext.ops.hash_category(
      ...     [["ann", "bob"], [[5, 6], [5, 7]]], namespaces=["user", "item"])
      >>> sign_splits.numpy()
      array([0, 1, 2, 4, 6])
      >>> bool(signs[2] == signs[4])
      True
    """
    columns = len(namespaces)
    if part_counts is None:
        part_counts = [1] * columns
    parts = sum(part_counts)

    def or_default(
        attribute: Sequence[typing.Any] | None, size: int, default: typing.Any
    ) -> Sequence[typing.Any]:
        return [default] * size if attribute is None else attribute

    attributes: dict[str, typing.Any] = {
        "namespaces": namespaces,
        "bucket_sizes": or_default(bucket_sizes, columns, 0),
        "identity": or_default(identity, columns, False),
        "part_counts": part_counts,
        "part_inputs": list(range(parts))
        if part_inputs is None
        else part_inputs,
        "part_bucket_sizes": or_default(part_bucket_sizes, parts, 0),
        "part_has_missing": or_default(part_has_missing, parts, False),
        "part_missing": or_default(part_missing, parts, ""),
        "part_boundary_counts": or_default(part_boundary_counts, parts, 0),
        "part_boundaries": part_boundaries,
    }
    return _hash_category(
        values, row_splits, weights, attributes, return_error, name
    )


@or_stock(stock_hashing.hash_category)
def _hash_category(
    values: Sequence[tf.Tensor],
    row_splits: Sequence[tf.Tensor] | None,
    weights: Sequence[tf.Tensor] | None,
    attributes: dict[str, typing.Any],
    return_error: bool,
    name: str | None,
) -> typing.Any:
    """The op itself, all of whose attributes are given."""
    return library().tf_ext_hash_category(
        values,
        _or_empty(row_splits, len(values), tf.int64),
        _or_empty(weights, len(values), tf.float32),
        **attributes,
        return_error=return_error,
        name=name,
    )


def _or_empty(
    tensors: Sequence[tf.Tensor] | None, size: int, dtype: tf.DType
) -> list[tf.Tensor]:
    """Replaces each tensor that is None with an empty vector."""
    if tensors is None:
        tensors = [None] * size
    empty = None
    result = []
    for tensor in tensors:
        if tensor is None:
            if empty is None:
                empty = tf.zeros([0], dtype)
            tensor = empty
        result.append(tensor)
    return result
