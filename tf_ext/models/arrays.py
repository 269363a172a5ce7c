"""Converts arrays and lists that Keras refuses to tensors."""

import inspect
import typing
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

# NumPy's kinds of text, bytes and objects.
_KINDS = "USO"


def to_arrays(data: typing.Any) -> typing.Any:
    """The data given to `fit` and similar methods, converted.

    Args:
      data: structure of dicts, tuples and lists. Arrays of NumPy's texts, bytes
        and objects, and lists of Python's numbers, strings, or lists of those,
        are converted: to `tf.Tensor`, or to `tf.RaggedTensor` if they are lists
        of different lengths. Anything else is returned unchanged.
    """
    if isinstance(data, dict):
        return {key: to_arrays(value) for key, value in data.items()}
    if isinstance(data, np.ndarray):
        return _of_array(data)
    if not isinstance(data, (list, tuple)):
        return data
    if isinstance(data, list) and _holds_python_values(data):
        return _of_list(data)
    if hasattr(data, "_fields"):
        return type(data)(*map(to_arrays, data))
    return type(data)(map(to_arrays, data))


def bind_data(
    method: Callable[..., typing.Any],
    args: tuple[typing.Any, ...],
    kwargs: dict[str, typing.Any],
) -> inspect.BoundArguments:
    """The arguments of one of Keras's methods, with data that it takes.

    Args:
      method: `fit` or a similar method.
      args: of its call.
      kwargs: of the same call.
    """
    given = inspect.signature(method).bind(*args, **kwargs)
    for name in ("x", "y", "sample_weight", "validation_data"):
        if name in given.arguments:
            given.arguments[name] = to_arrays(given.arguments[name])
    return given


def _of_array(array: npt.NDArray[typing.Any]) -> typing.Any:
    if array.dtype.kind not in _KINDS:
        return array
    if array.dtype.kind == "O":
        return _of_list(array.tolist(), array)
    return tf.constant(array)


def _of_list(
    values: list[typing.Any], otherwise: typing.Any = None
) -> typing.Any:
    """A tensor of nested lists; the lists if they cannot be a tensor."""
    try:
        array = np.asarray(values)
    except ValueError:  # Lists of different lengths.
        array = None
    try:
        if array is None:
            return tf.ragged.constant(values)
        if array.dtype.kind in _KINDS:
            return tf.constant(values)
        return array
    except (TypeError, ValueError):
        return values if otherwise is None else otherwise


def _holds_python_values(values: list[typing.Any]) -> bool:
    """Whether nested lists hold Python's numbers and strings, and no arrays."""
    first = values
    while isinstance(first, list):
        # The first lists of ragged ones may be empty.
        full = [v for v in first if not isinstance(v, list) or v]
        if not full:
            return bool(first)
        first = full[0]
    return isinstance(first, (bool, int, float, str, bytes))
