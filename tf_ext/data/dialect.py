# SPDX-License-Identifier: Apache-2.0
"""How lines of text files are cut into fields."""

import codecs
import dataclasses
import re
import typing
from collections.abc import Iterator

import numpy as np

from tf_ext._checks import refuse
from tf_ext.data.lines import Lines, is_any, is_quoted
from tf_ext.data.quotes import Quotes, whole_records

_OWNER = "Csv"
_BREAK = ord("\n")
# Of these, one that a block does not have stands for a longer delimiter.
_STAND_INS = bytes(sorted({*range(1, 32)} - {*b"\t\n\r"}, reverse=True))


class Block(typing.NamedTuple):
    """Lines whose fields have one byte between them."""

    lines: Lines
    delimiter: bytes


@dataclasses.dataclass(frozen=True)
class Csv:
    r"""How text files are cut into fields: the `format` of `tf_ext.data.read`.

    "csv" is short for `Csv()`, and "tsv" for `Csv("\t", quotes=False)`.

    Attributes:
      delimiter: string between two fields; without quotes it may have several
        characters.
      quotes: bool, whether a field may be in quotes, as in RFC 4180. It may
        then have line breaks, if its record is of at most 1 MiB. Otherwise a
        quote is a character like others.
      encoding: string, one of Python's text encodings that have ASCII as their
        part, such as "utf-8", "latin-1", "cp1252" and "shift_jis". Features are
        in UTF-8 whatever the encoding, so that an id is the same in all files.
      strip: bool, whether spaces and tabs around fields, outside of quotes, are
        left out.
      decimal: ".", or "," where floats are written as `2,5`.
      comment: string that comments begin with: lines that begin with it are
        skipped. None: there are none.

    Raises:
      ValueError: an argument is not as above.

    Example:
      >>> import pathlib, tempfile
      >>> file = pathlib.Path(tempfile.mkdtemp()) / "ratings.csv"
      >>> _ = file.write_text("# 2024\nann; 2,5\nJosé; 4\n", "latin-1")
      >>> fields = [tf_ext.data.Field("user"),
      ...           tf_ext.data.Field("stars", "float32")]
      >>> schema = tf_ext.data.Schema(fields)
      >>> dialect = tf_ext.data.Csv(
      ...     ";", encoding="latin-1", strip=True, decimal=",", comment="#")
      >>> for batch in tf_ext.data.read(file, schema, dialect, batch_size=2):
      ...     print(batch["user"].numpy()[1].decode(), batch["stars"].numpy())
      José [2.5 4. ]
    """

    delimiter: str = ","
    quotes: bool = True
    encoding: str = "utf-8"
    strip: bool = False
    decimal: str = "."
    comment: str | None = None

    def __post_init__(self) -> None:
        for argument in ("quotes", "strip"):
            value = getattr(self, argument)
            if not isinstance(value, bool):
                refuse(_OWNER, argument, "True or False", value)
        for argument, value in (
            ("delimiter", self.delimiter),
            ("comment", "#" if self.comment is None else self.comment),
        ):
            if not _is_text(value):
                allowed = (
                    "characters of a line without quotes, at least one"
                    + (", or None" if argument == "comment" else "")
                )
                refuse(_OWNER, argument, allowed, value)
        if self.quotes and len(self.delimiter.encode()) > 1:
            allowed = "one character of ASCII, or several with quotes=False"
            refuse(_OWNER, "delimiter", allowed, self.delimiter)
        if self.decimal not in (".", ",") or self.decimal == self.delimiter:
            allowed = '"." or ",", and not the delimiter'
            refuse(_OWNER, "decimal", allowed, self.decimal)
        if not isinstance(self.encoding, str) or not _has_ascii(self.encoding):
            allowed = "a text encoding of Python that has ASCII as its part"
            refuse(_OWNER, "encoding", allowed, self.encoding)

    def is_comment(self, line: bytes) -> bool:
        """Whether a line in UTF-8 is skipped."""
        return self.comment is not None and line.startswith(
            self.comment.encode()
        )

    def is_plain(self, lines: bytes) -> bool:
        """Whether there are no comments, and UTF-8 is what they are in."""
        return self.comment is None and self.in_utf_8(lines) is lines

    def records(self, blocks: Iterator[Lines]) -> Iterator[Lines]:
        """The lines of a file in UTF-8, in blocks of whole records.

        Bytes that the encoding does not have are left as they are, which is
        not UTF-8.
        """
        in_utf_8 = (
            Lines(self.in_utf_8(block.data), block.first) for block in blocks
        )
        if not self.quotes:
            return in_utf_8
        delimiter = self.delimiter.encode()
        blanks = _blanks(delimiter) if self.strip else b""
        is_comment = None if self.comment is None else self.is_comment
        return whole_records(in_utf_8, Quotes(delimiter[0], blanks, is_comment))

    def block(self, lines: Lines) -> Block:
        """Lines of `records`, as many as before, without comments."""
        data = lines.data
        if self.comment is not None:
            data = self._without_comments(lines)
        delimiter = self.delimiter.encode()
        if len(delimiter) > 1:
            absent = (one for one in _STAND_INS if bytes([one]) not in data)
            stand_in = bytes([next(absent, _STAND_INS[0])])
            data = data.replace(delimiter, stand_in)
            delimiter = stand_in
        lines = lines._replace(data=data)
        if self.strip:
            lines = lines._replace(data=_strip(lines, delimiter, self.quotes))
        return Block(lines, delimiter)

    def _without_comments(self, lines: Lines) -> bytes:
        prefix = re.escape((self.comment or "").encode())
        comment = re.compile(rb"(?m)^%b[^\n]*" % prefix)
        if not len(lines.inner):
            return comment.sub(b"", lines.data)
        breaks = np.flatnonzero(np.frombuffer(lines.data, np.uint8) == _BREAK)
        # Where lines begin within a value.
        within = set((breaks[lines.inner] + 1).tolist())
        return comment.sub(
            lambda found: found[0] if found.start() in within else b"",
            lines.data,
        )

    def in_utf_8(self, data: bytes) -> bytes:
        """Text in UTF-8; bytes that the encoding does not have are left."""
        if data.isascii() or codecs.lookup(self.encoding).name == "utf-8":
            return data
        text = data.decode(self.encoding, "surrogateescape")
        return text.encode("utf-8", "surrogateescape")


