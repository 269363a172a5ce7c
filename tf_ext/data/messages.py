# SPDX-License-Identifier: Apache-2.0
"""From the messages of a source to records.

The readers of files parse messages, too: each is a line, or an Example.
"""

import json
import typing
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext._checks import refuse
from tf_ext.data.arrow import Converter
from tf_ext.data.csv_files import CsvFiles
from tf_ext.data.dialect import Csv
from tf_ext.data.formats import reader_of
from tf_ext.data.json_files import BAD_JSON, JsonFiles
from tf_ext.data.lines import Lines
from tf_ext.data.parts import Parsed, Part
from tf_ext.data.record_files import RecordFiles, masked_crc
from tf_ext.data.schema import Schema
from tf_ext.data.source import Message

try:
    import pyarrow as pa
except ImportError:
    pa = None

EMPTY = "empty message"
LINE_BREAK = "line break"
KEY = "key"
HEADER = "header:"
_OWNER = "stream"

# Of each record that is left out: why.
Reasons: typing.TypeAlias = dict[int, str]


class Records(typing.NamedTuple):
    """Messages, parsed.

    part: the well-formed records; kept: int64, which messages they are of;
    reasons: of the other ones.
    """

    part: Part
    kept: npt.NDArray[np.int64]
    reasons: Reasons


class MessageParser:
    """Parses messages.

    Args:
      schema: Schema.
      format: of the values of messages.
      envelope: dict from names of fields to where they are instead.
    """

    def __init__(
        self,
        schema: Schema,
        format: str | Csv,
        envelope: Mapping[str, str],
    ) -> None:
        self._places = _checked(envelope, schema)
        inside = [f for f in schema.fields if f.name not in envelope]
        outside = [f for f in schema.used if f.name in envelope]
        self._body = _Body(Schema(inside, missing=schema.missing), format)
        self._outside = outside
        self._converter = (
            Converter(Schema(outside, missing=schema.missing))
            if outside
            else None
        )

    def parse(self, messages: Sequence[Message]) -> Records:
        """The records of messages, of which none may be without a value."""
        found = self._body.parse([message.value or b"" for message in messages])
        if self._converter is None:
            return found
        columns = {
            field.name: pa.array(
                self._place(self._places[field.name], messages), pa.binary()
            )
            for field in self._outside
        }
        part, reasons = self._converter.part(columns)
        rows = np.arange(len(messages))
        kept = np.delete(rows, list(reasons)) if reasons else rows
        both = np.intersect1d(found.kept, kept, assume_unique=True)
        inner = found.part.take(np.searchsorted(found.kept, both))
        outer = part.take(np.searchsorted(kept, both))
        return Records(
            Part(len(both), inner.dense | outer.dense, inner.bags | outer.bags),
            both,
            reasons | found.reasons,
        )

    def _place(
        self, place: str, messages: Sequence[Message]
    ) -> list[bytes | None]:
        if place == KEY:
            return [message.key for message in messages]
        header = place.removeprefix(HEADER)
        return [message.headers.get(header) for message in messages]


def _checked(envelope: Mapping[str, str], schema: Schema) -> dict[str, str]:
    allowed = (
        "a dict from names of fields of the schema, but not all of them, to "
        f'"{KEY}" or "{HEADER}NAME"'
    )
    names = {field.name for field in schema.used}
    if (
        not isinstance(envelope, Mapping)
        or not names.issuperset(envelope)
        or not names.difference(envelope)
        or not all(
            place == KEY or (isinstance(place, str) and _is_header(place))
            for place in envelope.values()
        )
    ):
        refuse(_OWNER, "envelope", allowed, envelope)
    for field in schema.used:
        if field.name in envelope and field.bag and field.separator is None:
            allowed = "of fields that have a `separator` if they are bags"
            refuse(_OWNER, "envelope", allowed, envelope)
    return dict(envelope)


def _is_header(place: str) -> bool:
    return place.startswith(HEADER) and len(place) > len(HEADER)


