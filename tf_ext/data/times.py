# SPDX-License-Identifier: Apache-2.0
"""Times, in whatever way files have them, as seconds since 1970 in UTC."""

import typing

from tf_ext.data.numeric import cast, is_text, to_type

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:
    pa = pc = None

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# Of ISO 8601: a date, and maybe a time of the day with a fraction and a zone.
_ISO = r"^\d{4}-\d{2}-\d{2}([T ]|$)"
_FRACTION = r"^(.{10}[T ]\d{2}:\d{2}:\d{2})[.,]\d+"
_ZONE = r"^(.{10}[T ]\d{2}(?::\d{2}){0,2}) ?(Z|[+-]\d{2}(?::?\d{2})?)$"

Array: typing.TypeAlias = typing.Any


def is_time(type_: typing.Any) -> bool:
    """Whether a type of Arrow is one of times, which tells its unit."""
    return pa.types.is_timestamp(type_) or pa.types.is_date(type_)


def to_seconds(column: Array, unit: str) -> tuple[Array, list[int]]:
    """Whole seconds since 1970, int64, and where there are none.

    Fractions are cut off towards earlier times. What has no time zone is taken
    for UTC.

    Args:
      column: array of times, of texts of ISO 8601, or of numbers, as numbers or
        texts.
      unit: string, of `UNITS`, what numbers count.
    """
    if is_time(column.type):
        return _of_times(column), []
    if is_text(column.type):
        texts, no_texts = cast(column, pa.string())
        found, bad = _of_texts(pc.utf8_trim_whitespace(texts), unit)
        return found, sorted([*no_texts, *bad])
    return _of_numbers(column, unit)


def _of_texts(texts: Array, unit: str) -> tuple[Array, list[int]]:
    is_iso = pc.match_substring_regex(texts, _ISO)
    if not pc.any(is_iso).as_py():
        return _of_numbers(texts, unit)
    found, bad = _of_iso(_only(texts, is_iso))
    if pc.all(is_iso).as_py():
        return found, bad
    others, bad_others = _of_numbers(_only(texts, pc.invert(is_iso)), unit)
    return pc.coalesce(found, others), sorted([*bad, *bad_others])


def _only(column: Array, chosen: Array) -> Array:
    return pc.if_else(chosen, column, pa.scalar(None, column.type))


def _of_times(column: Array) -> Array:
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("ms"))
    count = UNITS[column.type.unit]
    return _divided(column.cast(pa.int64()), count)


def _divided(integers: Array, count: int) -> Array:
    """Integers divided, and rounded down."""
    if count == 1:
        return integers
    values = integers.fill_null(0).to_numpy(zero_copy_only=False) // count
    absent = integers.is_null().to_numpy(zero_copy_only=False)
    return pa.array(values, pa.int64(), mask=absent)


def _of_iso(texts: Array) -> tuple[Array, list[int]]:
    texts = pc.replace_substring_regex(texts, _FRACTION, r"\1")
    texts = pc.replace_substring_regex(texts, r" ?(UTC|GMT|z)$", "Z")
    has_zone = pc.match_substring_regex(texts, _ZONE)
    found, bad = cast(_only(texts, pc.invert(has_zone)), pa.timestamp("s"))
    found = found.cast(pa.int64())
    if pc.any(has_zone).as_py():
        zoned = pc.replace_substring_regex(texts, _ZONE, r"\1\2")
        others, bad_others = cast(
            _only(zoned, has_zone), pa.timestamp("s", "UTC")
        )
        found = pc.coalesce(found, others.cast(pa.int64()))
        bad = sorted([*bad, *bad_others])
    return found, bad


def _of_numbers(column: Array, unit: str) -> tuple[Array, list[int]]:
    count = UNITS[unit]
    if is_text(column.type):
        is_whole = pc.match_substring_regex(column, r"^[+-]?\d+$")
        if not pc.all(is_whole).as_py():
            column = cast(column, pa.decimal128(38, 9))
            decimals, bad = column
            floors, too_large = cast(pc.floor(decimals), pa.int64())
            return _divided(floors, count), sorted({*bad, *too_large})
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        column = pc.floor(column)
    if pa.types.is_floating(column.type):
        integers, bad = cast(column, pa.int64())
    else:
        integers, bad = to_type(column, pa.int64(), ".")
    return _divided(integers, count), bad
