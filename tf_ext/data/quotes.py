# SPDX-License-Identifier: Apache-2.0
"""Records of several lines: fields in quotes that have line breaks.

Where a quote is missing, what follows would be within quotes up to the next
one. So lines are a record only if all quotes in them open or close a field, and
it ends within MAX_LINE_BYTES; otherwise the line alone is malformed. A missing
quote costs one record, because the next quote that opens a field closes none.
"""

import typing
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from tf_ext import _core
from tf_ext.data.lines import MAX_LINE_BYTES, Lines, is_any

_QUOTE, _BREAK, _RETURN = ord('"'), ord("\n"), ord("\r")

_Ints: typing.TypeAlias = npt.NDArray[np.int64]


class Quotes(typing.NamedTuple):
    """How fields are quoted.

    separator: int, the byte between fields; blanks: bytes that may be around
    quotes; is_comment: function from a line to whether it is one, or None.
    """

    separator: int
    blanks: bytes
    is_comment: Callable[[bytes], bool] | None


def whole_records(blocks: Iterator[Lines], quotes: Quotes) -> Iterator[Lines]:
    """Blocks that end where a record does, and know the breaks in values."""
    rest, first = b"", 1
    for block in blocks:
        data = rest + block.data
        if not rest:
            first = block.first
        inner, begin = _find(data, quotes)
        whole = data if begin is None else data[:begin]
        rest = data[len(whole) :]
        if whole:
            yield Lines(whole, first, inner)
            if rest:  # Otherwise the next block says it.
                first += _core.count_lines(whole)
    if rest:
        # The record does not end, so its first line alone is malformed.
        yield Lines(rest, first, _find(rest, quotes)[0])


def _find(data: bytes, quotes: Quotes) -> tuple[_Ints, int | None]:
    """The breaks of lines that are in values.

    Returns:
      `(lines, begin)`: their indices, which rise, and where in the data a
      record begins that may end behind them; None if there is none.
    """
    nothing = np.empty(0, np.int64)
    if b'"' not in data:
        return nothing, None
    odd = _core.lines_with_odd_quotes(data)
    if not len(odd):
        return nothing, None
    block = np.frombuffer(data, np.uint8)
    places = np.flatnonzero(block == _QUOTE)
    ends = _core.line_ends(data)
    # The number of quotes up to the end of each line.
    counts = np.searchsorted(places, ends)
    begins = np.where(odd > 0, ends[odd - 1] + 1, 0)
    firsts = np.where(odd > 0, counts[odd - 1], 0)
    wrong = _wrong_before(block, places, quotes)

    def is_record(lines: typing.Any, last: _Ints, end: _Ints) -> typing.Any:
        """Whether quotes from such lines up to others are those of a record."""
        first = firsts[lines]
        found = wrong[first % 2, last] - wrong[first % 2, first]
        return (found == 0) & (end - begins[lines] <= MAX_LINE_BYTES)

    opening = np.arange(len(odd) - 1)
    joined = is_record(opening, counts[odd[1:]], ends[odd[1:]]).tolist()
    changes = np.zeros(len(ends) + 1, np.int64)
    index = 0
    while index < len(odd):
        begin = int(begins[index])
        if quotes.is_comment is not None:
            if quotes.is_comment(data[begin : ends[odd[index]]]):
                index += 1
                continue
        if index == len(odd) - 1:
            last = np.array([index])
            if is_record(last, counts[-1:], ends[-1:])[0]:
                return _covered(changes), begin
        elif joined[index]:
            changes[odd[index]] += 1
            changes[odd[index + 1]] -= 1
            index += 1
        index += 1
    return _covered(changes), None


def _covered(changes: _Ints) -> _Ints:
    return np.flatnonzero(np.cumsum(changes)).astype(np.int64)


def _wrong_before(block: typing.Any, places: _Ints, quotes: Quotes) -> _Ints:
    """How many of the quotes before each one are wrong.

    Returns:
      int64 `[2, len(places) + 1]`, if those of even or odd indices open fields.
    """
    opens, closes = _roles(block, places, quotes)
    is_even = np.arange(len(places)) % 2 == 0
    wrong = [~np.where(is_even == of_even, opens, closes) for of_even in (1, 0)]
    return np.pad(np.cumsum(wrong, 1), ((0, 0), (1, 0)))


def _roles(
    block: npt.NDArray[np.uint8],
    places: _Ints,
    quotes: Quotes,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which quotes could open a field, and which could close one.

    A quote opens a field after a separator and closes it before one; two in a
    row within a quoted field are one that belongs to the value.

    Args:
      block: uint8, whole lines.
      places: int64, where it has quotes.
      quotes: Quotes.
    """
    # Before the first byte, a line ends.
    before = np.where(places > 0, block[places - 1], _BREAK)
    after = block[places + 1]
    opens, closes = before == _QUOTE, after == _QUOTE
    ends_line = block[np.minimum(places + 2, len(block) - 1)] == _BREAK
    closes |= (after == _RETURN) & ends_line
    if quotes.blanks:
        others = np.flatnonzero(~is_any(block, quotes.blanks))
        place = np.searchsorted(others, places)
        before = np.where(place > 0, block[others[place - 1]], _BREAK)
        behind = others[place + 1]
        after = block[behind]
        ends_line = block[np.minimum(behind + 1, len(block) - 1)] == _BREAK
        closes |= (after == _RETURN) & ends_line
    for one in (quotes.separator, _BREAK):
        opens |= before == one
        closes |= after == one
    return opens, closes
