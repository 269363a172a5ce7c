# SPDX-License-Identifier: Apache-2.0
"""From columns of Apache Arrow to a Part, without the malformed records."""

import typing

import numpy as np
import numpy.typing as npt

from tf_ext.data.field import WEIGHT_SUFFIX, Field, is_text
from tf_ext.data.numeric import to_type, without_nan
from tf_ext.data.parts import Bag, Part, splits_of
from tf_ext.data.schema import Schema
from tf_ext.data.times import to_seconds

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:  # `require_pyarrow` says so when it is needed.
    pa = pc = None

BAD_NUMBER = "bad number"
BAD_TIME = "bad time"
MISSING = "missing value"
UNKNOWN = "unknown value"
WITHOUT_WEIGHT = "bad weight"
WRONG_TYPE = "wrong type"
_NUMBERS = {
    "int32": np.int32,
    "int64": np.int64,
    "uint64": np.uint64,
    "float32": np.float32,
}

Array: typing.TypeAlias = typing.Any
# Of each row: None, or why it is malformed.
Reasons: typing.TypeAlias = dict[int, str]


def require_pyarrow(what: str) -> None:
    """Raises ImportError if there is no pyarrow."""
    if pa is None:
        raise ImportError(f"{what} needs pyarrow: pip install 'tf-ext[data]'")


def type_of(field: Field) -> typing.Any:
    """The type of Arrow in which a dense field is read."""
    if is_text(field) or field.time is not None:
        return pa.binary()
    return pa.type_for_alias(field.dtype)


class Converter:
    """Makes Parts of columns of Arrow.

    Args:
      schema: Schema.
      decimal: "." or ",", what floats in texts have before their fraction.
    """

    def __init__(self, schema: Schema, decimal: str = ".") -> None:
        self._schema = schema
        self._decimal = decimal

    def part(self, columns: dict[str, Array]) -> tuple[Part, Reasons]:
        """The well-formed rows, and why others are malformed.

        Args:
          columns: dict from names of fields to arrays without chunks: of
            `type_of`, or of bytes for any field, or of indices into bytes,
            without null, for a string; of bags bytes or lists.

        Returns:
          `(part, reasons)`.
        """
        reasons: Reasons = {}
        dense: dict[str, Array] = {}
        bags: dict[str, Bag] = {}
        for field in self._schema.used:
            column = columns[field.name]
            if field.bag:
                self._bags(field, column, bags, reasons)
            elif field.dtype == "string":
                column = _ids(column, None, reasons)
                dense[field.name] = _filled(column, field.default or "")
            else:
                dense[field.name] = _numbers(
                    field, column, reasons, self._decimal
                )
        for name, weights in bags.items():
            bag = bags.get(name.removesuffix(WEIGHT_SUFFIX))
            if bag is not None and bag is not weights:
                differ = np.diff(bag.splits) != np.diff(weights.splits)
                _add(reasons, np.flatnonzero(differ), WITHOUT_WEIGHT)
        rows = len(next(iter(columns.values())))
        part = Part(rows, dense, bags)
        if reasons:
            kept = np.delete(np.arange(rows), list(reasons))
            part = part.take(kept)
        return part, reasons

    def _bags(
        self,
        field: Field,
        column: Array,
        bags: dict[str, Bag],
        reasons: Reasons,
    ) -> None:
        lists = column
        if not pa.types.is_list(column.type):
            lists = self._split(column, field)
        flat, splits = lists.flatten(), splits_of(lists)
        owners = np.repeat(np.arange(len(lists)), np.diff(splits))
        if field.weight_separator is not None:
            flat, weights = _weighted(
                flat, field, owners, reasons, self._decimal
            )
            bags[field.name + WEIGHT_SUFFIX] = Bag(weights, splits)
        if field.dtype == "string":
            flat = _ids(flat, owners, reasons)
        if flat.null_count:
            _add(reasons, owners[_nulls(flat)], MISSING)
        if field.dtype == "string":
            values = _filled(flat, "")
        else:
            values = to_numbers(flat, field, owners, reasons, self._decimal)
        bags[field.name] = Bag(values, splits)

    def _split(self, column: Array, field: Field) -> Array:
        """Lists of the texts of each bag; of missing ones empty lists."""
        texts = column.cast(pa.binary())
        missing = pa.array([m.encode() for m in self._schema.missing])
        is_empty = pc.or_kleene(
            pc.is_in(texts, value_set=missing.cast(pa.binary())),
            texts.is_null(),
        )
        separator = (field.separator or "").encode()
        parts = pc.split_pattern(texts, pattern=separator)
        has_ends = pc.any(pc.ends_with(texts, separator)).as_py()
        if not has_ends and not pc.any(is_empty).as_py():
            return parts
        splits = splits_of(parts)
        lengths = np.diff(splits)
        values = parts.flatten()
        empty = is_empty.to_numpy(zero_copy_only=False)
        keep = np.repeat(~empty, lengths)
        if has_ends:
            # A last separator ends a value, and begins none.
            last = splits[1:][lengths > 1] - 1
            sizes = pc.binary_length(values).to_numpy(zero_copy_only=False)
            keep[last[sizes[last] == 0]] = False
        kept = np.concatenate([[0], np.cumsum(keep)])[splits]
        return pa.ListArray.from_arrays(
            kept.astype(np.int32), values.filter(pa.array(keep))
        )


