# SPDX-License-Identifier: Apache-2.0
"""Parquet files."""

import contextlib
import functools
import io
import itertools
import os
import typing
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from tf_ext.data.arrow import Converter
from tf_ext.data.columns import (
    column_at,
    complaint,
    decoded_bytes,
    plain,
    text_lengths,
)
from tf_ext.data.errors import DamagedFileError, Malformed
from tf_ext.data.field import Field, is_list
from tf_ext.data.parts import Parsed
from tf_ext.data.paths import type_at
from tf_ext.data.schema import Schema

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as parquet
except ImportError:
    pa = pc = parquet = None

# At most, of a block. Row groups may have a million. Larger blocks take less
# time: each has the whole dictionaries of its columns.
BLOCK_ROWS = 65536
_BLOCK_VALUES = 2 << 20  # of all columns, if each has one in a row
# About, of a column in a block. A dictionary, and texts that begin as the one
# before, can make gigabytes of a file of some hundred bytes.
_BLOCK_BYTES = 16 << 20
# Of a block of many columns, or of texts that begin as the one before.
_LEAST_ROWS = 256
_VALUE_BYTES = 16  # about, of a number in a list
# At most, of a value in a column of texts that repeat: of its index, and of its
# share of the dictionary.
_REPEATED_BYTES = 4
_ADVICE = (
    "The number of lost records is unknown: repair the file or leave it out."
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
                    f"or absent ({_short(error)}). Repair the file or leave it "
                    "out."
                ) from error
            problem = complaint(file, schema, self._schema.used)
            if problem:
                raise DamagedFileError(problem)
            if sum(groups) != metadata.num_rows or min(groups, default=0) < 0:
                raise DamagedFileError(
                    f"{file} is damaged: its footer has {metadata.num_rows} "
                    f"rows, but its row groups have {groups[:20]}. {_ADVICE}"
                )
            first = 1
            for group, rows in enumerate(groups):
                for batch in self._batches(
                    file, source, opened, group, rows, first
                ):
                    yield functools.partial(self._parse, file, batch, first)
                    first += batch.num_rows

    def _batches(
        self,
        file: str,
        source: typing.Any,
        opened: typing.Any,
        group: int,
        rows: int,
        first: int,
    ) -> Iterator[typing.Any]:
        read = 0
        try:
            opened, block_rows = self._limited(opened, source, group)
        except _errors() as error:
            raise DamagedFileError(
                f"{file} is damaged in row group {group}: {_short(error)}. "
                f"{_ADVICE}"
            ) from error
        batches = opened.iter_batches(
            block_rows,
            row_groups=[group],
            columns=[field.name for field in self._present(opened)],
            use_threads=self._threads > 1,
        )
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
            for piece in self._pieces(batch):
                read += piece.num_rows
                yield piece
        if read != rows:
            raise DamagedFileError(
                f"{file} is damaged in row group {group}, after row "
                f"{first + read - 1}: it has {read} rows instead of {rows}. "
                f"{_ADVICE}"
            )

    def _limited(
        self, opened: typing.Any, source: typing.Any, group: int
    ) -> tuple[typing.Any, int]:
        """How to read a row group in blocks of about _BLOCK_BYTES at most.

        Texts that repeat are read as indices into their dictionary, and so are
        texts that could be too long otherwise. Where there are many different
        texts, that would be slower.

        Returns:
          `(file, rows of a block)`.

        Raises:
          ValueError: no block is small enough.
        """
        metadata = opened.metadata.row_group(group)
        rows = max(1, metadata.num_rows)
        columns = max(1, len(self._schema.used))
        block_rows = max(_BLOCK_VALUES // columns, _LEAST_ROWS)
        block_rows = min(BLOCK_ROWS, block_rows, rows)
        chunks = self._limiting(opened)
        if not chunks:
            return opened, _even(rows, block_rows)
        _check_chunks(opened, group, [path for _, _, path, _ in chunks])
        repeated, texts = [], []
        for index, field, path, is_text in chunks:
            chunk = metadata.column(index)
            name = field.name
            values = block_rows
            if is_list(field):
                values = chunk.num_values
                values_of_row = max(1.0, values / rows)
                most = int(_BLOCK_BYTES / _VALUE_BYTES / values_of_row)
                if not most:
                    raise ValueError(
                        f"the lists of the column {name!r} have "
                        f"{values_of_row:,.0f} values on average"
                    )
                block_rows = min(block_rows, most)
            size = chunk.total_uncompressed_size
            if not is_text:
                continue
            if "DELTA_BYTE_ARRAY" in chunk.encodings:
                # Each value may be as long as all of the chunk.
                most = max(_BLOCK_BYTES // max(1, size), _LEAST_ROWS)
                block_rows = min(block_rows, most)
            elif size <= _REPEATED_BYTES * chunk.num_values:
                repeated.append(path)
            elif values * size > _BLOCK_BYTES:
                # Whatever the encodings are said to be.
                texts.append((name, path, values))
        indices = [*repeated, *self._long(opened, source, group, texts)]
        if indices:
            opened = _as_indices(opened, source, indices)
        return opened, _even(rows, block_rows)

    def _long(
        self,
        opened: typing.Any,
        source: typing.Any,
        group: int,
        texts: list[tuple[str, str, int]],
    ) -> list[str]:
        """The paths of the columns that have a text which could be too long.

        Args:
          opened: ParquetFile.
          source: what it reads.
          group: int, the row group.
          texts: list of `(field, path, values of a block)`.
        """
        if not texts:
            return []
        of_texts = _as_indices(opened, source, [path for _, path, _ in texts])
        names = [name for name, *_ in texts]
        batches = of_texts.iter_batches(1, row_groups=[group], columns=names)
        found = []
        for first in itertools.islice(batches, 1):
            for name, path, values in texts:
                lengths = text_lengths(column_at(first, name))
                if values * int(lengths.max(initial=0)) > _BLOCK_BYTES:
                    found.append(path)
        return found

    def _limiting(
        self, opened: typing.Any
    ) -> list[tuple[int, Field, str, bool]]:
        """The columns of texts and lists, which may be of any length.

        Returns:
          List of `(index, field, path, whether it is text)`.
        """
        used = self._present(opened)
        found = []
        for index in range(len(opened.schema)):
            column = opened.schema.column(index)
            path = column.path
            is_text = column.physical_type == "BYTE_ARRAY"
            found += [
                (index, field, path, is_text)
                for field in used
                if f"{path}.".startswith(f"{field.name}.")
                and (is_text or is_list(field))
            ][:1]
        return found

    def _pieces(self, batch: typing.Any) -> Iterator[typing.Any]:
        """Rows of a batch whose texts take about _BLOCK_BYTES when decoded."""
        sizes = [
            decoded_bytes(column_at(batch, field.name), _BLOCK_BYTES)
            for field in self._schema.used
        ]
        large = [size for size in sizes if size is not None]
        if not large:
            yield batch
            return
        ends = np.cumsum(np.max(large, axis=0)) // _BLOCK_BYTES
        cuts = [0, *np.flatnonzero(np.diff(ends)) + 1, batch.num_rows]
        for begin, end in itertools.pairwise(cuts):
            yield batch.slice(begin, end - begin)

    def _present(self, opened: typing.Any) -> list[Field]:
        """The fields that a file has."""
        schema = opened.schema_arrow
        return [
            field
            for field in self._schema.used
            if type_at(schema, field.name) is not None
        ]

    def _parse(self, file: str, batch: typing.Any, first: int) -> Parsed:
        try:
            columns = {
                field.name: plain(
                    field, column_at(batch, field.name), self._schema.missing
                )
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


def _even(rows: int, most: int) -> int:
    """The rows of each of as few blocks as can have at most so many."""
    blocks = -(-rows // most)
    return -(-rows // blocks)


def _as_indices(
    opened: typing.Any, source: typing.Any, paths: list[str]
) -> typing.Any:
    """A ParquetFile whose columns of texts are read as indices."""
    return parquet.ParquetFile(
        source,
        metadata=opened.metadata,
        page_checksum_verification=True,
        read_dictionary=paths,
    )


def _check_chunks(opened: typing.Any, group: int, paths: list[str]) -> None:
    """Raises an error if the footer is wrong about chunks of a row group.

    `metadata.column` ends the process then. What reads a chunk checks the same,
    and returns an error: it is let do so, up to the first byte.

    Args:
      opened: ParquetFile.
      group: int.
      paths: list of strings, of columns.
    """
    probe = parquet.ParquetFile(
        pa.PythonFile(_Unread(), "r"), metadata=opened.metadata, pre_buffer=True
    )
    with contextlib.suppress(_BeginsToReadError):
        next(probe.iter_batches(1, row_groups=[group], columns=paths), None)


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


class _BeginsToReadError(Exception):
    """The footer is right about what is to be read."""


class _Unread(io.RawIOBase):
    """A file of any size, which is not to be read."""

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.tell()

    def tell(self) -> int:
        return 2**63 - 1

    def read(self, size: int = -1) -> bytes:
        raise _BeginsToReadError


def _errors() -> tuple[type[Exception], ...]:
    # What a file is damaged by decides which of them pyarrow raises.
    return (
        *(pa.ArrowException, OSError, ValueError, OverflowError, MemoryError),
        *(KeyError, TypeError, tf.errors.OpError),
    )


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300].rstrip(".")
