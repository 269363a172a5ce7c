# SPDX-License-Identifier: Apache-2.0
"""Records that are lines of text, cut into fields by a delimiter."""

import collections
import csv
import functools
import itertools
import re
import typing
from collections.abc import Callable, Iterator

import numpy as np

from tf_ext.data.arrow import Converter, type_of
from tf_ext.data.dialect import Csv
from tf_ext.data.errors import DamagedFileError, Malformed
from tf_ext.data.lines import (
    EMPTY,
    Checked,
    Lines,
    check,
    joined,
    read_lines,
)
from tf_ext.data.parts import Parsed, concat
from tf_ext.data.schema import Schema

try:
    import pyarrow as pa
    import pyarrow.csv as arrow_csv
except ImportError:
    pa = arrow_csv = None

LINE_BREAK = "line break"
WIDTH = "wrong number of fields"


class CsvFiles:
    """Reads text whose lines are records, or several within quotes.

    Args:
      schema: Schema.
      dialect: Csv.
      header: bool, whether a file begins with a line of names.
    """

    def __init__(self, schema: Schema, dialect: Csv, header: bool) -> None:
        self._schema = schema
        self._dialect = dialect
        self._header = header
        self._converter = Converter(schema, dialect.decimal)

    def blocks(self, file: str) -> Iterator[Callable[[], Parsed]]:
        """Yields functions that parse the blocks of a file, in any thread."""
        blocks = self._dialect.records(read_lines(file))
        first = next(blocks, None)
        if first is None:
            return
        if self._header:
            header, first = self._cut(first)
            names = self._names(file, header)
        else:
            names = self._names_of(first)
        for block in itertools.chain([first] if first.data else [], blocks):
            yield functools.partial(self.parse, block, names)

    def messages(self, values: list[bytes]) -> Parsed:
        """Parses values, each of which is a line, or several within quotes.

        Each may lack optional fields, whatever others have.
        """
        left = np.arange(len(values))
        parts, kept = [], []
        malformed: list[Malformed] = []
        for names in self._widths():
            found = self._messages([values[row] for row in left], names)
            bad = {one.number - 1: one.reason for one in found.malformed}
            parts.append(found.part)
            kept.append(np.delete(left, list(bad)))
            others = [row for row, reason in bad.items() if reason == WIDTH]
            malformed += [
                Malformed(int(left[row]) + 1, reason)
                for row, reason in bad.items()
                if reason != WIDTH
            ]
            left = left[others]
            if not others:
                break
        malformed += [Malformed(int(row) + 1, WIDTH) for row in left]
        part = concat(parts)
        if len(parts) > 1:
            part = part.take(np.argsort(np.concatenate(kept)))
        return Parsed(part, len(values), malformed)

    def _messages(self, values: list[bytes], names: list[str]) -> Parsed:
        """Parses values that have fields of these names."""
        data = joined(values)
        if data is not None and self._dialect.is_plain(data):
            return self.parse(Lines(data, 1), names)
        rows: list[int] = []
        lines: list[bytes] = []
        malformed = []
        for row, value in enumerate(values):
            line, reason = self._line(value)
            if reason is None:
                rows.append(row)
                lines.append(line)
            else:
                malformed.append(Malformed(row + 1, reason))
        # Of each line of text the message that it is of, and the breaks within.
        breaks = [line.count(b"\n") for line in lines]
        owners = np.repeat(np.array(rows, np.int64), breaks)
        ends = np.cumsum(breaks, dtype=np.int64) - 1
        inner = np.delete(np.arange(len(owners)), ends)
        parsed = self.parse(Lines(b"".join(lines), 1, inner), names)
        malformed += [
            one._replace(number=int(owners[one.number - 1]) + 1)
            for one in parsed.malformed
        ]
        return Parsed(parsed.part, len(values), malformed)

    def _line(self, value: bytes) -> tuple[bytes, str | None]:
        """A value as a line, and why it is none."""
        value = value.removesuffix(b"\n").removesuffix(b"\r")
        line = self._dialect.in_utf_8(value)
        if self._dialect.is_comment(line) or not line:
            return b"", EMPTY
        if b"\n" in line and not (self._dialect.quotes and _is_quoted(line)):
            return b"", LINE_BREAK
        return line + b"\n", None

    def _widths(self) -> list[list[str]]:
        """The names of the fields that a line without a header may have."""
        fields = self._schema.fields
        names = [field.name for field in fields]
        needed = len([field for field in fields if not field.optional])
        widths = range(len(names), max(needed, 1) - 1, -1)
        return [names[:width] for width in widths]

    def _names_of(self, first: Lines) -> list[str]:
        """Those that most records of the first block of a file have."""
        [*some, last] = self._widths()
        if not some:
            return last
        return max(
            [*some, last], key=lambda names: self.parse(first, names).part.rows
        )

    def _cut(self, lines: Lines) -> tuple[Lines, Lines]:
        """The first record that is no comment, and the others."""
        inner = set(lines.inner.tolist())
        end = count = 0
        while end < len(lines.data):
            begin, first = end, count
            while True:
                end = lines.data.index(b"\n", end) + 1
                count += 1
                if count - 1 not in inner:
                    break
            line = lines.data[begin:end]
            if line.strip() and not self._dialect.is_comment(line):
                breaks = np.arange(count - first - 1)
                others = lines.inner[lines.inner >= count] - count
                return (
                    Lines(line, lines.first + first, breaks),
                    Lines(lines.data[end:], lines.first + count, others),
                )
        nothing = Lines(b"", lines.first + count)
        return nothing, nothing

    def _names(self, file: str, header: Lines) -> list[str]:
        lines, delimiter = self._dialect.block(header)
        text = lines.data.rstrip(b"\r\n").decode(errors="replace")
        quoted = self._dialect.quotes
        reader = csv.reader(
            [f"{line}\n" for line in text.split("\n")],
            delimiter=delimiter.decode(),
            quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        )
        try:
            names = next(reader, [])
        except csv.Error as error:
            raise DamagedFileError(
                f"The header of {file} must be a line of names, but is "
                f"{text[:500]!r}: {error}. Lines end in a line feed, and maybe "
                "a carriage return before it."
            ) from error
        names = _told_apart(names)
        used = [field.name for field in self._schema.used]
        absent = [
            field.name
            for field in self._schema.used
            if field.name not in names and not field.optional
        ]
        if absent:
            raise DamagedFileError(
                f"The header of {file} must have each field of the schema, but "
                f"not {absent}. Its first line: {text[:500]!r}. If the file "
                "has no header, read it with header=False; to skip a field, "
                "leave it out of the schema; if some files lack it, make it "
                "with optional=True."
            )
        # pyarrow does not take the same name twice.
        return [
            name if name in used else f"\0{column}"
            for column, name in enumerate(names)
        ]

    def parse(self, block: Lines, names: list[str]) -> Parsed:
        """Parses lines in UTF-8.

        Args:
          block: Lines, of whole records.
          names: list of strings, what each field of a line is.
        """
        cut, delimiter = self._dialect.block(block)
        lines = check(cut, delimiter if self._dialect.quotes else None)
        wrong: list[int] = []
        columns = self._columns(lines, delimiter, names, wrong)
        numbers = np.delete(lines.numbers, wrong)
        part, reasons = self._converter.part(columns)
        malformed = [
            *lines.malformed,
            *(Malformed(int(lines.numbers[row]), WIDTH) for row in wrong),
            *(
                Malformed(int(numbers[row]), reason)
                for row, reason in sorted(reasons.items())
            ),
        ]
        return Parsed(part, lines.records, malformed)

    def _columns(
        self,
        lines: Checked,
        delimiter: bytes,
        names: list[str],
        wrong: list[int],
    ) -> dict[str, typing.Any]:
        """Columns of all rows but those of a wrong width, which are noted."""
        used = self._schema.used
        types = {
            field.name: pa.binary() if field.bag else type_of(field)
            for field in used
        }
        if lines.data:
            parse = functools.partial(
                self._table, lines, delimiter, names, wrong=wrong
            )
            try:
                table = parse(types=_judged(lines.data, delimiter, types))
            except pa.ArrowInvalid:
                # Some numbers are none: `Converter` finds them.
                wrong.clear()
                texts = dict.fromkeys(types, pa.binary())
                table = parse(types=texts)
        else:
            table = pa.schema(list(types.items())).empty_table()
        return {
            field.name: table.column(field.name).combine_chunks()
            for field in used
        }

    def _table(
        self,
        lines: Checked,
        delimiter: bytes,
        names: list[str],
        types: dict[str, typing.Any],
        wrong: list[int],
    ) -> typing.Any:
        def leave_out(row: typing.Any) -> str:
            wrong.append(row.number - 1)
            return "skip"

        used = [field for field in self._schema.used if not field.bag]
        # A string that is missing is the text "" in any case.
        has_null_strings = any(
            field.values is not None
            or (field.dtype == "string" and bool(field.default))
            for field in used
        ) or list(self._schema.missing) != [""]
        has_null_strings |= pa.binary() in [
            types[field.name] for field in used if field.dtype != "string"
        ]
        return arrow_csv.read_csv(
            pa.BufferReader(lines.data),
            arrow_csv.ReadOptions(
                use_threads=False,
                block_size=len(lines.data) + 1,
                column_names=names,
            ),
            arrow_csv.ParseOptions(
                delimiter=delimiter.decode(),
                quote_char='"' if self._dialect.quotes else False,
                double_quote=self._dialect.quotes,
                newlines_in_values=lines.has_breaks,
                invalid_row_handler=leave_out,
            ),
            arrow_csv.ConvertOptions(
                check_utf8=False,
                column_types=types,
                include_columns=list(types),
                include_missing_columns=True,
                null_values=list(self._schema.missing),
                strings_can_be_null=has_null_strings,
                decimal_point=self._dialect.decimal,
            ),
        )


