# SPDX-License-Identifier: Apache-2.0
"""Blocks of whole lines of text files, and the records that are malformed.

A line is a record, unless its block says that breaks are in values.
"""

import codecs
import gzip
import io
import os
import typing
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import _core
from tf_ext.data.errors import DamagedFileError, Malformed

BLOCK_BYTES = 4 << 20
_PIECE_BYTES = 64 << 10
# A longer one is malformed: it would be held in memory to look for its end.
MAX_LINE_BYTES = 1 << 20
GZIP = b"\x1f\x8b"

_QUOTE, _RETURN = ord('"'), ord("\r")

EMPTY = "empty message"
LONG_LINE = "line above 1 MiB"
NUL = "NUL byte"
QUOTES = "wrong quotes"
RETURN = "carriage return"
UTF_8 = "invalid UTF-8"


class Lines(typing.NamedTuple):
    """A block of a file.

    data: whole lines, the last one with a line break, too; first: the number of
    the first line, from 1; inner: int64, the indices of the lines whose breaks
    are in values, which rise.
    """

    data: bytes
    first: int
    inner: npt.NDArray[np.int64] = np.empty(0, np.int64)

    def without_returns(self) -> bytes:
        """The lines without carriage returns before the breaks of records."""
        if not len(self.inner):
            return self.data.replace(b"\r\n", b"\n")
        block = np.frombuffer(self.data, np.uint8)
        ends = np.delete(_core.line_ends(self.data), self.inner)
        returns = ends[(ends > 0) & (block[ends - 1] == _RETURN)] - 1
        return np.delete(block, returns).tobytes()


def joined(values: Sequence[bytes]) -> bytes | None:
    """Texts, none of them empty, as lines; None if one has a line break."""
    data = b"\n".join(values) + b"\n"
    if _core.count_lines(data) > len(values) or b"\r" in data:
        return None
    return data if values else b""


def read_lines(file: str) -> Iterator[Lines]:
    """Yields the blocks of a file, which may be compressed by gzip.

    A line above MAX_LINE_BYTES may be cut, but not to that length.

    Raises:
      DamagedFileError: the rest of a compressed file cannot be read.
    """
    rest, first = b"", 1
    for chunk in _chunks(file):
        end = chunk.rfind(b"\n") + 1
        if not end:
            if len(rest) <= MAX_LINE_BYTES:
                rest += chunk
            continue
        data = chunk
        if rest or end < len(chunk):
            data = b"".join([rest, memoryview(chunk)[:end]])
            rest = chunk[end:]
        yield Lines(data, first)
        first += _core.count_lines(data)
    if rest:
        yield Lines(rest + b"\n", first)


def _chunks(file: str) -> Iterator[bytes]:
    if os.path.isfile(file):
        with open(file, "rb", buffering=0) as local:
            begin = local.read(max(len(GZIP), len(codecs.BOM_UTF8)))
            if not begin.startswith(GZIP):
                is_marked = begin.startswith(codecs.BOM_UTF8)
                local.seek(len(codecs.BOM_UTF8) if is_marked else 0)
                yield from _chunks_of_lines(local)
                return
    with tf.io.gfile.GFile(file, "rb") as raw:
        is_gzip = raw.read(len(GZIP)) == GZIP
        raw.seek(0)
        chunks = unzipped(file, raw) if is_gzip else read_chunks(raw)
        first = next(chunks, b"")
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from chunks


def _chunks_of_lines(local: io.FileIO) -> Iterator[bytes]:
    """Yields a local file in pieces that end with a line, as far as they can.

    Memory is taken once for each: new pages cost more than to copy them.
    """
    place = local.tell()
    while True:
        size = BLOCK_BYTES
        # A few lines at the end tell where the last one ends.
        seen = min(size, _PIECE_BYTES)
        local.seek(place + size - seen)
        end = local.read(seen).rfind(b"\n") + 1
        local.seek(place)
        data = local.read(size - seen + end if end else size)
        if not data:
            return
        place += len(data)
        yield data


def read_chunks(raw: typing.Any) -> Iterator[bytes]:
    """Yields what is left of an open file."""
    while chunk := raw.read(BLOCK_BYTES):
        yield chunk


def unzipped(file: str, raw: typing.Any) -> Iterator[bytes]:
    """Yields what an open file has when it is decompressed.

    Raises:
      DamagedFileError: it cannot be read to its end.
    """
    try:
        with gzip.GzipFile(fileobj=raw, mode="rb") as plain:
            yield from read_chunks(plain)
    except (EOFError, OSError, zlib.error) as error:
        raise DamagedFileError(
            f"{file} is damaged before byte {raw.tell()}: it cannot be "
            f"decompressed ({error}). The number of lost records is unknown: "
            "repair the file or leave it out."
        ) from error


