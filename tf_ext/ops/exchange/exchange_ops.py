# SPDX-License-Identifier: Apache-2.0
"""Ops that agree on the sizes of an all-to-all collective and pack its buffers.

They are private: all processes of a job run the same version, so the layout of
the buffers may change. They raise `tf.errors.InvalidArgumentError` for an
argument of the wrong shape or out of range, and for inconsistent numbers.
"""

import typing
from collections.abc import Sequence

import tensorflow as tf

from tf_ext.ops._library import library
from tf_ext.ops._signs import to_signs

# Columns of a header beside the sizes of each kind of signs.
HEADER_COLUMNS = 3

for _op in (
    "ExchangeHeader",
    "ExchangeAgree",
    "ExchangeWidth",
    "ExchangePack",
    "ExchangeUnpack",
    "ExchangePull",
    "ExchangeSum",
    "ExchangeWeigh",
    "RaiseError",
):
    tf.no_gradient(f"TfExt>{_op}")


def exchange_header(
    split_sizes: Sequence[tf.Tensor],
    lengths: Sequence[int],
    flag: int | tf.Tensor,
    name: str | None = None,
) -> tf.Tensor:
    """Makes the headers that a peer sends ahead of its signs.

    Args:
      split_sizes: list of int64 `[peers]`, the number of signs of each kind for
        each peer.
      lengths: list of int, the number of values per sign of each kind.
      flag: int64 scalar; all peers receive the maximum.
      name: optional name of the operation.

    Returns:
      int64 `[peers, len(lengths) + 3]`. Row p has the numbers of signs of each
      kind for peer p; then, the same in all rows, the columns of the longest
      row of a header and signs, those of the longest row of a number and the
      signs' values, and `flag`.

    Example:
      >>> from tf_ext.ops.exchange import exchange_ops
      >>> exchange_ops.exchange_header([[3, 1], [0, 5]], [16, 1], 0).numpy()
      array([[ 3,  0, 11, 49,  0],
             [ 1,  5, 11, 49,  0]])
    """
    return library().tf_ext_exchange_header(
        [tf.convert_to_tensor(sizes, tf.int64) for sizes in split_sizes],
        tf.convert_to_tensor(flag, tf.int64),
        lengths=list(lengths),
        name=name,
    )


def exchange_agree(
    received: tf.Tensor, count: int, name: str | None = None
) -> typing.Any:
    """Combines the headers of all peers into sizes on which all agree.

    Args:
      received: int64 `[peers, width]`, rows that start with the header that
        the peer made with `exchange_header`.
      count: int, the number of kinds of signs.
      name: optional name of the operation.

    Returns:
      A named tuple: `counts` int64 `[count, peers]`, the number of signs of
      each kind from each peer; `signs_width` int64 scalar, the maximum over the
      peers of the columns of header and signs; `values_width` int64 scalar,
      that of the columns of a number and values; `flag` int64 scalar, the
      maximum.

    Example:
      >>> from tf_ext.ops.exchange import exchange_ops
      >>> agreed = exchange_ops.exchange_agree(
      ...     [[3, 0, 11, 49, 0], [2, 2, 9, 35, 1]], count=2)
      >>> agreed.counts.numpy()
      array([[3, 2],
             [0, 2]])
      >>> [int(x) for x in agreed[1:]]
      [11, 49, 1]
    """
    return library().tf_ext_exchange_agree(
        tf.convert_to_tensor(received, tf.int64), count=count, name=name
    )


def exchange_width(
    wanted: int | tf.Tensor, name: str | None = None
) -> typing.Any:
    """Rounds a number of columns up to one of a small set of widths.

    These are 1 to 15, and 8 to 15 times a power of two: at most 12.5 % is
    added.

    Args:
      wanted: int64 scalar, at most 2^40.
      name: optional name of the operation.

    Returns:
      A named tuple of scalars: `width` int64, and `index` int32, the index of
      the width in the set.

    Example:
      >>> from tf_ext.ops.exchange import exchange_ops
      >>> [int(x) for x in exchange_ops.exchange_width(33)]
      [36, 24]
    """
    return library().tf_ext_exchange_width(
        tf.convert_to_tensor(wanted, tf.int64), name=name
    )