def to_numbers(
    column: Array,
    field: Field,
    owners: npt.NDArray[np.int64] | None,
    reasons: Reasons,
    decimal: str,
) -> npt.NDArray[typing.Any]:
    """Numbers of an array, in which null is 0.

    Args:
      column: array of numbers, bytes or texts.
      field: Field of numbers.
      owners: int64, the row of each value; None if there is one a row.
      reasons: dict that rows with bad numbers are added to.
      decimal: "." or ",", what floats in texts have before their fraction.
    """
    if field.time is not None:
        column, bad = to_seconds(column, field.time)
    else:
        column, bad = to_type(column, pa.type_for_alias(field.dtype), decimal)
    numbers = column
    if column.null_count:
        numbers = column.fill_null(0)
    numbers = numbers.to_numpy(zero_copy_only=False)
    if field.dtype == "float32" and not np.isfinite(numbers).all():
        bad = [*bad, *np.flatnonzero(~np.isfinite(numbers))]
    reason = BAD_NUMBER if field.time is None else BAD_TIME
    _add(reasons, bad if owners is None else owners[list(bad)], reason)
    return numbers


def _numbers(
    field: Field, column: Array, reasons: Reasons, decimal: str
) -> Array:
    if field.dtype != "float32" and pa.types.is_floating(column.type):
        column = without_nan(column)
    if column.null_count:
        if field.default is None:
            _add(reasons, np.flatnonzero(_nulls(column)), MISSING)
    nulls = _nulls(column) if column.null_count else None
    if field.values is not None:
        numbers = _looked_up(field, column, nulls, reasons)
    else:
        numbers = to_numbers(column, field, None, reasons, decimal)
    if nulls is not None and field.default is not None:
        default = np.array(field.default, numbers.dtype)
        numbers = np.where(nulls, default, numbers)
    return np.asarray(numbers, _NUMBERS[field.dtype])


def _looked_up(
    field: Field,
    column: Array,
    nulls: npt.NDArray[np.bool_] | None,
    reasons: Reasons,
) -> npt.NDArray[typing.Any]:
    values = field.values or {}
    texts = pa.array([text.encode() for text in values], pa.binary())
    places = pc.index_in(column.cast(pa.binary()), value_set=texts)
    places = places.fill_null(-1).to_numpy(zero_copy_only=False)
    unknown = places < 0
    if nulls is not None:
        unknown &= ~nulls
    _add(reasons, np.flatnonzero(unknown), UNKNOWN)
    return np.array(list(values.values()), _NUMBERS[field.dtype])[places]


def _weighted(
    flat: Array,
    field: Field,
    owners: npt.NDArray[np.int64],
    reasons: Reasons,
    decimal: str,
) -> tuple[Array, npt.NDArray[np.float32]]:
    """Values and weights of texts such as "a:0.5"."""
    pairs = pc.split_pattern(
        flat.cast(pa.binary()),
        pattern=field.weight_separator,
        max_splits=1,
        reverse=True,
    )
    sizes = np.diff(splits_of(pairs))
    _add(reasons, owners[sizes != 2], WITHOUT_WEIGHT)
    ends = splits_of(pairs)
    parts = pairs.flatten()
    weights = to_numbers(
        parts.take(pa.array(ends[1:] - 1)),
        Field(field.name, "float32"),
        owners,
        reasons,
        decimal,
    )
    return parts.take(pa.array(ends[:-1])), weights


def _ids(
    column: Array, owners: npt.NDArray[np.int64] | None, reasons: Reasons
) -> Array:
    """Texts; of floats those of integers, as other columns have them."""
    if not pa.types.is_floating(column.type):
        return column
    integers, bad = to_type(without_nan(column), pa.int64(), ".")
    _add(reasons, bad if owners is None else owners[bad], BAD_NUMBER)
    return integers.cast(pa.string())


def _filled(column: Array, default: typing.Any) -> Array:
    if pa.types.is_dictionary(column.type):
        return column  # Of bytes, and none of them is null.
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.binary())
    if not column.null_count:
        return column
    return column.fill_null(str(default).encode())


def _nulls(column: Array) -> npt.NDArray[np.bool_]:
    return column.is_null().to_numpy(zero_copy_only=False)


def _add(reasons: Reasons, rows: typing.Any, reason: str) -> None:
    for row in rows:
        reasons.setdefault(int(row), reason)
