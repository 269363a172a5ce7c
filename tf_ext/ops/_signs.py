# SPDX-License-Identifier: Apache-2.0
"""Converts arguments to signs (ids)."""

import numbers
import typing
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._checks import is_int


def to_signs(signs: tf.Tensor | npt.ArrayLike, function: str) -> tf.Tensor:
    """Converts signs to an int64 tensor; refuses lossy conversions.

    Args:
      signs: tensor, array, or (nested) list of integers. Unsigned 64-bit
        integers are reinterpreted as int64, as `tf_ext.hashing` does.
      function: string, the name of the function called, for messages.

    Returns:
      int64 tensor of the same shape.

    Raises:
      ValueError: if they are not integers: floats, booleans, strings, ...
    """
    if isinstance(signs, tf.Tensor) and signs.dtype == tf.int64:
        return tf.convert_to_tensor(signs)  # captures eager tensors in graphs
    try:
        tensor = _to_tensor(signs)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{_wanted(function)} Received: signs={_shortened(signs)} ({error})"
        ) from error
    dtype = tensor.dtype
    if dtype == tf.uint64:
        return tf.bitcast(tensor, tf.int64)
    if dtype.is_integer and not dtype.is_quantized:
        return tf.cast(tensor, tf.int64)
    raise ValueError(
        f"{_wanted(function)} Received: signs={_shortened(signs)} "
        f"({_NAMES.get(dtype, dtype.name)}). {_advice(dtype)}"
    )


_NAMES = {tf.string: "strings", tf.bool: "booleans"}


def _wanted(function: str) -> str:
    return f"Argument `signs` of {function} must be integers of up to 64 bits."


def _advice(dtype: tf.DType) -> str:
    if dtype == tf.string:
        return (
            "Hash them first, with tf_ext.hashing.hash_category(values, "
            "namespace), where the namespace is the column's (by default its "
            "key)."
        )
    if dtype.is_floating:
        return (
            "Floats cannot represent all ids above 2^53. Read ids as integers "
            "and keep them so."
        )
    return "Cast them to int64 if they are meant as ids."


def _shortened(signs: typing.Any) -> str:
    text = repr(signs)
    return text if len(text) <= 80 else text[:77] + "..."


def _to_tensor(signs: tf.Tensor | npt.ArrayLike) -> tf.Tensor:
    if isinstance(signs, (list, tuple, int)) and not isinstance(signs, bool):
        return _of_python(signs)
    if isinstance(signs, np.ndarray):
        if signs.size == 0:  # NumPy's type for empty lists is float64.
            return tf.zeros(signs.shape, tf.int64)
        if signs.dtype == object:
            return _of_python(signs.tolist())
    return tf.convert_to_tensor(signs)


def _of_python(signs: int | Sequence[typing.Any]) -> tf.Tensor:
    """Converts an int, or nested lists of ints or other values, to a tensor."""
    flat = tf.nest.flatten(signs)
    kinds = {type(value) for value in flat}
    if bool in kinds and kinds != {bool}:
        # TensorFlow takes those behind an integer as 1 and 0.
        raise TypeError("booleans are among them")
    if bool in kinds or not all(
        issubclass(kind, numbers.Integral) for kind in kinds
    ):
        return tf.convert_to_tensor(signs)
    try:
        tensor = tf.convert_to_tensor(signs, tf.int64)
    except ValueError:
        array = np.array(signs, object)
        values = array.ravel().tolist()
        if not all(is_int(one) and -(2**63) <= one < 2**64 for one in values):
            raise
        bits = [int(value) % 2**64 for value in values]
        return tf.constant(
            np.array(bits, np.uint64).astype(np.int64), shape=array.shape
        )
    if tensor.shape.num_elements() != len(flat):
        # Those after a list without elements.
        raise ValueError("lists of different lengths")
    return tensor
