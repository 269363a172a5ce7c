# SPDX-License-Identifier: Apache-2.0
"""The types in which served rows are stored."""

import typing

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Array: typing.TypeAlias = npt.NDArray[typing.Any]

NAMES = ("float32", "float16", "bfloat16", "int8")

_INT8_MAX = 127


def check_name(dtype: object, function: str) -> None:
    """Raises ValueError unless `dtype` is one of NAMES.

    Args:
      dtype: the user's argument.
      function: string, the name of the public function, for the error.
    """
    if dtype not in NAMES:
        names = ", ".join(map(repr, NAMES))
        raise ValueError(
            f"Argument `dtype` of {function} must be one of {names}. "
            f"Received: dtype={dtype!r}"
        )


def for_dim(dtype: str, dim: int) -> str:
    """The name of the type in which rows of `dim` weights are stored.

    It is not int8 for a single weight, whose scale would take more memory than
    int8 saves.
    """
    return "float16" if dtype == "int8" and dim == 1 else dtype


def bytes_of_row(dtype: str, dim: int) -> int:
    """The size in bytes of a row's weights, including its scale."""
    scale = 4 if dtype == "int8" else 0
    return tf.as_dtype(dtype).size * dim + scale


def encode(rows: Array, dtype: str, label: str) -> tuple[Array, Array | None]:
    """Converts rows to the type in which they are stored.

    Args:
      rows: float32 `[n, dim]`.
      dtype: one of NAMES.
      label: string, the table's name, for errors.

    Returns:
      `(rows [n, dim], scales float32 [n])`. With int8, a weight is the stored
      number times the scale of its row; for other types, scales are None.

    Raises:
      ValueError: if `dtype` cannot represent a weight.
    """
    if dtype == "float32":
        return rows, None
    if dtype == "int8":
        return _quantize(rows, label)
    numpy_dtype = tf.as_dtype(dtype).as_numpy_dtype
    with np.errstate(over="ignore"):
        stored = rows.astype(numpy_dtype)
    lost = np.isfinite(rows) & ~np.isfinite(stored.astype(np.float32))
    if lost.any():
        raise ValueError(
            f"Table {label!r} has the weight {rows[lost][0]:g}, which is more "
            f"than {dtype} can represent (at most {tf.as_dtype(dtype).max:g}). "
            "Export it with dtype='float32'."
        )
    return stored, None


def _quantize(rows: Array, label: str) -> tuple[Array, Array]:
    if not np.isfinite(rows).all():
        raise ValueError(
            f"Table {label!r} has the weight {rows[~np.isfinite(rows)][0]:g}, "
            "which int8 cannot represent. Export it with dtype='float32'."
        )
    scales = np.abs(rows).max(axis=1) / np.float32(_INT8_MAX)
    divisors = np.where(scales > 0, scales, 1)[:, np.newaxis]
    numbers = np.rint(rows / divisors).clip(-_INT8_MAX, _INT8_MAX)
    return numbers.astype(np.int8), scales
