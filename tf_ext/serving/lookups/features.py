# SPDX-License-Identifier: Apache-2.0
"""The features of a request as arrays."""

import typing
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tf_ext._splits import row_splits

Array: typing.TypeAlias = npt.NDArray[typing.Any]
Signs: typing.TypeAlias = npt.NDArray[np.int64]

_TEXTS = {str, bytes}
_BAGS = (list, tuple, np.ndarray)
_ALLOWED = (
    "an array or a list [batch_size, ...], a list of lists, or "
    "tf_ext.serving.Ragged"
)


class Ragged(typing.NamedTuple):
    """A feature of bags of different lengths.

    Bag b has the values from `row_splits[b]` up to, but not including,
    `row_splits[b + 1]`.

    Attributes:
      values: array or list `[n]`.
      row_splits: integers `[batch_size + 1]`, from 0 to n.

    Example:
      >>> tags = tf_ext.serving.Ragged(["red", "old", "new"], [0, 2, 3])
      >>> len(tags.values)
      3
    """

    values: typing.Any
    row_splits: typing.Any


class Feature(typing.NamedTuple):
    """A feature of a request.

    Attributes:
      values: array `[n]`.
      row_splits: int64 `[batch_size + 1]`; None if all bags are of one size.
      batch_size: int.
      shape: tuple of int, that of a dense feature.
    """

    values: Array
    row_splits: Signs | None
    batch_size: int
    shape: tuple[int, ...] = ()

    @property
    def width(self) -> int | None:
        """The number of values of each bag; None if there are row splits."""
        if self.row_splits is not None:
            return None
        return int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def splits(self) -> Signs:
        """The row splits, also of a dense feature."""
        if self.row_splits is not None:
            return self.row_splits
        width = typing.cast(int, self.width)
        return np.arange(self.batch_size + 1, dtype=np.int64) * width


def read_feature(name: str, given: typing.Any, ragged: bool | None) -> Feature:
    """A feature that a request has.

    Args:
      name: string, for messages.
      given: an array or a list; a Ragged, or another object with these
        attributes; or a list of lists.
      ragged: bool, whether the model takes bags of different lengths; None if
        this is not known.

    Raises:
      ValueError: it is none of these.
    """
    if hasattr(given, "row_splits"):
        return _of_splits(name, given)
    kinds = _kinds(given)
    if kinds and kinds <= _TEXTS:
        array = np.array(given, object)
        return Feature(array, None, len(array), array.shape)
    if any(issubclass(kind, _BAGS) for kind in kinds):
        given = [
            one.tolist() if isinstance(one, np.ndarray) else one
            for one in given
        ]
        sizes = {len(one) if isinstance(one, _BAGS) else -1 for one in given}
        if -1 not in sizes and (ragged or len(sizes) > 1):
            values = [value for one in given for value in one]
            splits = row_splits([len(one) for one in given])
            return Feature(_array(name, values, 1), splits, len(given))
    array = _array(name, given, None)
    if array.ndim == 0:
        raise ValueError(
            f"The feature {name!r} must have a batch dimension, but is a "
            f"scalar. Received: {type(given).__name__}"
        )
    dense = Feature(array.reshape(-1), None, array.shape[0], array.shape)
    if ragged and array.ndim == 2:
        return Feature(dense.values, dense.splits, dense.batch_size)
    return dense


def _kinds(given: typing.Any) -> set[type]:
    """The types of the members of a list, or of what may be one of lists."""
    # A column of a data frame has an array of lists.
    if isinstance(given, list | tuple) or (
        isinstance(given, np.ndarray)
        and given.dtype == object
        and given.ndim == 1
    ):
        return set(map(type, given))
    return set()


def _of_splits(name: str, given: typing.Any) -> Feature:
    values = _array(name, given.values, 1)
    splits = _array(name, given.row_splits, 1)
    if splits.dtype.kind not in "iu" or len(splits) < 1:
        raise ValueError(
            f"The row_splits of the feature {name!r} must be integers, one "
            f"more than samples, but are {given.row_splits!r}."
        )
    splits = splits.astype(np.int64)
    if (
        splits[0] != 0
        or splits[-1] != len(values)
        or (splits[1:] < splits[:-1]).any()
    ):
        raise ValueError(
            f"The row_splits of the feature {name!r} must start at 0, not "
            "decrease, and end at the number of values."
        )
    return Feature(values, splits, len(splits) - 1)


def _array(name: str, given: typing.Any, rank: int | None) -> Array:
    """An array of strings, bytes, booleans or numbers."""
    try:
        array = np.asarray(given)
        if array.dtype.kind in "US" and not isinstance(given, np.ndarray):
            # NumPy strips zero bytes from the end of its own strings.
            array = np.array(given, object)
        if array.dtype.kind == "f" and not hasattr(given, "dtype"):
            if array.size and array.max() >= 2**63:
                array = _integers(given, array)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(
            f"The feature {name!r} must be {_ALLOWED}: {error}."
        ) from None
    if array.size == 0 and not hasattr(given, "dtype"):
        # NumPy takes nothing for floats.
        array = array.astype(np.int64)
    if array.dtype.kind not in "USOTbiuf":
        raise ValueError(
            f"The feature {name!r} must be of strings, integers, booleans or "
            f"floats, but is of {array.dtype}."
        )
    if rank is not None and array.ndim != rank:
        raise ValueError(
            f"The feature {name!r} must be {_ALLOWED}, but has "
            f"{array.ndim} dimensions where it can have {rank}."
        )
    return array


def _integers(given: typing.Any, floats: Array) -> Array:
    """Lists of integers, of which NumPy makes floats if some exceed int64."""
    values = np.array(given, object)
    if all(type(value) is int for value in values.flat):
        return values.astype(np.uint64)
    return floats


def batch_size_of(features: Mapping[str, Feature]) -> int:
    """The batch size of all features of a request.

    Raises:
      ValueError: they differ, or there are none.
    """
    sizes = {name: one.batch_size for name, one in features.items()}
    if not sizes:
        raise ValueError(
            "The batch size is unknown, because the request has no feature "
            "that the model takes. Pass at least one."
        )
    (first, size), *others = sizes.items()
    for name, other in others:
        if other != size:
            raise ValueError(
                "All features must have the same batch size, but that of "
                f"{first!r} is {size} and that of {name!r} is {other}."
            )
    return size