def exchange_pack(
    values: Sequence[tf.Tensor],
    split_sizes: Sequence[tf.Tensor],
    header: tf.Tensor,
    width: int | tf.Tensor,
    limit: float = 0.0,
    all_or_none: bool = False,
    name: str | None = None,
) -> tf.Tensor:
    """Packs the values for each peer into one row of a matrix.

    Row p is row p of `header`, then peer p's part of each of `values`,
    flattened, then zeros.

    Args:
      values: list of int64 or of float32 `[n_i, ...]`, each ordered by peer.
      split_sizes: list of int64 `[peers]`, how many of each of `values` go to
        each peer.
      header: of the same type, `[peers, h]`.
      width: int64 scalar, columns of the result, at least those of any row.
      limit: float, for float32 only. If above 0, the header's first column is
        replaced: by 1 if a value for any peer is NaN or outside
        `[-limit, limit]`, else by 0.
      all_or_none: bool, whether `width` may be less than a row needs, down to
        the columns of the header: all values are then replaced by zeros.
      name: optional name of the operation.

    Returns:
      Of the same type, `[peers, width]`.

    Example:
      >>> from tf_ext.ops.exchange import exchange_ops
      >>> exchange_ops.exchange_pack(
      ...     [[7, 8, 9]], [[1, 2]], header=[[1], [2]], width=4).numpy()
      array([[1, 7, 0, 0],
             [2, 8, 9, 0]])
    """
    dtype = _type_of(values)
    return library().tf_ext_exchange_pack(
        [tf.convert_to_tensor(value, dtype) for value in values],
        [tf.convert_to_tensor(sizes, tf.int64) for sizes in split_sizes],
        tf.convert_to_tensor(header, dtype),
        tf.convert_to_tensor(width, tf.int64),
        limit=limit,
        all_or_none=all_or_none,
        name=name,
    )


def _type_of(values: Sequence[tf.Tensor]) -> tf.DType:
    if not values:
        raise ValueError(
            "Argument `values` of exchange_pack must be a non-empty list of "
            "tensors. Received: values=[]"
        )
    first = values[0]
    if hasattr(first, "dtype"):
        return first.dtype
    first = tf.convert_to_tensor(first)
    return tf.int64 if first.dtype.is_integer else tf.float32


