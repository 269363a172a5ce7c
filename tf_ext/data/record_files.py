# SPDX-License-Identifier: Apache-2.0
"""TFRecord files of tf.train.Example."""

import functools
import typing
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_ext import _core
from tf_ext.data import lines
from tf_ext.data.arrow import WRONG_TYPE, Converter
from tf_ext.data.errors import DamagedFileError, Malformed
from tf_ext.data.field import Field, is_list, is_text
from tf_ext.data.parts import Parsed
from tf_ext.data.schema import Schema

try:
    import pyarrow as pa
except ImportError:
    pa = None

# A record is held in memory; a longer one is no sample.
MAX_RECORD_BYTES = 64 << 20
CHECKSUM = "wrong checksum"
NO_EXAMPLE = "no tf.train.Example"
SEVERAL = "several values"
# Of each ExampleError of cc/core/records/example_columns.h.
_REASONS = (None, CHECKSUM, NO_EXAMPLE, WRONG_TYPE, SEVERAL)
_HEADER_BYTES = 12


class Records(typing.NamedTuple):
    """A block of a file: the arguments of `RecordFiles.parse`."""

    data: bytes
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    first: int


class RecordFiles:
    """Reads TFRecord files, which may be compressed by gzip."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._converter = Converter(schema)
        self._fields = [
            (field.name, _kind_of(field), is_list(field))
            for field in schema.used
        ]

    def blocks(self, file: str) -> Iterator[Callable[[], Parsed]]:
        """Yields functions that parse the blocks of a file, in any thread."""
        for block in read_records(file):
            yield functools.partial(self.parse, *block)

    def messages(self, values: list[bytes]) -> Parsed:
        """Parses values, each of which is a serialized tf.train.Example."""
        texts = [one + masked_crc(one).to_bytes(4, "little") for one in values]
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        ends = np.cumsum(lengths) - 4
        return self.parse(b"".join(texts), ends - lengths + 4, ends, 1)

    def parse(
        self,
        data: bytes,
        begins: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        first: int,
    ) -> Parsed:
        """Parses serialized tf.train.Examples.

        Args:
          data: bytes, in which the checksum of each follows it.
          begins: int64, where each begins.
          ends: int64, where each ends.
          first: int, the number of the first one.
        """
        columns, codes = _core.decode_examples(data, begins, ends, self._fields)
        bad = np.flatnonzero(codes)
        part, reasons = self._converter.part(
            {
                field.name: _to_arrow(field, *column)
                for field, column in zip(
                    self._schema.used, columns, strict=True
                )
            }
        )
        numbers = np.delete(np.arange(len(begins)), bad) + first
        malformed = [
            Malformed(int(row) + first, _REASONS[codes[row]] or "")
            for row in bad
        ]
        malformed += [
            Malformed(int(numbers[row]), reason)
            for row, reason in reasons.items()
        ]
        return Parsed(part, len(begins), malformed, "record")


def read_records(file: str) -> Iterator[Records]:
    """Yields the blocks of a file, which may be compressed by gzip.

    Raises:
      DamagedFileError: the rest of the file cannot be read.
    """
    rest, place, first, wanted = b"", 0, 1, _HEADER_BYTES
    waiting: list[bytes] = []
    size = 0
    for chunk in _chunks(file):
        waiting.append(chunk)
        size += len(chunk)
        if size < wanted:
            continue
        data = b"".join(waiting)
        begins, ends, used, damaged, wanted = _core.split_records(data)
        if len(begins):
            yield Records(data, begins, ends, first)
        place += used
        first += len(begins)
        if damaged or wanted > MAX_RECORD_BYTES:
            raise DamagedFileError(
                f"{file} is damaged at byte {place}: "
                + (
                    "the length of record %d does not have its checksum"
                    if damaged
                    else "record %d is above 64 MiB"
                )
                % first
                + ". The number of lost records is unknown: repair the "
                "file or leave it out."
            )
        wanted = wanted or _HEADER_BYTES
        rest = data[used:]
        waiting, size = [rest], len(rest)
    if size:
        raise DamagedFileError(
            f"{file} ends within record {first}, which begins at byte "
            f"{place}: it was not written to its end. Repair the file or "
            "leave it out."
        )


def masked_crc(value: bytes) -> int:
    """The checksum of a record of TFRecord files."""
    crc = _core.crc32c(value)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _kind_of(field: Field) -> str:
    if is_text(field):
        return "string"
    return "float32" if field.dtype == "float32" else "int64"


def _chunks(file: str) -> Iterator[bytes]:
    with tf.io.gfile.GFile(file, "rb") as raw:
        begin = raw.read(_HEADER_BYTES)
        raw.seek(0)
        # A record may have a length whose bytes are those of gzip.
        is_record = (
            len(begin) == _HEADER_BYTES and not (_core.split_records(begin)[3])
        )
        if begin.startswith(lines.GZIP) and not is_record:
            yield from lines.unzipped(file, raw)
        else:
            yield from lines.read_chunks(raw)


def _to_arrow(
    field: Field,
    values: typing.Any,
    rows: npt.NDArray[typing.Any],
) -> typing.Any:
    """An array of Arrow: of lists, or in which values that miss are null.

    Args:
      field: Field. A uint64 has the bits of an int64 in files.
      values: numbers, or text and where each value begins.
      rows: int32 row splits of lists, or uint8, whether there is a value.
    """
    present = None
    if not is_list(field) and not rows.all():
        present = pa.py_buffer(np.packbits(rows, bitorder="little"))
    if is_text(field):
        text, ends = values
        buffers = [present, pa.py_buffer(ends), pa.py_buffer(text)]
        array = pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)
    else:
        kind = "uint64" if field.dtype == "uint64" else _kind_of(field)
        array = pa.Array.from_buffers(
            pa.type_for_alias(kind),
            len(values),
            [present, pa.py_buffer(values)],
        )
    if is_list(field):
        return pa.ListArray.from_arrays(pa.array(rows), array)
    return array