class Checked(typing.NamedTuple):
    """The records of a block that can be parsed.

    data: their lines; numbers: int64, of their first lines; malformed: the
    other ones; records: the number of all that are not empty; has_breaks:
    whether line breaks or carriage returns are in values.
    """

    data: bytes
    numbers: typing.Any
    malformed: list[Malformed]
    records: int
    has_breaks: bool = False


def check(lines: Lines, separator: bytes | None) -> Checked:
    """Leaves out empty and malformed records.

    Args:
      lines: Lines.
      separator: one byte, where quotes are checked; None without quotes.
    """
    data = lines.data
    if b"\r" in data:
        data = lines.without_returns()
    block = np.frombuffer(data, np.uint8)
    ends = _core.line_ends(data)
    numbers = np.arange(lines.first, lines.first + len(ends))
    has_breaks = len(lines.inner) > 0
    if has_breaks:
        ends = np.delete(ends, lines.inner)
        numbers = np.delete(numbers, lines.inner + 1)
    begins = np.concatenate([[0], ends[:-1] + 1])
    reasons: dict[int, str] = {}
    for index in np.flatnonzero(ends - begins > MAX_LINE_BYTES):
        reasons[int(index)] = LONG_LINE
    if b"\0" in data:
        places = np.flatnonzero(block == 0)
        _note(reasons, np.searchsorted(ends, places), NUL)
    quotes = separator if b'"' in data else None
    if b"\r" in data:
        places = np.flatnonzero(block == _RETURN)
        if quotes is not None:
            quoted = is_quoted(block, ends, places)
            has_breaks |= bool(quoted.any())
            places = places[~quoted]
        _note(reasons, np.searchsorted(ends, places), RETURN)
    if not data.isascii():
        _note(reasons, _not_utf_8(data, block, begins, ends), UTF_8)
    if quotes is not None:
        _note(reasons, _core.wrongly_quoted(data, ends, quotes), QUOTES)
    empty = np.flatnonzero(ends == begins)
    malformed = [
        Malformed(int(numbers[index]), reasons[index])
        for index in sorted(reasons)
    ]
    records = len(ends) - len(empty)
    if not (len(empty) or reasons):
        return Checked(data, numbers, malformed, records, has_breaks)
    left_out = np.union1d(empty, np.array(list(reasons), np.int64))
    return Checked(
        without(data, begins, ends, left_out.astype(np.int64)),
        np.delete(numbers, left_out),
        malformed,
        records,
        has_breaks,
    )


def _note(
    reasons: dict[int, str], lines: npt.NDArray[np.int64], reason: str
) -> None:
    for line in lines:
        reasons.setdefault(int(line), reason)


def without(
    data: bytes,
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    left_out: npt.NDArray[np.int64],
) -> bytes:
    """Lines without some.

    Args:
      data: bytes.
      begins: int64, where each line begins.
      ends: int64, its line break.
      left_out: int64, the indices of the lines to leave out, which rise.
    """
    view, pieces, begin = memoryview(data), [], 0
    for line in left_out:
        pieces.append(view[begin : begins[line]])
        begin = ends[line] + 1
    pieces.append(view[begin:])
    return b"".join(pieces)


def _not_utf_8(
    data: bytes,
    block: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    try:
        codecs.utf_8_decode(data, "strict", True)
        return np.empty(0, np.int64)
    except UnicodeDecodeError:
        pass
    suspects = np.unique(np.searchsorted(ends, np.flatnonzero(block >= 0x80)))
    bad = []
    for line in suspects:
        try:
            codecs.utf_8_decode(data[begins[line] : ends[line]], "strict", True)
        except UnicodeDecodeError:
            bad.append(line)
    return np.array(bad, np.int64)


def is_quoted(
    block: npt.NDArray[np.uint8],
    ends: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Whether an odd number of quotes precedes each place in its record.

    Args:
      block: uint8, whole records.
      ends: int64, their line breaks.
      places: int64.
    """
    quotes = np.flatnonzero(block == _QUOTE)
    counts = np.concatenate([[0], np.searchsorted(quotes, ends)])
    before = np.searchsorted(quotes, places)
    return (before - counts[np.searchsorted(ends, places)]) % 2 == 1


def is_any(block: npt.NDArray[np.uint8], some: bytes) -> npt.NDArray[np.bool_]:
    """Whether each byte is one of some."""
    found = np.zeros(len(block), bool)
    for byte in some:
        found |= block == byte
    return found
