# SPDX-License-Identifier: Apache-2.0
"""From the features of a request to the signs of columns."""

import typing
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext.serving.lookups.columns import Column, Part
from tf_ext.serving.lookups.features import Array, Feature, Signs


class Bags(typing.NamedTuple):
    """The signs of columns, ordered by column and then by sample.

    Attributes:
      signs: int64 `[m]`.
      row_splits: int64 `[columns * batch_size + 1]`.
      weights: float32 `[m]`; None if no column has any.
    """

    signs: Signs
    row_splits: Signs
    weights: Array | None


class _Input(typing.NamedTuple):
    name: str
    values: Array
    row_splits: Signs | None
    weights: Array | None


# Of a column, the feature of each key that it reads; absent ones have none.
Given: typing.TypeAlias = Mapping[str, Feature]


def hash_columns(
    columns: Sequence[Column],
    given: Sequence[Given],
    batch_size: int,
) -> Bags:
    """The signs of columns, each sample a bag.

    Args:
      columns: list of Column, at least one.
      given: of each column, the features that it reads.
      batch_size: int, of all features.

    Raises:
      ValueError: a feature is not what its column takes.
    """
    inputs: list[_Input] = []
    place_of: dict[object, int] = {}
    described = []
    for column, features in zip(columns, given, strict=True):
        places = []
        for part in column.parts:
            source = _source(part, features)
            if source not in place_of:
                place_of[source] = len(inputs)
                inputs.append(_read(part, features, batch_size))
            places.append(place_of[source])
        described.append(column.described(places))
    hashed = _core.HashedColumns(described)
    with np.errstate(all="ignore"):
        return Bags(
            *hashed.hash(
                [one.name for one in inputs],
                [one.values for one in inputs],
                [one.row_splits for one in inputs],
                [one.weights for one in inputs],
                batch_size,
            )
        )


def _source(part: Part, given: Given) -> object:
    """A key that is the same for inputs that are the same."""
    features = [
        id(given[key].values) if key in given else None for key in part.keys
    ]
    numbers = part.boundaries is not None
    return (
        *features,
        part.weights is None,
        numbers,
        part.identity,
        part.conversion,
    )


def _read(part: Part, given: Given, batch_size: int) -> _Input:
    name = f"The feature {part.key!r}"
    feature = given.get(part.key)
    if feature is None or not feature.values.size:
        # Nothing has no type.
        splits = np.zeros(batch_size + 1, np.int64)
        nothing = np.zeros(0, _type_of_absent(part))
        return _Input(name, nothing, splits, None)
    reference = None
    if part.reference is not None:
        reference = _of_each(part, feature, given[part.reference])
    values = _converted(part, feature.values, reference)
    weights = None
    if part.weights is not None:
        weights = _weights(part, feature, given[part.weights])
    return _Input(name, values, feature.row_splits, weights)


def _type_of_absent(part: Part) -> npt.DTypeLike:
    if part.boundaries is not None:
        return np.float32
    if part.identity or part.convert is not None:
        return np.int64
    return np.object_


def _converted(part: Part, values: Array, reference: Array | None) -> Array:
    """What is hashed of the values of a part."""
    kind = values.dtype.kind
    if part.convert is not None:
        return part.convert(_times(part, values), reference)
    if kind in "USOT":
        if part.boundaries is not None:
            raise ValueError(
                f"The feature {part.key!r} is of strings, but column "
                f"{part.name!r} has boundaries, which need numbers."
            )
        if part.identity:
            raise ValueError(
                f"The feature {part.key!r} is of strings, but column "
                f'{part.name!r} has hashing="identity", which needs integers.'
            )
        return values
    if kind == "f":
        if part.boundaries is None:
            raise ValueError(
                f"The feature {part.key!r} has floats, which cannot be ids, "
                f"and column {part.name!r} has no boundaries: cast the feature "
                "to integers or strings."
            )
        return values.astype(np.float32)
    if kind == "u" and values.itemsize == 8:
        if part.boundaries is not None:
            return values.astype(np.float32)
        # Of a sign, the number of the same bits.
        return values.astype(np.int64 if part.identity else np.str_)
    return values.astype(np.int64)


def _times(part: Part, values: Array) -> Array:
    kind = values.dtype.kind
    if kind not in "iu" or (kind == "u" and values.itemsize == 8):
        raise ValueError(
            f"The features of column {part.name!r} must be integers of at most "
            "int64, seconds since 1970, but one is of "
            f"{values.dtype}: cast it to int64."
        )
    return values.astype(np.int64)


def _of_each(part: Part, feature: Feature, reference: Feature) -> Array:
    """The value of each value's sample."""
    if reference.width != 1:
        raise ValueError(
            f"The feature {part.reference!r} of column {part.name!r} must be "
            "dense, with one value for each sample."
        )
    times = _times(part, reference.values)
    splits = feature.splits
    return np.repeat(times, splits[1:] - splits[:-1])


def _weights(part: Part, feature: Feature, weights: Feature) -> Array:
    if weights.values.dtype.kind != "f":
        raise ValueError(
            f"The weights {part.weights!r} of column {part.name!r} must be "
            f"floats, but are of {weights.values.dtype}."
        )
    alike = feature.shape == weights.shape and (
        feature.row_splits is None
        or (
            weights.row_splits is not None
            and np.array_equal(feature.row_splits, weights.row_splits)
        )
    )
    if not alike:
        raise ValueError(
            f"The weights {part.weights!r} must have the structure of the "
            f"feature {part.key!r}."
        )
    return weights.values.astype(np.float32)
