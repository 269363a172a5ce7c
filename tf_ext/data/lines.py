# SPDX-License-Identifier: Apache-2.0
"""Blocks of whole lines of text files, and the lines that are malformed.

A line is a record: a quoted field cannot contain a line break. So a quote that
is missing costs one record and not all that follow it.
"""

import codecs
import gzip
import typing
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext.data.errors import DamagedFileError, Malformed

BLOCK_BYTES = 4 << 20
# A longer one is malformed: it would be held in memory to look for its end.
MAX_LINE_BYTES = 1 << 20
GZIP = b"\x1f\x8b"

LONG_LINE = "line above 1 MiB"
NUL = "NUL byte"
QUOTES = "wrong quotes"
RETURN = "carriage return"
UTF_8 = "invalid UTF-8"


class Lines(typing.NamedTuple):
    """A block of a file.

    data: whole lines, the last one with a line break, too; first: the number of
    the first line, from 1.
    """

    data: bytes
    first: int


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
        data = rest + chunk[:end]
        rest = chunk[end:]
        yield Lines(data, first)
        first += data.count(b"\n")
    if rest:
        yield Lines(rest + b"\n", first)


def _chunks(file: str) -> Iterator[bytes]:
    with tf.io.gfile.GFile(file, "rb") as raw:
        is_gzip = raw.read(len(GZIP)) == GZIP
        raw.seek(0)
        chunks = unzipped(file, raw) if is_gzip else read_chunks(raw)
        first = next(chunks, b"")
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from chunks


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
    """The lines of a block that can be parsed.

    data: them; numbers: function to their numbers, int64; malformed: the other
    ones; records: the number of all lines that are not empty.
    """

    data: bytes
    numbers: typing.Any
    malformed: list[Malformed]
    records: int


def check(lines: Lines, separator: bytes | None) -> Checked:
    """Leaves out empty and malformed lines.

    Args:
      lines: Lines.
      separator: one byte, where quotes are checked; None without quotes.
    """
    data = lines.data
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    block = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(block == ord("\n"))
    begins = np.concatenate([[0], ends[:-1] + 1])
    reasons: dict[int, str] = {}
    for index in np.flatnonzero(ends - begins > MAX_LINE_BYTES):
        reasons[int(index)] = LONG_LINE
    for byte, reason in ((0, NUL), (ord("\r"), RETURN)):
        if bytes([byte]) in data:
            places = np.flatnonzero(block == byte)
            _note(reasons, np.searchsorted(ends, places), reason)
    if not data.isascii():
        _note(reasons, _not_utf_8(data, block, begins, ends), UTF_8)
    if separator is not None and b'"' in data:
        _note(reasons, _wrongly_quoted(block, ends, separator[0]), QUOTES)
    empty = np.flatnonzero(ends == begins)
    malformed = [
        Malformed(lines.first + index, reasons[index])
        for index in sorted(reasons)
    ]
    records = len(ends) - len(empty)
    if not (len(empty) or reasons):
        numbers = np.arange(lines.first, lines.first + len(ends))
        return Checked(data, numbers, malformed, records)
    left_out = np.union1d(empty, np.array(list(reasons), np.int64))
    numbers = np.delete(np.arange(len(ends)), left_out)
    return Checked(
        without(data, begins, ends, left_out.astype(np.int64)),
        numbers + lines.first,
        malformed,
        records,
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


def _wrongly_quoted(
    block: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], separator: int
) -> npt.NDArray[np.int64]:
    """Lines whose quotes are not those of RFC 4180.

    A quote opens a field after a separator and closes it before one; two in a
    row within a quoted field are one that belongs to the value.
    """
    quote, newline = ord('"'), ord("\n")
    places = np.flatnonzero(block == quote)
    lines = np.searchsorted(ends, places)
    # The number of each quote within its line.
    first = np.searchsorted(lines, lines)
    opens = (np.arange(len(places)) - first) % 2 == 0
    before = np.where(places > 0, block[places - 1], newline)
    after = block[places + 1]
    reopens = opens & (before == quote) & (np.arange(len(places)) > first)
    good = np.where(
        opens,
        reopens | (before == separator) | (before == newline),
        (after == separator) | (after == newline) | (after == quote),
    )
    counts = np.bincount(lines)
    odd = np.flatnonzero(counts % 2 == 1)
    return np.union1d(lines[~good], odd)