def _told_apart(names: list[str]) -> list[str]:
    """Names of which repeated ones are numbered as pandas does: x, x.1, x.2."""
    taken, counts = set(names), collections.Counter[str]()
    found = []
    for name in names:
        new = name
        if counts[name]:
            while (new := f"{name}.{counts[name]}") in taken:
                counts[name] += 1
        counts[name] += 1
        taken.add(new)
        found.append(new)
    return found


def _judged(
    data: bytes, delimiter: bytes, types: dict[str, typing.Any]
) -> dict[str, typing.Any]:
    """The types, with texts for integers that `Converter` has to judge.

    pyarrow reads hexadecimal ones, too.
    """
    # Single bytes are found ten times faster than two.
    if b"x" not in data and b"X" not in data:
        return types
    # At the begin of a field.
    begin = rb"(?:\A|[\n\"%b])[ \t]*0[xX]" % re.escape(delimiter)
    if not re.search(begin, data):
        return types
    return {
        name: pa.binary() if pa.types.is_integer(one) else one
        for name, one in types.items()
    }


def _is_quoted(line: bytes) -> bool:
    """Whether all line breaks are within quotes."""
    quotes = 0
    [*parts, _] = line.split(b"\n")
    for part in parts:
        quotes += part.count(b'"')
        if quotes % 2 == 0:
            return False
    return True
