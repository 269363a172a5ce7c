"""Ops around an all-to-all collective.

They raise `tf.errors.InvalidArgumentError` for an argument of the wrong shape
or numbers that do not fit together.
"""

import tensorflow as tf

from tf_ext.ops._library import library

for _op in ("ExchangePack", "ExchangeUnpack", "RaiseError"):
    tf.no_gradient(f"TfExt>{_op}")


def exchange_pack(values, split_sizes, header, width, name=None):
    """Lays out what goes to each peer in one row of a matrix.

    Row p is row p of `header`, then peer p's part of each of `values`,
    flattened, then zeros.

    Args:
      values: list of int64 or of float32 `[n_i, ...]`, each ordered by peer.
      split_sizes: list of int64 `[peers]`, how many of each of `values` go to
        each peer.
      header: of the same type, `[peers, h]`.
      width: int64 scalar, columns of the result, not fewer than a row needs.
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
        name=name,
    )


def _type_of(values):
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
