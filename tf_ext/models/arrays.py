# SPDX-License-Identifier: Apache-2.0
"""Converts arrays, lists and frames that Keras refuses to tensors."""

import inspect
import os
import typing
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext._compat.models import Functional
from tf_ext._keras import IS_KERAS_3, keras
from tf_ext.models import frames

# NumPy's kinds of text, bytes, objects, and texts of different lengths.
_TEXTS = "USOT"
_DATES = "mM"
_Sequence: typing.Any = keras.utils.Sequence  # PyDataset in Keras 3.


def to_arrays(
    data: typing.Any, argument: str = "x", is_keyed: bool = False
) -> typing.Any:
    """The data given to `fit` and similar methods, converted.

    Args:
      data: structure of dicts, tuples and lists. Arrays of NumPy's texts, bytes
        and objects, columns of pandas, and lists of Python's numbers, strings,
        or lists of those, are converted: to arrays of numbers, to `tf.Tensor`,
        or to `tf.RaggedTensor` if they are lists of different lengths. Anything
        else is returned unchanged.
      argument: string, what `data` is given for.
      is_keyed: bool, whether a DataFrame is a dict of its columns; otherwise it
        is a matrix.

    Raises:
      ValueError: a value is missing, or of a type that is neither a number nor
        a text; the message names the feature.
    """
    return _converted(data, argument, None, is_keyed)


def bind_data(
    model: keras.Model,
    method: Callable[..., typing.Any],
    args: tuple[typing.Any, ...],
    kwargs: dict[str, typing.Any],
) -> inspect.BoundArguments:
    """The arguments of one of Keras's methods, with data that it takes.

    Args:
      model: keras.Model.
      method: its `fit` or a similar method.
      args: of its call.
      kwargs: of the same call.

    Raises:
      ValueError: of `to_arrays`.
    """
    given = inspect.signature(method).bind(*args, **kwargs)
    is_keyed = _is_keyed(model)
    for name in ("x", "y", "sample_weight", "validation_data"):
        if name in given.arguments:
            data = given.arguments[name]
            if isinstance(data, _Sequence):
                data = _ConvertedSequence(data, is_keyed)
            elif hasattr(data, "__next__"):
                data = _converted_batches(data, is_keyed)
            elif name == "validation_data":
                data = _converted_batch(data, is_keyed)
            else:
                data = to_arrays(data, name, is_keyed and name == "x")
            given.arguments[name] = data
    return given


def _is_keyed(model: keras.Model) -> bool:
    """Whether a model takes its features by name, and not as one matrix."""
    if not isinstance(model, Functional):
        return True
    inputs = model.input
    return isinstance(inputs, Mapping) or len(tf.nest.flatten(inputs)) > 1


def _converted(
    data: typing.Any, argument: str, key: object, is_keyed: bool
) -> typing.Any:
    if frames.is_frame(data) and is_keyed:
        data = frames.columns_of(data)
    if isinstance(data, dict):
        return {
            name: _converted(value, argument, name, False)
            for name, value in data.items()
        }
    if frames.is_frame(data):
        data = frames.matrix_of(data, _subject(argument, key))
    elif frames.is_column(data):
        data = frames.values_of(data, _subject(argument, key))
    if isinstance(data, np.ndarray):
        return _of_array(data, argument, key)
    if not isinstance(data, (list, tuple)):
        return data
    if isinstance(data, list) and _holds_python_values(data):
        return _of_list(data, argument, key)
    parts = [_converted(one, argument, key, False) for one in data]
    return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)


def _subject(argument: str, key: object) -> str:
    if key is None:
        return f"Argument `{argument}`"
    if argument == "x":
        return f"The feature {key!r}"
    return f"The array {key!r} of `{argument}`"


