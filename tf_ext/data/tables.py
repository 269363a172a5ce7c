# SPDX-License-Identifier: Apache-2.0
"""Tables in memory: frames of pandas and polars, tables of Apache Arrow.

Any object with a method of Arrow's PyCapsule interface is one. Its values are
not copied but where batches are made, unless it has them in another layout than
Arrow, as pandas has texts.
"""

import functools
import typing
from collections.abc import Callable, Iterable, Iterator

from tf_ext._checks import refuse
from tf_ext.data import paths
from tf_ext.data.arrow import Converter
from tf_ext.data.columns import column_at, complaint, plain
from tf_ext.data.errors import DamagedFileError, Malformed
from tf_ext.data.parts import Parsed
from tf_ext.data.schema import Schema

try:
    import pyarrow as pa
except ImportError:
    pa = None

_BLOCK_ROWS = 16384
# Shorter ones on average are copied into one.
_LEAST_ROWS = 1024


def is_table(source: object) -> bool:
    """Whether an object is a table in memory."""
    return hasattr(source, "__arrow_c_stream__") or hasattr(
        source, "__arrow_c_array__"
    )


class Tables:
    """Reads tables in memory, which are "table 0", "table 1", ...

    Args:
      tables: list of what `is_table` is true of.
      schema: Schema.
      shard: `(index, count)`: which part of the rows of each table.

    Raises:
      ValueError: a table lacks a field of the schema, or has it in another
        type.
    """

    def __init__(
        self,
        tables: Iterable[typing.Any],
        schema: Schema,
        shard: tuple[int, int],
    ) -> None:
        self._schema = schema
        self._converter = Converter(schema)
        self._tables: dict[str, typing.Any] = {}
        self._firsts: dict[str, int] = {}
        # A frame of pandas copies what it shares with others, once it is
        # changed, for as long as these are there.
        self._frames: list[typing.Any] = []
        index, count = shard
        for number, source in enumerate(tables):
            name = f"table {number}"
            if _is_pandas(source):
                source = _used_columns(source, schema)
                self._frames.append(source)
            table = _to_arrow(name, source, schema)
            begin = table.num_rows * index // count
            end = table.num_rows * (index + 1) // count
            self._tables[name] = table.slice(begin, end - begin)
            self._firsts[name] = begin + 1

    @property
    def names(self) -> list[str]:
        """The names of the tables."""
        return list(self._tables)

    def blocks(self, file: str) -> Iterator[Callable[[], Parsed]]:
        """Yields functions that convert the blocks of a table."""
        first = self._firsts[file]
        for batch in self._tables[file].to_batches(_BLOCK_ROWS):
            yield functools.partial(self._parse, file, batch, first)
            first += batch.num_rows

    def _parse(self, name: str, batch: typing.Any, first: int) -> Parsed:
        missing = self._schema.missing
        try:
            columns = {
                field.name: plain(field, column_at(batch, field.name), missing)
                for field in self._schema.used
            }
        except (pa.ArrowException, ValueError) as error:
            last = first + batch.num_rows - 1
            raise DamagedFileError(
                f"Rows {first} to {last} of {name} cannot be read: {error}"
            ) from error
        part, reasons = self._converter.part(columns)
        malformed = [
            Malformed(first + row, reason) for row, reason in reasons.items()
        ]
        return Parsed(part, batch.num_rows, malformed, "row")


def _to_arrow(name: str, source: typing.Any, schema: Schema) -> typing.Any:
    """The columns that the schema has, as a table of Arrow."""
    roots = _roots(schema)
    try:
        if _is_pandas(source):
            table = pa.Table.from_pandas(source, preserve_index=False)
        elif hasattr(source, "__arrow_c_stream__"):
            table = pa.table(source)
        else:
            table = pa.Table.from_batches([pa.record_batch(source)])
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        allowed = f"tables that Arrow can hold, but {name} is not: {reason}"
        refuse("read", "files", allowed, type(source))
    problem = complaint(name, table.schema, schema.used)
    if problem:
        raise ValueError(problem)
    table = table.select([one for one in table.column_names if one in roots])
    if table.num_rows < _LEAST_ROWS * len(table.to_batches()):
        table = table.combine_chunks()
    return table


def _used_columns(frame: typing.Any, schema: Schema) -> typing.Any:
    """Those of a frame of pandas, of whose types Arrow need not have others."""
    return frame[[one for one in _roots(schema) if one in frame.columns]]


def _roots(schema: Schema) -> list[str]:
    """The names of the columns that the fields of a schema may be in."""
    roots = [one for field in schema.used for one in paths.roots_of(field.name)]
    return list(dict.fromkeys(roots))


def _is_pandas(source: object) -> bool:
    # pandas is not imported: who has no frame need not have it.
    return type(source).__module__.partition(".")[0] == "pandas"