def exchange_unpack(
    packed: tf.Tensor,
    counts: tf.Tensor,
    dims: Sequence[int],
    offset: int = 0,
    flat: bool = False,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Unpacks the values from the peers: the inverse of `exchange_pack`.

    Args:
      packed: int64 or float32 `[peers, width]`, row p from peer p.
      counts: int64 `[len(dims), peers]`, how many rows of each value each peer
        sent.
      dims: list of int, the length of a row of each value.
      offset: int, columns before the values, which are skipped.
      flat: bool, whether the results are vectors, of one row after the other.
      name: optional name of the operation.

    Returns:
      List of `[sum of counts[i], dims[i]]`, of the type of `packed`, ordered
      by peer.

    Example:
      >>> from tf_ext.ops.exchange import exchange_ops
      >>> [rows] = exchange_ops.exchange_unpack(
      ...     [[1.0, 7.0, 0.0, 0.0], [2.0, 8.0, 9.0, 0.0]],
      ...     counts=[[1, 2]], dims=[1], offset=1)
      >>> rows.numpy()
      array([[7.],
             [8.],
             [9.]], dtype=float32)
    """
    return library().tf_ext_exchange_unpack(
        packed,
        tf.convert_to_tensor(counts, tf.int64),
        N=len(dims),
        offset=offset,
        dims=list(dims),
        flat=flat,
        name=name,
    )


def exchange_pull(
    handles: Sequence[tf.Tensor],
    signs: Sequence[tf.Tensor],
    split_sizes: Sequence[tf.Tensor],
    training: Sequence[bool | tf.Tensor],
    width: int | tf.Tensor,
    dims: Sequence[int],
    statistics: Sequence[int] = (),
    name: str | None = None,
) -> tf.Tensor:
    r"""Reads weights and statistics into one row of a matrix for each peer.

    Equivalent to `sparse_table_pull` followed by `exchange_pack` without a
    header, but without the copy.

    Args:
      handles: list of resource `[]`, the tables.
      signs: list of int64 `[n_i]`, each ordered by peer.
      split_sizes: list of int64 `[peers]`, how many of each of `signs` come
        from each peer.
      training: list of bool `[]`, whether absent signs are inserted.
      width: int64 scalar, columns of the result, at least those of any row.
      dims: list of int, the dims of the tables.
      statistics: list of int, how many statistics follow the weights of each
        table's rows: 0, or how many the table has. Empty: none.
      name: optional name of the operation.

    Returns:
      float32 `[peers, width]`.

    Example:
      >>> from tf_ext.ops.exchange import exchange_ops
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=constant\ninitializer.value=0.5\n"
      ...     "name=items\noptimizer=sgd")
      >>> exchange_ops.exchange_pull(
      ...     [handle], [[7, -1, 7]], [[1, 2]], [False], 5, dims=[2]).numpy()
      array([[0.5, 0.5, 0. , 0. , 0. ],
             [0.5, 0.5, 0.5, 0.5, 0. ]], dtype=float32)
    """
    return library().tf_ext_exchange_pull(
        handles,
        [to_signs(each, "exchange_pull") for each in signs],
        [tf.convert_to_tensor(sizes, tf.int64) for sizes in split_sizes],
        training,
        tf.convert_to_tensor(width, tf.int64),
        dims=list(dims),
        statistics=list(statistics),
        name=name,
    )


def exchange_sum(
    packed: tf.Tensor,
    counts: tf.Tensor,
    segments: Sequence[tf.Tensor],
    signs: Sequence[tf.Tensor],
    dims: Sequence[int],
    sum_of: Sequence[int],
    offset: int | tf.Tensor = 0,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Sums rows of the values from the peers.

    Equivalent to `exchange_unpack`, a concatenation of the values of each sum,
    and `sum_segments`, but without the copies.

    Args:
      packed: float32 `[peers, width]`, row p from peer p.
      counts: int64 `[len(dims), peers]`, how many rows of each value each peer
        sent.
      segments: list of int32 `[n_i]`, one per sum: the row of the sum to which
        each row of its values is added.
      signs: list of int64 `[u_i]`, those of the rows of each sum. Only their
        number counts.
      dims: list of int, the length of a row of each value.
      sum_of: list of int, the sum to which each value belongs.
      offset: int64 scalar, columns before the values, which are skipped.
      name: optional name of the operation.

    Returns:
      List of float32 `[u_i, dim]`, zeros in rows to which nothing is
      added. The results are bit-identical for any number of threads.

    Example:
      >>> from tf_ext.ops.exchange import exchange_ops
      >>> [total] = exchange_ops.exchange_sum(
      ...     [[7.0, 0.0], [8.0, 9.0]], counts=[[1, 2]],
      ...     segments=[[0, 1, 0]], signs=[[5, -3]], dims=[1], sum_of=[0])
      >>> total.numpy()
      array([[16.],
             [ 8.]], dtype=float32)
    """
    return library().tf_ext_exchange_sum(
        tf.convert_to_tensor(packed, tf.float32),
        tf.convert_to_tensor(counts, tf.int64),
        [tf.convert_to_tensor(each, tf.int32) for each in segments],
        [to_signs(each, "exchange_sum") for each in signs],
        tf.convert_to_tensor(offset, tf.int64),
        dims=list(dims),
        sum_of=list(sum_of),
        name=name,
    )


def exchange_weigh(
    values: Sequence[tf.Tensor],
    weight: float | tf.Tensor,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Multiplies each of some tensors by a weight.

    Args:
      values: list of float32 tensors of any shapes, not empty.
      weight: float32 scalar. The products with 0 are 0, also those of infinity
        and NaN, as with `tf.math.multiply_no_nan`.
      name: optional name of the operation.

    Returns:
      List of float32 tensors of the same shapes.

    Example:
      >>> from tf_ext.ops.exchange import exchange_ops
      >>> [one, other] = exchange_ops.exchange_weigh([[1.0, 2.0], [[3.0]]], 0.5)
      >>> one.numpy(), other.numpy()
      (array([0.5, 1. ], dtype=float32), array([[1.5]], dtype=float32))
    """
    return library().tf_ext_exchange_weigh(
        [tf.convert_to_tensor(value, tf.float32) for value in values],
        tf.convert_to_tensor(weight, tf.float32),
        name=name,
    )


def raise_error(error: str | tf.Tensor, name: str | None = None) -> tf.Tensor:
    """Raises InvalidArgumentError with the message `error`, unless it is empty.

    Args:
      error: string scalar.
      name: optional name of the operation.

    Returns:
      The empty string, a string scalar.

    Example:
      >>> from tf_ext.ops.exchange import exchange_ops
      >>> exchange_ops.raise_error("").numpy()
      b''
    """
    return library().tf_ext_raise_error(error, name=name)
