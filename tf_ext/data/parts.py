# SPDX-License-Identifier: Apache-2.0
"""Records as few flat arrays: strings are bytes and offsets."""

import dataclasses
import typing
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tf_ext._splits import row_splits
from tf_ext.data.errors import Malformed

try:
    import pyarrow as pa
except ImportError:
    pa = None

# Numbers; or an array of Arrow of bytes; or, of dense values, of indices into
# one.
Values: typing.TypeAlias = typing.Any
# Of an array of bytes whose offsets are int32.
_MOST_BYTES = 2**31 - 1


class Bag(typing.NamedTuple):
    """The values of all rows, one after the other, and int64 row splits."""

    values: Values
    splits: npt.NDArray[np.int64]


@dataclasses.dataclass
class Part:
    """Well-formed records.

    Attributes:
      rows: int, their number.
      dense: dict from names to values, a row each.
      bags: dict from names to Bags.
    """

    rows: int
    dense: dict[str, Values]
    bags: dict[str, Bag]

    def slice(self, begin: int, end: int) -> "Part":
        """The rows from `begin` up to `end`."""
        if (begin, end) == (0, self.rows):
            return self
        bags = {}
        for name, (values, splits) in self.bags.items():
            some = splits[begin : end + 1]
            bags[name] = Bag(values[some[0] : some[-1]], some - some[0])
        dense = {name: v[begin:end] for name, v in self.dense.items()}
        return Part(end - begin, dense, bags)

    def take(self, rows: npt.NDArray[np.int64]) -> "Part":
        """The given rows, in their order."""
        bags = {}
        for name, (values, splits) in self.bags.items():
            lengths = np.diff(splits)[rows]
            taken = row_splits(lengths)
            moved = np.repeat(splits[rows] - taken[:-1], lengths)
            places = np.arange(taken[-1]) + moved
            bags[name] = Bag(values.take(places), taken)
        dense = {
            name: values[rows]
            if isinstance(values, np.ndarray)
            else values.take(rows)
            for name, values in self.dense.items()
        }
        return Part(len(rows), dense, bags)


class Parsed(typing.NamedTuple):
    """A block of a file, parsed.

    part: the well-formed records; records: the number of all records;
    malformed: the others; unit: what their numbers are those of.
    """

    part: Part
    records: int
    malformed: list[Malformed]
    unit: str = "line"


def concat(parts: Sequence[Part]) -> Part:
    """Parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    dense = {
        name: _concat([part.dense[name] for part in parts])
        for name in parts[0].dense
    }
    bags = {}
    for name in parts[0].bags:
        of_parts = [part.bags[name] for part in parts]
        lengths = [np.diff(bag.splits) for bag in of_parts]
        bags[name] = Bag(
            _concat([bag.values for bag in of_parts]),
            row_splits(np.concatenate(lengths)),
        )
    return Part(sum(part.rows for part in parts), dense, bags)


def _concat(values: list[Values]) -> Values:
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    # Dictionaries would be made one, which takes longer.
    arrays = [decoded(some) for some in values]
    if sum(array.nbytes for array in arrays) > _MOST_BYTES:
        arrays = [array.cast(pa.large_binary()) for array in arrays]
    return pa.concat_arrays(arrays)


def decoded(values: Values) -> Values:
    """The same array of Arrow without a dictionary."""
    is_indices = pa.types.is_dictionary(values.type)
    return values.dictionary_decode() if is_indices else values


def text_of(
    values: Values,
) -> tuple[npt.NDArray[typing.Any], npt.NDArray[np.uint8]]:
    """Where each of some bytes begins and the last one ends, and their text.

    Args:
      values: array of Arrow of bytes or strings.

    Returns:
      `(offsets, text)`: int32 or, of large ones, int64 `[n + 1]`, and uint8.
    """
    _, ends, text = values.buffers()
    kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    if not len(values):
        return np.zeros(1, kind), np.empty(0, np.uint8)
    offsets = np.frombuffer(ends, kind)[values.offset :]
    return offsets[: len(values) + 1], np.frombuffer(text or b"", np.uint8)


def splits_of(lists: Values) -> npt.NDArray[np.int64]:
    """Row splits from 0, of lists of Arrow in which null is an empty list."""
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return row_splits(lengths)
