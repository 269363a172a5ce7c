"""Ops around an all-to-all collective.

They raise `tf.errors.InvalidArgumentError` for an argument of the wrong shape
or numbers that do not fit together.
"""

import tensorflow as tf

from tf_ext.ops._library import library
from tf_ext.ops._signs import to_signs

for _op in (
    "ExchangePack",
    "ExchangeUnpack",
    "ExchangePull",
    "ExchangeSum",
    "RaiseError",
):
    tf.no_gradient(f"TfExt>{_op}")


def exchange_pack(
    values,
    split_sizes,
    header,
    width,
    limit=0.0,
    all_or_none=False,
    name=None,
):
    """Lays out what goes to each peer in one row of a matrix.

    Row p is row p of `header`, then peer p's part of each of `values`,
    flattened, then zeros.

    Args:
      values: list of int64 or of float32 `[n_i, ...]`, each ordered by peer.
      split_sizes: list of int64 `[peers]`, how many of each of `values` go to
        each peer.
      header: of the same type, `[peers, h]`.
      width: int64 scalar, columns of the result, not fewer than a row needs.
      limit: float, for float32 only. If above 0, the header's first column is
        replaced: by 1 if a value for any peer is not within `[-limit, limit]`,
        as NaN is not, and else by 0.
      all_or_none: bool, whether `width` may be less than a row needs, down to
        the columns of the header: zeros are then in the place of all values.
      name: optional name of the operation.

    Returns:
      Of the same type, `[peers, width]`.

    Example:
      >>> tf_ext.ops.exchange_pack(
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


def _type_of(values):
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


def exchange_unpack(packed, counts, dims, offset=0, name=None):
    """Takes apart what came from the peers: the inverse of `exchange_pack`.

    Args:
      packed: int64 or float32 `[peers, width]`, row p from peer p.
      counts: int64 `[len(dims), peers]`, how many rows of each value each peer
        sent.
      dims: list of int, the length of a row of each value.
      offset: int, columns before the values, which are skipped.
      name: optional name of the operation.

    Returns:
      List of `[sum of counts[i], dims[i]]`, of the type of `packed`, ordered
      by peer.

    Example:
      >>> [rows] = tf_ext.ops.exchange_unpack(
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
        name=name,
    )


def exchange_pull(
    handles, signs, split_sizes, training, width, dims, name=None
):
    r"""Reads weights into one row of a matrix for each peer.

    It is `sparse_table_pull` and `exchange_pack` without a header, and without
    the copy.

    Args:
      handles: list of resource `[]`, the tables.
      signs: list of int64 `[n_i]`, each ordered by peer.
      split_sizes: list of int64 `[peers]`, how many of each of `signs` are of
        each peer.
      training: list of bool `[]`, whether absent signs are inserted.
      width: int64 scalar, columns of the result, not fewer than a row needs.
      dims: list of int, the tables' numbers of weights in a row.
      name: optional name of the operation.

    Returns:
      float32 `[peers, width]`.

    Example:
      >>> handle = tf_ext.ops.sparse_table_handle(
      ...     "dim=2\ninitializer=constant\ninitializer.value=0.5\n"
      ...     "name=items\noptimizer=sgd")
      >>> tf_ext.ops.exchange_pull(
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
        name=name,
    )


def exchange_sum(
    packed, counts, segments, totals, dims, sum_of, offset=0, name=None
):
    """Sums rows of what came from the peers.

    It is `exchange_unpack`, a concatenation of the values of each sum, and
    `sum_segments`, without the copies.

    Args:
      packed: float32 `[peers, width]`, row p from peer p.
      counts: int64 `[len(dims), peers]`, how many rows of each value each peer
        sent.
      segments: list of int32 `[n_i]`, one a sum: to which of its rows each row
        of its values is added.
      totals: list of int64 scalars, the number of rows of each sum.
      dims: list of int, the length of a row of each value.
      sum_of: list of int, to which sum each value belongs.
      offset: int, columns before the values, which are skipped.
      name: optional name of the operation.

    Returns:
      List of float32 `[totals[i], dim]`, zeros in rows that nothing is added
      to. They have the same bits whatever the number of threads.

    Example:
      >>> [total] = tf_ext.ops.exchange_sum(
      ...     [[7.0, 0.0], [8.0, 9.0]], counts=[[1, 2]],
      ...     segments=[[0, 1, 0]], totals=[2], dims=[1], sum_of=[0])
      >>> total.numpy()
      array([[16.],
             [ 8.]], dtype=float32)
    """
    return library().tf_ext_exchange_sum(
        tf.convert_to_tensor(packed, tf.float32),
        tf.convert_to_tensor(counts, tf.int64),
        [tf.convert_to_tensor(each, tf.int32) for each in segments],
        [tf.convert_to_tensor(total, tf.int64) for total in totals],
        offset=offset,
        dims=list(dims),
        sum_of=list(sum_of),
        name=name,
    )


def raise_error(error, name=None):
    """Raises InvalidArgumentError with a text, unless that is empty.

    Args:
      error: string scalar.
      name: optional name of the operation.

    Returns:
      The empty text, a string scalar.

    Example:
      >>> tf_ext.ops.raise_error("").numpy()
      b''
    """
    return library().tf_ext_raise_error(error, name=name)