class _Body:
    """Parses the values of messages."""

    def __init__(self, schema: Schema, format: str | Csv) -> None:
        if format == "parquet":
            allowed = "one of csv, tsv, jsonl, tfrecord, or a tf_ext.data.Csv"
            refuse(_OWNER, "format", allowed, format)
        self._schema = schema
        self._reader: typing.Any = reader_of(schema, format, False, 1)
        self._dialect = format if isinstance(format, Csv) else Csv()
        if format == "tsv":
            self._dialect = Csv("\t", quotes=False)

    def parse(self, values: list[bytes]) -> Records:
        reasons: Reasons = {}
        rows: list[int] = []
        texts: list[bytes] = []
        read = (
            _example
            if isinstance(self._reader, RecordFiles)
            else _json
            if isinstance(self._reader, JsonFiles)
            else self._line
        )
        for row, value in enumerate(values):
            if not value:
                reasons[row] = EMPTY
                continue
            text = read(value, row, reasons)
            if text is not None:
                rows.append(row)
                texts.append(text)
        kept = np.array(rows, np.int64)
        parsed = self._parsed(texts)
        bad = [one.number - 1 for one in parsed.malformed]
        for one in parsed.malformed:
            reasons[int(kept[one.number - 1])] = one.reason
        kept = np.delete(kept, bad)
        assert len(kept) == parsed.part.rows
        return Records(parsed.part, kept, reasons)

    def _parsed(self, texts: list[bytes]) -> Parsed:
        if isinstance(self._reader, RecordFiles):
            lengths = np.fromiter(map(len, texts), np.int64, len(texts))
            ends = np.cumsum(lengths) - 4
            begins = ends - lengths + 4
            return self._reader.parse(b"".join(texts), begins, ends, 1)
        data = b"".join(texts)
        if isinstance(self._reader, JsonFiles):
            return self._reader.parse(Lines(data, 1))
        assert isinstance(self._reader, CsvFiles)
        inner: list[int] = []
        if data.count(b"\n") > len(texts):
            line = 0
            for text in texts:
                breaks = text.count(b"\n")
                inner += range(line, line + breaks - 1)
                line += breaks
        lines = Lines(data, 1, np.array(inner, np.int64))
        names = self._reader.first_names(lines)
        parsed = self._reader.parse(lines, names)
        if not inner:
            return parsed
        # Of the first lines of messages to those of messages.
        firsts = np.delete(np.arange(line), np.array(inner) + 1)
        malformed = [
            one._replace(
                number=int(np.searchsorted(firsts, one.number - 1)) + 1
            )
            for one in parsed.malformed
        ]
        return parsed._replace(malformed=malformed)

    def _line(self, value: bytes, row: int, reasons: Reasons) -> bytes | None:
        value = value.removesuffix(b"\n").removesuffix(b"\r")
        line = self._dialect.in_utf_8(value)
        if self._dialect.is_comment(line) or not line:
            reasons[row] = EMPTY
            return None
        if b"\n" in line and not (self._dialect.quotes and _is_quoted(line)):
            reasons[row] = LINE_BREAK
            return None
        return line + b"\n"


def _is_quoted(line: bytes) -> bool:
    """Whether all line breaks are within quotes."""
    quotes = 0
    [*parts, _] = line.split(b"\n")
    for part in parts:
        quotes += part.count(b'"')
        if quotes % 2 == 0:
            return False
    return True


def _json(value: bytes, row: int, reasons: Reasons) -> bytes | None:
    if b"\n" in value:
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            reasons[row] = BAD_JSON
            return None
        # They are blanks: strings cannot have them.
        value = value.replace(b"\r", b" ").replace(b"\n", b" ")
        value = value.strip()
    return value + b"\n"


def _example(value: bytes, row: int, reasons: Reasons) -> bytes:
    del row, reasons
    return value + masked_crc(value).to_bytes(4, "little")
