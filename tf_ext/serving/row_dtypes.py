# SPDX-License-Identifier: Apache-2.0
"""The types in which served rows are stored."""

import typing

import numpy as np
import numpy.typing as npt

Array: typing.TypeAlias = npt.NDArray[typing.Any]

NAMES = ("float32", "float16", "bfloat16", "int8")

_INT8_MAX = 127


def encode(rows: Array, dtype: str, table: str) -> tuple[Array, Array | None]:
    """Converts rows to the type in which they are stored.

    Args:
      rows: float32 `[n, dim]`.
      dtype: one of NAMES.
      table: string, the table's name, for errors.

    Returns:
      `(rows [n, dim], scales float32 [n])`. With int8, a weight is the stored
      number times the scale of its row; for other types, scales are None.

    Raises:
      ValueError: if `dtype` cannot represent a weight.
    """
    if dtype == "float32":
        return rows, None
    if dtype == "int8":
        return _quantize(rows, table)
    numpy_dtype, largest = _numpy_dtype(dtype)
    with np.errstate(over="ignore"):
        stored = rows.astype(numpy_dtype)
    lost = np.isfinite(rows) & ~np.isfinite(stored.astype(np.float32))
    if lost.any():
        raise ValueError(
            f"Table {table!r} has the weight {rows[lost][0]:g}, which is more "
            f"than {dtype} can represent (at most {largest:g}). "
            "Export it with dtype='float32'."
        )
    return stored, None


def _numpy_dtype(dtype: str) -> tuple[npt.DTypeLike, float]:
    """NumPy's dtype of this name, and its largest number."""
    if dtype == "float16":
        return np.float16, float(np.finfo(np.float16).max)
    # NumPy has no bfloat16. All others are to work without TensorFlow.
    import tensorflow as tf

    return tf.as_dtype(dtype).as_numpy_dtype, tf.as_dtype(dtype).max


def _quantize(rows: Array, table: str) -> tuple[Array, Array]:
    if not np.isfinite(rows).all():
        raise ValueError(
            f"Table {table!r} has the weight {rows[~np.isfinite(rows)][0]:g}, "
            "which int8 cannot represent. Export it with dtype='float32'."
        )
    scales = np.abs(rows).max(axis=1) / np.float32(_INT8_MAX)
    divisors = np.where(scales > 0, scales, 1)[:, np.newaxis]
    numbers = np.rint(rows / divisors).clip(-_INT8_MAX, _INT8_MAX)
    return numbers.astype(np.int8), scales
