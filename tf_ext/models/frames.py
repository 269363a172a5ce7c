# SPDX-License-Identifier: Apache-2.0
"""Frames and columns of pandas as NumPy arrays.

pandas is not imported: who has no frame need not have it.
"""

import typing

import numpy as np
import numpy.typing as npt

# NumPy's kinds of numbers.
_NUMBERS = "biuf"
_NO_MISSING = (
    "Fill them, such as by pandas's fillna, or leave out the rows, by dropna."
)


def is_frame(data: object) -> bool:
    """Whether an object is a DataFrame."""
    return _is_of_pandas(data, "DataFrame")


def is_column(data: object) -> bool:
    """Whether an object is a Series, an Index, or values of an own type."""
    return _is_of_pandas(data, "Series", "Index", "ExtensionArray")


def _is_of_pandas(data: object, *classes: str) -> bool:
    return any(
        base.__name__ in classes
        and base.__module__.partition(".")[0] == "pandas"
        for base in type(data).__mro__
    )


def columns_of(frame: typing.Any) -> dict[typing.Any, typing.Any]:
    """The columns of a DataFrame, each a Series, by name.

    Raises:
      ValueError: two columns have the same name.
    """
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise ValueError(
            f"The columns of a DataFrame must have different names, but "
            f"{twice!r} occurs more than once. Rename or leave out one of "
            "them."
        )
    return dict(frame)


def values_of(column: typing.Any, subject: str) -> npt.NDArray[typing.Any]:
    """The values of a column, `[n]`, or of a Series, `[n, 1]` as in Keras.

    Args:
      column: what `is_column` is true of.
      subject: string, which begins the messages of errors.

    Returns:
      Array of numbers, of what pandas calls objects, or of dates. A Series of
      lists is `[n]` as well.

    Raises:
      ValueError: a value is missing, other than NaN among floats.
    """
    dtype = column.dtype
    # A type of pandas's own, such as Int64, has numbers and a mask.
    own = getattr(dtype, "numpy_dtype", None)
    if own is not None and dtype.kind in _NUMBERS:
        _check_missing(column, own, subject)
        missing = {"na_value": np.nan} if own.kind == "f" else {}
        values = column.to_numpy(dtype=own, **missing)
    else:
        values = column.to_numpy()
        if values.dtype.kind not in _NUMBERS:
            _check_missing(column, values.dtype, subject)
    if not hasattr(column, "iloc") or _holds_lists(values):
        return values
    return values[:, np.newaxis]


def matrix_of(frame: typing.Any, subject: str) -> npt.NDArray[typing.Any]:
    """A DataFrame as one array, `[n, number of columns]`.

    Raises:
      ValueError: its columns are of different kinds, or a value is missing.
    """
    columns = {
        name: values_of(frame.iloc[:, i], f"The column {name!r} of {subject}")
        for i, name in enumerate(frame.columns)
    }
    kinds = {array.dtype.kind in _NUMBERS for array in columns.values()}
    if len(kinds) > 1:
        types = ", ".join(
            f"{name!r} is {dtype}" for name, dtype in frame.dtypes.items()
        )
        raise ValueError(
            f"{subject} is a DataFrame that becomes one array, so its columns "
            f"must be all numbers or all strings, but {types}. Pass them as "
            "separate features: dict(frame)."
        )
    if not columns:
        return np.empty([len(frame), 0], np.float32)
    return np.concatenate(list(columns.values()), axis=1)


def _check_missing(
    column: typing.Any, dtype: np.dtype[typing.Any], subject: str
) -> None:
    """Raises unless all rows have a value, or it may be NaN."""
    if dtype.kind == "f":
        return
    missing = np.asarray(column.isna())
    if missing.any():
        raise ValueError(
            f"{subject} must have a value in each row, as a column of "
            f"{column.dtype}, but {missing.sum()} of {len(missing)} are "
            f"missing, first in row {missing.argmax()}. {_NO_MISSING}"
        )


def _holds_lists(values: npt.NDArray[typing.Any]) -> bool:
    return (
        values.dtype.kind == "O"
        and len(values) > 0
        and isinstance(values[0], (list, tuple, np.ndarray))
    )
