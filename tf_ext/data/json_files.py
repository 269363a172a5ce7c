# SPDX-License-Identifier: Apache-2.0
"""JSON lines: an object on each line."""

import functools
import json
import re
import typing
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from tf_ext._checks import refuse
from tf_ext.data import paths
from tf_ext.data.arrow import (
    BAD_NUMBER,
    BAD_TIME,
    WRONG_TYPE,
    Converter,
    type_of,
)
from tf_ext.data.errors import Malformed
from tf_ext.data.field import Field, is_list, is_text
from tf_ext.data.isolation import isolate
from tf_ext.data.lines import Checked, Lines, check, joined, read_lines, without
from tf_ext.data.parts import Parsed
from tf_ext.data.schema import Schema

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as arrow_json
except ImportError:
    pa = pc = arrow_json = None

BAD_JSON = "bad JSON"
# Of times: as exact as nanoseconds.
_DECIMALS = None if pa is None else pa.decimal128(38, 9)
NO_OBJECT = "no JSON object"
# A second value on a line, which pyarrow would take for a record of its own. It
# crashes at a null that comes first, so it is given none outside of objects.
_SECOND = re.compile(rb"\}[ \t]*[^ \t\n,\]}]")


class JsonFiles:
    """Reads JSON lines."""

    def __init__(self, schema: Schema) -> None:
        through = paths.conflicts(field.name for field in schema.used)
        if through:
            allowed = (
                "one in which no field is an object that others are fields of, "
                f"as {through} are"
            )
            refuse("read", "schema", allowed, [f.name for f in schema.used])
        self._schema = schema
        self._types = {field.name: _type_of(field) for field in schema.used}
        self._times = [
            field
            for field in schema.used
            if field.time is not None and field.separator is None
        ]
        self._nothing = pa.schema(list(self._types.items())).empty_table()
        self._converter = Converter(schema)

    def blocks(self, file: str) -> Iterator[Callable[[], Parsed]]:
        """Yields functions that parse the blocks of a file, in any thread."""
        for block in read_lines(file):
            yield functools.partial(self.parse, block)

    def messages(self, values: list[bytes]) -> Parsed:
        """Parses values, each of which is an object, on one line or several."""
        data = joined(values)
        if data is not None:
            return self.parse(Lines(data, 1))
        rows: list[int] = []
        lines: list[bytes] = []
        malformed = []
        for row, value in enumerate(values):
            if b"\n" in value:
                try:
                    json.loads(value)
                except (ValueError, RecursionError):
                    malformed.append(Malformed(row + 1, BAD_JSON))
                    continue
                # They are blanks: strings cannot have them.
                value = value.replace(b"\r", b" ").replace(b"\n", b" ").strip()
            rows.append(row)
            lines.append(value + b"\n")
        parsed = self.parse(Lines(b"".join(lines), 1))
        malformed += [
            one._replace(number=rows[one.number - 1] + 1)
            for one in parsed.malformed
        ]
        return Parsed(parsed.part, len(values), malformed)

    def parse(self, block: Lines) -> Parsed:
        """Parses lines, each of which is a record."""
        lines = _objects(check(block, None))
        data, ends = lines.data, _ends(lines.data)
        begins = np.concatenate([[0], ends])
        tables, bad = isolate(
            len(ends),
            lambda begin, end: self._table(
                data[begins[begin] : begins[end]], end - begin
            ),
            lambda _: self._nothing,
            (pa.ArrowInvalid, pa.ArrowNotImplementedError),
        )
        whole = pa.concat_tables(tables)
        part, reasons = self._converter.part(
            {f.name: whole[f.name].combine_chunks() for f in self._schema.used}
        )
        numbers = np.delete(lines.numbers, bad)
        malformed = [
            *lines.malformed,
            *(
                Malformed(
                    int(lines.numbers[row]),
                    self._reason(data[begins[row] : begins[row + 1]]),
                )
                for row in bad
            ),
            *(
                Malformed(int(numbers[row]), reason)
                for row, reason in sorted(reasons.items())
            ),
        ]
        return Parsed(part, lines.records, malformed)

    def _table(self, data: bytes, rows: int) -> typing.Any:
        """The columns of `_types` of some lines.

        Raises:
          pyarrow.ArrowInvalid: a line has no such values.
        """
        if not rows:
            return self._nothing
        types = self._types
        if self._times:
            types = types | _kinds(data, self._times)
        exact = {n: _instead(t, pa.decimal128(38, 0)) for n, t in types.items()}
        try:
            table = _read(data, rows, types)
        except pa.ArrowInvalid:
            if exact == types or b".0" not in data:
                raise
            # `7.0`, as pandas writes 7 beside missing values, is exact among
            # decimals, which take texts for numbers; floats do not.
            floats = {n: _instead(t, pa.float64()) for n, t in types.items()}
            _read(data, rows, floats)
            table = _read(data, rows, exact)
        columns = {name: paths.column_of(table, name) for name in types}
        for field in self._times:
            columns[field.name] = _as_texts(columns[field.name])
        return pa.table(columns).cast(self._nothing.schema)

    def _reason(self, line: bytes) -> str:
        """Why pyarrow refuses a line."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return BAD_JSON
        fields = self._schema.used
        try:
            values = [paths.value_of(found, field.name) for field in fields]
        except TypeError:
            return WRONG_TYPE
        if not all(map(_has_type, fields, values)):
            return WRONG_TYPE
        for field, value in zip(fields, values, strict=True):
            if not is_text(field):
                record = {field.name: value}
                if not self._reads(record):
                    return BAD_NUMBER if field.time is None else BAD_TIME
        # Such as a name that appears twice, or half of a pair of surrogates.
        return BAD_JSON

    def _reads(self, record: dict[str, typing.Any]) -> bool:
        try:
            self._table(json.dumps(record, allow_nan=False).encode(), 1)
            return True
        except (ValueError, pa.ArrowNotImplementedError):
            return False


def _read(data: bytes, rows: int, types: dict[str, typing.Any]) -> typing.Any:
    table = arrow_json.read_json(
        pa.BufferReader(data),
        arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        arrow_json.ParseOptions(
            explicit_schema=paths.schema_of(types),
            unexpected_field_behavior="ignore",
        ),
    )
    if table.num_rows != rows:
        raise pa.ArrowInvalid("A line does not have one object.")
    return table


def _kinds(data: bytes, times: list[Field]) -> dict[str, typing.Any]:
    """The types of times in the first line, in which they are texts or numbers.

    Lines in which they are others are read apart from these.
    """
    kinds = {}
    try:
        record = json.loads(data[: data.find(b"\n")])
        values = [paths.value_of(record, field.name) for field in times]
    except (TypeError, ValueError, RecursionError):
        values = [None] * len(times)
    for field, value in zip(times, values, strict=True):
        some = value if isinstance(value, list) else [value]
        are_texts = some and all(isinstance(one, str) for one in some)
        kind = pa.string() if are_texts else _DECIMALS
        kinds[field.name] = pa.list_(kind) if field.bag else kind
    return kinds


def _as_texts(times: typing.Any) -> typing.Any:
    """Times as texts; numbers without their fraction."""
    if pa.types.is_list(times.type):
        values = _as_texts(times.values)
        return pa.ListArray.from_arrays(times.offsets, values)
    if pa.types.is_decimal(times.type):
        times = pc.floor(times).cast(pa.int64())
    return times.cast(pa.string())


def _instead(type_: typing.Any, of_integers: typing.Any) -> typing.Any:
    """A type with another one in place of integers."""
    if pa.types.is_list(type_):
        return pa.list_(_instead(type_.value_type, of_integers))
    return of_integers if pa.types.is_integer(type_) else type_


def _type_of(field: Field) -> typing.Any:
    if not field.bag:
        return type_of(field)
    if field.separator is not None:
        return pa.binary()
    return pa.list_(type_of(field))


def _has_type(field: Field, value: object) -> bool:
    if value is None:
        return True
    if is_list(field) != isinstance(value, list):
        return False
    values = value if isinstance(value, list) else [value]
    allowed = (str | None) if is_text(field) else (int | float | None)
    if field.time is not None:
        allowed |= str
    return all(
        isinstance(one, allowed) and not isinstance(one, bool) for one in values
    )


def _ends(data: bytes) -> npt.NDArray[np.int64]:
    """Behind the line breaks."""
    return np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1


def _objects(lines: Checked) -> Checked:
    """Leaves out lines that are not one object, as far as that is seen."""
    data = lines.data
    if not data:
        return lines
    block, ends = np.frombuffer(data, np.uint8), _ends(data)
    begins = np.concatenate([[0], ends[:-1]])
    suspects = (block[begins] != ord("{")) | (block[ends - 2] != ord("}"))
    places = [found.start() for found in _SECOND.finditer(data)]
    suspects[np.searchsorted(ends, places, "right")] = True
    reasons = {}
    for row in np.flatnonzero(suspects):
        reason = _reason_of(data[begins[row] : ends[row]])
        if reason is not None:
            reasons[int(row)] = reason
    if not reasons:
        return lines
    malformed = [
        Malformed(int(lines.numbers[row]), reason)
        for row, reason in reasons.items()
    ]
    left_out = np.array(list(reasons), np.int64)
    return Checked(
        without(data, begins, ends - 1, left_out),
        np.delete(lines.numbers, left_out),
        [*lines.malformed, *malformed],
        lines.records,
    )


def _reason_of(line: bytes) -> str | None:
    try:
        return None if isinstance(json.loads(line), dict) else NO_OBJECT
    except (ValueError, RecursionError):
        return BAD_JSON
