# SPDX-License-Identifier: Apache-2.0
"""Reads and sets fields of rows as files have them, in any of their types."""

import typing

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext.snapshot.manifest import SMALL_DTYPES, RowField

Rows = npt.NDArray[np.uint8]
Values = npt.NDArray[typing.Any]

_LARGEST = np.finfo(np.float32).max


def get(rows: Rows, field: RowField) -> Values:
    """The values of a field, `[n, count]`, which do not share memory with rows.

    Those of bfloat16, which NumPy does not have, are float32.
    """
    bits = stored(rows, field)
    if field.dtype != "bfloat16":
        return bits.view(np.dtype(field.dtype).newbyteorder("<"))
    # The upper half of the bits of a float32.
    return (bits.view("<u2").astype(np.uint32) << 16).view(np.float32)


def stored(rows: Rows, field: RowField) -> Rows:
    """A copy of the bytes of a field: uint8 `[n, bytes]`."""
    return rows[:, _bytes_of(field, 0, field.count)].copy()


def put(rows: Rows, field: RowField, values: Values) -> tuple[int, int]:
    """Sets the first values of a field, rounded to the nearest of its type.

    Args:
      rows: uint8 `[n, row_bytes]`, which are changed.
      field: RowField.
      values: `[n, at most count]`, floats, or of the field's type.

    Returns:
      `(rounded, saturated)`, the numbers of a Conversion.
    """
    to = rows[:, _bytes_of(field, 0, values.shape[1])]
    if values.dtype == np.float64:
        values = np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)
    if field.dtype not in SMALL_DTYPES or values.dtype.name == field.dtype:
        exact = np.ascontiguousarray(values, np.dtype(field.dtype))
        to[:] = exact.view(np.uint8).reshape(to.shape)
        return 0, 0
    values = np.ascontiguousarray(values, np.float32)
    bits, saturated = _core.rounded_to(field.dtype, values)
    to[:] = bits.view(np.uint8).reshape(to.shape)
    if field.dtype == "bfloat16":
        after = (bits.astype(np.uint32) << 16).view(np.float32)
    else:
        after = bits.view(np.float16).astype(np.float32)
    changed = (after != values) & ~np.isnan(values)
    return int(np.count_nonzero(changed)), saturated


def copy(rows: Rows, field: RowField, from_rows: Rows, saved: RowField) -> None:
    """Sets the first values of a field to those of another of its type."""
    count = min(field.count, saved.count)
    rows[:, _bytes_of(field, 0, count)] = from_rows[
        :, _bytes_of(saved, 0, count)
    ]


def _bytes_of(field: RowField, begin: int, end: int) -> slice:
    size = 2 if field.dtype in SMALL_DTYPES else 4
    if field.dtype == "int64":
        size = 8
    return slice(field.offset + begin * size, field.offset + end * size)
