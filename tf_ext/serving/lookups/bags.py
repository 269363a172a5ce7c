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


# Of the keys that a column reads, the names of the features.
Names: typing.TypeAlias = Mapping[str, str]


class ColumnHasher:
    """Makes the signs of columns, each sample a bag.

    Args:
      columns: list of `(Column, Names)`, at least one. Optional features that a
        request never has need no name.
    """

    def __init__(self, columns: Sequence[tuple[Column, Names]]) -> None:
        self._sources: list[tuple[Part, Names]] = []
        place_of: dict[object, int] = {}
        described = []
        for column, names in columns:
            places = []
            for part in column.parts:
                source = _source(part, names)
                if source not in place_of:
                    place_of[source] = len(self._sources)
                    self._sources.append((part, names))
                places.append(place_of[source])
            described.append(column.described(places))
        self._hashed = _core.HashedColumns(described)
        self._texts = [f"The feature {one.key!r}" for one, _ in self._sources]

    def hash(self, features: Mapping[str, Feature], batch_size: int) -> Bags:
        """The signs of a request.

        Args:
          features: dict of Feature, by name, without those that are absent.
          batch_size: int, of all of them.

        Raises:
          ValueError: a feature is not what its column takes.
        """
        with np.errstate(all="ignore"):
            inputs = [
                _read(part, names, features, batch_size)
                for part, names in self._sources
            ]
            values, splits, weights = zip(*inputs, strict=True)
            return Bags(
                *self._hashed.hash(
                    self._texts, values, splits, weights, batch_size
                )
            )


def _source(part: Part, names: Names) -> object:
    """A key that is the same for inputs that are the same."""
    return (
        *map(names.get, part.keys),
        part.weights is None,
        part.boundaries is not None,
        part.identity,
        part.conversion,
    )


def _read(
    part: Part,
    names: Names,
    features: Mapping[str, Feature],
    batch_size: int,
) -> tuple[Array, Signs | None, Array | None]:
    """The values of a part, their row splits and weights."""
    feature = features.get(names.get(part.key, ""))
    if feature is None or not feature.values.size:
        # Nothing has no type.
        splits = np.zeros(batch_size + 1, np.int64)
        return np.zeros(0, _type_of_absent(part)), splits, None
    reference = None
    if part.reference is not None:
        reference = _of_each(part, feature, features[names[part.reference]])
    values = _converted(part, feature.values, reference)
    weights = None
    if part.weights is not None:
        weights = _weights(part, feature, features[names[part.weights]])
    return values, feature.row_splits, weights


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
