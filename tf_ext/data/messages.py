# SPDX-License-Identifier: Apache-2.0
"""From the messages of a source to records."""

import typing
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tf_ext._checks import refuse
from tf_ext.data.arrow import Converter
from tf_ext.data.formats import Format, message_reader_of
from tf_ext.data.lines import EMPTY
from tf_ext.data.message_runs import Messages
from tf_ext.data.parts import Part
from tf_ext.data.schema import Schema
from tf_ext.data.source import Message

try:
    import pyarrow as pa
except ImportError:
    pa = None

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
        format: Format,
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
        messages = Messages.of(messages)
        values = typing.cast("list[bytes]", messages.values)
        found = self._body.parse(values)
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

    def _place(self, place: str, messages: Messages) -> list[bytes | None]:
        if place == KEY:
            return messages.keys
        return messages.header(place.removeprefix(HEADER))


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

    def __init__(self, schema: Schema, format: Format) -> None:
        self._reader = message_reader_of(schema, format)

    def parse(self, values: list[bytes]) -> Records:
        rows = np.arange(len(values))
        texts = values
        if not all(values):
            rows = np.flatnonzero([len(value) for value in values])
            texts = [values[row] for row in rows]
        parsed = self._reader.messages(texts)
        reasons = {
            int(rows[one.number - 1]): one.reason for one in parsed.malformed
        }
        empty = np.delete(np.arange(len(values)), rows)
        reasons |= dict.fromkeys(empty.tolist(), EMPTY)
        kept = np.delete(np.arange(len(values)), list(reasons))
        assert len(kept) == parsed.part.rows
        return Records(parsed.part, kept, reasons)
