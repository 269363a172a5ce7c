# SPDX-License-Identifier: Apache-2.0
"""From texts and numbers of Apache Arrow to numbers of a field's type."""

import re
import typing

import numpy as np

from tf_ext.data.isolation import isolate

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:
    pa = pc = None

Array: typing.TypeAlias = typing.Any
# Integers up to these are exact; larger ones were rounded to their neighbors.
_EXACT = {16: 1 << 11, 32: 1 << 24, 64: 1 << 53}


def is_text(type_: typing.Any) -> bool:
    """Whether a type of Arrow is one of texts or bytes, in any layout."""
    return any(
        is_one(type_)
        for is_one in (
            pa.types.is_string,
            pa.types.is_binary,
            pa.types.is_large_string,
            pa.types.is_large_binary,
            pa.types.is_string_view,
            pa.types.is_binary_view,
        )
    )


def to_type(
    column: Array, wanted: typing.Any, decimal: str
) -> tuple[Array, list[int]]:
    """Numbers of a type, and where there are none; those are null.

    Args:
      column: array of numbers, bytes or texts.
      wanted: type of Arrow, of the numbers.
      decimal: "." or ",", what floats in texts have before their fraction.
    """
    if is_text(column.type):
        return _parsed(column, wanted, decimal)
    if column.type == wanted:
        return column, []
    if pa.types.is_integer(wanted) and pa.types.is_floating(column.type):
        return _integral(column, wanted)
    return cast(column, wanted)


def without_nan(column: Array) -> Array:
    """Floats in which NaN, which pandas has for a missing integer, is null."""
    is_nan = pc.is_nan(column)
    if not pc.any(is_nan).as_py():
        return column
    return pc.if_else(is_nan, pa.scalar(None, column.type), column)


def _integral(column: Array, wanted: typing.Any) -> tuple[Array, list[int]]:
    """Integers of floats that are as exact."""
    most = _EXACT[column.type.bit_width]
    if column.type.bit_width == 16:
        column = column.cast(pa.float32())
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
    inexact = ~(np.abs(numbers) <= most)
    if inexact.any():
        column = pc.if_else(
            pa.array(inexact), pa.scalar(None, column.type), column
        )
    done, bad = cast(column, wanted)
    return done, sorted({*bad, *np.flatnonzero(inexact).tolist()})


def _parsed(
    column: Array, wanted: typing.Any, decimal: str
) -> tuple[Array, list[int]]:
    texts, no_texts = cast(column, pa.string())
    texts = pc.utf8_trim_whitespace(texts)
    if pa.types.is_integer(wanted):
        texts = _decimal(texts, decimal)
    elif decimal == ",":
        texts = pc.replace_substring(texts, ".", "point")
        texts = pc.replace_substring(texts, ",", ".")
    numbers, bad = cast(texts, wanted)
    return numbers, sorted([*no_texts, *bad])


def _decimal(texts: Array, decimal: str) -> Array:
    """Texts of integers that pyarrow reads as Python does.

    It refuses a plus sign, which it allows for floats, and takes hexadecimal
    integers. `7.0` is what pandas writes for 7 in a column that lacks values.
    """
    buffer = texts.buffers()[2]
    characters = b"" if buffer is None else buffer.to_pybytes()
    if b"%b0" % decimal.encode() in characters:
        fraction = rf"^([+-]?[0-9]+){re.escape(decimal)}0+$"
        texts = pc.replace_substring_regex(texts, fraction, r"\1")
    if not any(one in characters for one in (b"+", b"x", b"X")):
        return texts
    texts = pc.replace_substring_regex(texts, r"^\+([0-9])", r"\1")
    return pc.replace_substring_regex(texts, "^0[xX]", "hexadecimal ")


def cast(column: Array, wanted: typing.Any) -> tuple[Array, list[int]]:
    """Values as pyarrow casts them, and where it cannot; those are null."""
    # Beyond float32, infinities come out, which are found later.
    done, bad = isolate(
        len(column),
        # Integers may be rounded to floats.
        lambda begin, end: column[begin:end].cast(
            wanted, safe=not pa.types.is_floating(wanted)
        ),
        lambda _: pa.nulls(1, wanted),
        (pa.ArrowInvalid, pa.ArrowNotImplementedError),
    )
    whole = done[0] if len(done) == 1 else pa.concat_arrays(done)
    return whole, bad
