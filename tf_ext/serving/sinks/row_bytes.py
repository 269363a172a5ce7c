# SPDX-License-Identifier: Apache-2.0
"""The bytes of a published row, little-endian.

- float32, float16: the weights;
- int8: the scale of the row, float32, and the weights divided by it.
"""

import typing

import numpy as np
import numpy.typing as npt

from tf_ext.serving import row_dtypes

DTYPES = ("float32", "float16", "int8")

_SCALE_BYTES = 4


def width(dtype: str, dim: int) -> int:
    """The bytes of a row of `dim` weights."""
    if dtype == "int8":
        return _SCALE_BYTES + dim
    return dim * np.dtype(dtype).itemsize


def encode(
    weights: npt.NDArray[typing.Any], dtype: str, table: str
) -> npt.NDArray[np.uint8]:
    """Rows as bytes.

    Args:
      weights: floats `[n, dim]`.
      dtype: one of DTYPES.
      table: string, the table's name, for errors.

    Returns:
      uint8 `[n, width]`.

    Raises:
      ValueError: `dtype` cannot represent a weight.
    """
    rows = weights.astype(np.float32, copy=False)
    numbers, scales = row_dtypes.encode(rows, dtype, table)
    if scales is not None:
        return np.concatenate(
            [_bytes(scales[:, np.newaxis], "<f4"), _bytes(numbers, "i1")], 1
        )
    return _bytes(numbers, np.dtype(dtype).newbyteorder("<"))


def decode(rows: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[np.float32]:
    """The inverse of `encode`: float32 `[n, dim]` of uint8 `[n, width]`."""
    if dtype == "int8":
        scales = np.ascontiguousarray(rows[:, :_SCALE_BYTES]).view("<f4")
        numbers = np.ascontiguousarray(rows[:, _SCALE_BYTES:]).view("i1")
        return numbers.astype(np.float32) * scales.astype(np.float32)
    stored = np.ascontiguousarray(rows).view(np.dtype(dtype).newbyteorder("<"))
    return stored.astype(np.float32)


def _bytes(
    values: npt.NDArray[typing.Any], dtype: npt.DTypeLike
) -> npt.NDArray[np.uint8]:
    stored = np.ascontiguousarray(values.astype(dtype, copy=False))
    # Also of no rows, whose size a view cannot tell.
    size = stored.shape[1] * stored.dtype.itemsize
    return stored.view(np.uint8).reshape(len(stored), size)