def _blanks(delimiter: bytes) -> bytes:
    return b" \t".replace(delimiter, b"")


def _is_text(value: object) -> typing.TypeGuard[str]:
    return (
        isinstance(value, str)
        and bool(value)
        and not any(one in value for one in '"\n\r\0')
    )


def _has_ascii(encoding: str) -> bool:
    # With what other characters are written as in ISO 2022 or with escapes.
    ascii_bytes = (
        bytes(range(0x20, 0x7F)) + b"\t\n\r" + b"\x1b$B0!\x1b(B" + rb"\u0041"
    )
    try:
        # Its decoder would take away a mark in each block.
        if codecs.lookup(encoding).name == "utf-8-sig":
            return False
        return ascii_bytes.decode(encoding) == ascii_bytes.decode("ascii")
    except (LookupError, UnicodeError, ValueError):
        return False


def _strip(lines: Lines, delimiter: bytes, quotes: bool) -> bytes:
    """Without blanks at the begin and the end of fields, in one pass.

    A regular expression would take quadratic time for a line of blanks.
    """
    bytes_ = np.frombuffer(lines.without_returns(), np.uint8)
    is_blank = is_any(bytes_, _blanks(delimiter))
    blanks, others = np.flatnonzero(is_blank), np.flatnonzero(~is_blank)
    # As many others come before each blank. The last one is a line break, also
    # for blanks that none precedes.
    after = np.searchsorted(others, blanks)
    is_edge = bytes_[others] == delimiter[0]
    is_break = bytes_ == _BREAK
    ends = np.flatnonzero(is_break)
    if len(lines.inner):
        is_break[ends[lines.inner]] = False
        ends = np.delete(ends, lines.inner)
    if quotes:
        is_edge &= ~is_quoted(bytes_, ends, others)
    is_edge |= is_break[others]
    kept = np.ones(len(bytes_), bool)
    kept[blanks[is_edge[after - 1] | is_edge[after]]] = False
    return bytes_[kept].tobytes()
