"""Parquet files."""

import contextlib
import functools
import io
import os
import typing
from collections.abc import Callable, Iterator

import tensorflow as tf

from tf_ext.data.arrow import Converter
from tf_ext.data.errors import DamagedFileError, Malformed
from tf_ext.data.parts import Parsed
from tf_ext.data.schema import Field, Schema, is_list, is_text

try:
    import pyarrow as pa
    import pyarrow.parquet as parquet
except ImportError:
    pa = parquet = None

# Of a block. Row groups may have a million.
BLOCK_ROWS = 16384
_ADVICE = (
    "How many records are lost is not known: mend the file or leave it out."
)


class ParquetFiles:
    """Reads Parquet files.

    Args:
      schema: Schema.
      threads: int; above 1, columns are decoded at the same time.
    """

    def __init__(self, schema: Schema, threads: int) -> None:
        self._schema = schema
        self._threads = threads
        self._converter = Converter(schema)

    def blocks(self, file: str) -> Iterator[Callable[[], Parsed]]:
        """Yields functions that convert the blocks of a file, in any thread."""
        with _source(file) as source:
            try:
                opened = parquet.ParquetFile(
                    source, page_checksum_verification=True
                )
                schema, metadata = opened.schema_arrow, opened.metadata
                groups = [
                    metadata.row_group(group).num_rows
                    for group in range(metadata.num_row_groups)
                ]
            except _errors() as error:
                raise DamagedFileError(
                    f"{file} cannot be read as Parquet: its footer is damaged "
                    f"or absent ({_short(error)}). Mend the file or leave it "
                    "out."
                ) from error
            self._check(file, schema)
            if sum(groups) != metadata.num_rows or min(groups, default=0) < 0:
                raise DamagedFileError(
                    f"{file} is damaged: its footer has {metadata.num_rows} "
                    f"rows, but its row groups have {groups[:20]}. {_ADVICE}"
                )
            first = 1
            for group, rows in enumerate(groups):
                for batch in self._batches(file, opened, group, rows, first):
                    yield functools.partial(self._parse, file, batch, first)
                    first += batch.num_rows

    def _batches(
        self, file: str, opened: typing.Any, group: int, rows: int, first: int
    ) -> Iterator[typing.Any]:
        batches = opened.iter_batches(
            BLOCK_ROWS,
            row_groups=[group],
            columns=[field.name for field in self._schema.used],
            use_threads=self._threads > 1,
        )
        read = 0
        while True:
            try:
                batch = next(batches, None)
            except _errors() as error:
                raise DamagedFileError(
                    f"{file} is damaged in row group {group}, after row "
                    f"{first + read - 1}: {_short(error)}. {_ADVICE}"
                ) from error
            if batch is None:
                break
            read += batch.num_rows
            yield batch
        if read != rows:
            raise DamagedFileError(
                f"{file} is damaged in row group {group}, after row "
                f"{first + read - 1}: it has {read} rows instead of {rows}. "
                f"{_ADVICE}"
            )

    def _check(self, file: str, schema: typing.Any) -> None:
        """Raises DamagedFileError if the file lacks what the schema wants."""
        used = self._schema.used
        wrong = [f.name for f in used if schema.names.count(f.name) != 1]
        if wrong:
            raise DamagedFileError(
                f"{file} must have each field of the schema once as a column, "
                f"but not so {wrong}. Its columns are {schema.names[:100]}."
            )
        for field in used:
            found = schema.field(field.name).type
            if not _fits(field, found):
                raise DamagedFileError(
                    f"The column {field.name!r} of {file} must be "
                    f"{_wanted(field)}, but is {found}. Change the schema, or "
                    "write the file with another type."
                )

    def _parse(self, file: str, batch: typing.Any, first: int) -> Parsed:
        try:
            columns = {
                field.name: _plain(batch.column(field.name))
                for field in self._schema.used
            }
        except _errors() as error:
            last = first + batch.num_rows - 1
            raise DamagedFileError(
                f"{file} is damaged in rows {first} to {last}: "
                f"{_short(error)}. {_ADVICE}"
            ) from error
        part, reasons = self._converter.part(columns)
        malformed = [
            Malformed(first + row, reason) for row, reason in reasons.items()
        ]
        return Parsed(part, batch.num_rows, malformed, "row")


@contextlib.contextmanager
def _source(file: str) -> Iterator[typing.Any]:
    """What pyarrow reads a file by."""
    if os.path.isfile(file):
        # A fifth less CPU time than by the copies of bytes below.
        with pa.OSFile(file, "rb") as source:
            yield source
        return
    with tf.io.gfile.GFile(file, "rb") as raw:
        yield pa.PythonFile(_Readable(raw), "r")


class _Readable(io.RawIOBase):
    """A file of TensorFlow as one of Python."""

    def __init__(self, file: typing.Any) -> None:
        super().__init__()
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()


def _errors() -> tuple[type[Exception], ...]:
    # What a file is damaged by decides which of them pyarrow raises.
    return (
        *(pa.ArrowException, OSError, ValueError, OverflowError, MemoryError),
        *(KeyError, TypeError, tf.errors.OpError),
    )


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300].rstrip(".")


def _is_text(type_: typing.Any) -> bool:
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return any(
        is_one(type_)
        for is_one in (
            pa.types.is_string,
            pa.types.is_binary,
            pa.types.is_large_string,
            pa.types.is_large_binary,
        )
    )


def _is_list(type_: typing.Any) -> bool:
    return (
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
    )


def _fits(field: Field, type_: typing.Any) -> bool:
    if is_list(field):
        if not _is_list(type_):
            return False
        type_ = type_.value_type
    if is_text(field):
        return _is_text(type_)
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return True
    return field.dtype == "float32" and (
        pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    )


def _wanted(field: Field) -> str:
    numbers = "integers or booleans"
    if field.dtype == "float32":
        numbers = "numbers or booleans"
    if field.separator is not None:
        return "text, as the field has a separator"
    wanted = "text" if is_text(field) else numbers
    return f"lists of {wanted}" if field.bag else wanted


def _plain(column: typing.Any) -> typing.Any:
    """A column of no more than the types that `Converter` takes."""
    if _is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
        if pa.types.is_dictionary(column.type.value_type):
            column = column.cast(pa.list_(column.type.value_type.value_type))
    elif pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column