def _of_array(
    array: npt.NDArray[typing.Any], argument: str, key: object
) -> typing.Any:
    if array.dtype.kind in _DATES:
        raise ValueError(
            f"{_subject(argument, key)} must hold numbers or strings, but is "
            f"of type {array.dtype}. Cast it, such as by astype('int64'), or "
            "leave it out."
        )
    if array.dtype.kind not in _TEXTS:
        return array
    if array.dtype.kind in "OT":
        return _of_list(array.tolist(), argument, key)
    return tf.constant(array)


def _of_list(
    values: list[typing.Any], argument: str, key: object
) -> typing.Any:
    """An array or a tensor of nested lists."""
    try:
        array = np.asarray(values)
    except ValueError:  # Lists of different lengths.
        array = None
    try:
        if array is None:
            return tf.ragged.constant(values)
        if array.dtype.kind in _TEXTS:
            return tf.constant(values)
    except (TypeError, ValueError) as error:
        raise _refusal(values, _subject(argument, key)) from error
    return _of_array(array, argument, key)


def _refusal(values: list[typing.Any], subject: str) -> ValueError:
    """The error of values that no tensor can be made of."""
    types: dict[str, int] = {}  # And the first row of each.
    for row, value in enumerate(values):
        for one in _flat(value):
            is_missing = one is None or (isinstance(one, float) and one != one)
            if is_missing or type(one).__name__ == "NAType":
                return ValueError(
                    f"{subject} must have a value in each row, but row {row} "
                    f"is {value!r}. Fill missing values, for example with '', "
                    "or leave out such rows."
                )
            types.setdefault(type(one).__name__, row)
    found = ", ".join(f"{name} (row {row})" for name, row in types.items())
    return ValueError(
        f"{subject} must hold only strings, only numbers, or lists of either, "
        f"but has values of {found}. Cast them to one type."
    )


def _flat(value: typing.Any) -> Iterator[typing.Any]:
    if isinstance(value, (list, tuple, np.ndarray)):
        for one in value:
            yield from _flat(one)
    else:
        yield value


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


def _converted_batch(batch: typing.Any, is_keyed: bool) -> typing.Any:
    """A batch: of features, or of features, labels and weights."""
    if isinstance(batch, tf.data.Dataset):
        return batch
    if not isinstance(batch, (list, tuple)):
        return to_arrays(batch, "x", is_keyed)
    names = ("x", "y", "sample_weight")
    if len(batch) > len(names):  # Keras says what it must be.
        return batch
    return tuple(
        to_arrays(part, name, is_keyed and name == "x")
        for name, part in zip(names, batch, strict=False)
    )


def _converted_batches(
    batches: Iterator[typing.Any], is_keyed: bool
) -> Iterator[typing.Any]:
    for batch in batches:
        yield _converted_batch(batch, is_keyed)


class _ConvertedSequence(_Sequence):
    """A Sequence or PyDataset, with batches that Keras takes."""

    def __init__(self, batches: typing.Any, is_keyed: bool) -> None:
        if IS_KERAS_3:
            super().__init__(
                workers=batches.workers,
                use_multiprocessing=batches.use_multiprocessing,
                max_queue_size=batches.max_queue_size,
            )
        self._batches = batches
        self._is_keyed = is_keyed
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def num_batches(self) -> int | None:
        """As of the other; None if it has no end."""
        return self._batches.num_batches if IS_KERAS_3 else len(self)

    def __getitem__(self, index: int) -> typing.Any:
        batch = self._batches[index]
        if os.getpid() != self._process:
            return _Unconverted(batch, self._is_keyed)
        return _converted_batch(batch, self._is_keyed)

    def __repr__(self) -> str:
        return repr(self._batches)  # In messages.

    def on_epoch_begin(self) -> None:
        """Called by Keras 3."""
        self._batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Called by Keras."""
        self._batches.on_epoch_end()


class _Unconverted:
    """A batch of a forked process, where TensorFlow cannot be used.

    It is converted where it arrives.
    """

    def __init__(self, *batch: typing.Any) -> None:
        self._batch = batch

    def __reduce__(self) -> tuple[typing.Any, ...]:
        return _converted_batch, self._batch
