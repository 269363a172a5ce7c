"""The op that makes string tensors of columns of text.

It is private: the reader of data uses it. It raises
`tf.errors.InvalidArgumentError` for offsets that do not fit.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext.ops._library import library

tf.no_gradient("TfExt>StringsOfColumns")


def strings_of_columns(
    text: Sequence[npt.NDArray[np.uint8]],
    offsets: Sequence[npt.NDArray[np.int32]],
    name: str | None = None,
) -> tf.Tensor:
    """Makes strings of columns as Apache Arrow stores them.

    Args:
      text: list of uint8 `[bytes]`, the values of a column, one after the
        other.
      offsets: list of int32 `[n + 1]`, as many: value i of a column is from
        `offsets[i]` up to `offsets[i + 1]`.
      name: optional name of the operation.

    Returns:
      string `[columns, n]`.

    Example:
      >>> from tf_ext.ops import _text_ops
      >>> text = np.frombuffer(b"annbob", np.uint8)
      >>> _text_ops.strings_of_columns([text], [[0, 3, 3, 6]]).numpy()
      array([[b'ann', b'', b'bob']], dtype=object)
    """
    return library().tf_ext_strings_of_columns(
        list(text), [tf.convert_to_tensor(o, tf.int32) for o in offsets], name
    )
