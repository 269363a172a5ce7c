"""Ops by which peers agree on the sizes of what they send to each other.

They raise `tf.errors.InvalidArgumentError` for an argument of the wrong shape
or out of range.
"""

import tensorflow as tf

from tf_ext.ops._library import library

# Columns of a header beside the sizes of each kind of signs.
HEADER_COLUMNS = 3

for _op in ("ExchangeHeader", "ExchangeAgree", "ExchangeWidth"):
    tf.no_gradient(f"TfExt>{_op}")


def exchange_header(split_sizes, lengths, flag, name=None):
    """What a peer says of the signs that it sends to others, before them.

    Args:
      split_sizes: list of int64 `[peers]`, how many signs of each kind go to
        each peer.
      lengths: list of int, how many values each kind of signs has.
      flag: int64 scalar, a number of which all learn the largest.
      name: optional name of the operation.

    Returns:
      int64 `[peers, len(lengths) + 3]`. Row p has how many signs of each kind
      go to peer p; then, the same in all rows, how many columns the longest
      row of header and signs has, how many that of a number and the signs'
      values, and `flag`.

    Example:
      >>> tf_ext.ops.exchange_header([[3, 1], [0, 5]], [16, 1], 0).numpy()
      array([[ 3,  0, 11, 49,  0],
             [ 1,  5, 11, 49,  0]])
    """
    return library().tf_ext_exchange_header(
        [tf.convert_to_tensor(sizes, tf.int64) for sizes in split_sizes],
        tf.convert_to_tensor(flag, tf.int64),
        lengths=list(lengths),
        name=name,
    )


def exchange_agree(received, count, name=None):
    """What follows from the headers of all peers; the same for all of them.

    Args:
      received: int64 `[peers, width]`, rows that begin with the header that
        the peer has made with `exchange_header`.
      count: int, how many kinds of signs there are.
      name: optional name of the operation.

    Returns:
      A named tuple: `counts` int64 `[count, peers]`, how many signs of each
      kind come from each peer; `signs_width` int64 scalar, the columns of
      header and signs of the peer that needs most; `values_width` int64
      scalar, those of a number and values; `flag` int64 scalar, the largest.

    Example:
      >>> agreed = tf_ext.ops.exchange_agree(
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


def exchange_width(wanted, name=None):
    """Rounds a number of columns up to one of a few.

    They are 1 to 15 and, times a power of two, 8 to 15: at most 12.5 % are
    added.

    Args:
      wanted: int64 scalar, at most 2^40.
      name: optional name of the operation.

    Returns:
      A named tuple of scalars: `width` int64, and `index` int32, which of the
      possible widths it is, from 0 on.

    Example:
      >>> [int(x) for x in tf_ext.ops.exchange_width(33)]
      [36, 24]
    """
    return library().tf_ext_exchange_width(
        tf.convert_to_tensor(wanted, tf.int64), name=name
    )
