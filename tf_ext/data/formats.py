# SPDX-License-Identifier: Apache-2.0
"""The formats of files and of messages, and what reads them.

A new format is a line in `_READERS`, or in `_MESSAGES`, and a class with
`blocks`, or `messages`, or both.
"""

import typing
from collections.abc import Callable, Iterator

from tf_ext._checks import refuse
from tf_ext.data.avro_files import Avro, AvroFiles, AvroMessages
from tf_ext.data.csv_files import CsvFiles
from tf_ext.data.dialect import Csv
from tf_ext.data.field import is_list
from tf_ext.data.json_files import JsonFiles
from tf_ext.data.parquet_files import ParquetFiles
from tf_ext.data.parts import Parsed
from tf_ext.data.protobuf_messages import Protobuf, ProtobufMessages
from tf_ext.data.record_files import RecordFiles
from tf_ext.data.schema import Schema

_DIALECTS = {"csv": Csv(), "tsv": Csv("\t", quotes=False)}
_READERS: dict[str, Callable[[Schema, int], "Reader"]] = {
    "jsonl": lambda schema, threads: JsonFiles(schema),
    "tfrecord": lambda schema, threads: RecordFiles(schema),
    "parquet": ParquetFiles,
    "avro": AvroFiles,
}
_MESSAGES: dict[type, Callable[[Schema, typing.Any], "MessageReader"]] = {
    Avro: AvroMessages,
    Protobuf: ProtobufMessages,
}
Format: typing.TypeAlias = str | Csv | Avro | Protobuf


class Reader(typing.Protocol):
    """Reads what a dataset is made of."""

    def blocks(self, file: str) -> Iterator[Callable[[], Parsed]]:
        """Yields functions that parse the blocks of a file, in any thread."""


@typing.runtime_checkable
class MessageReader(typing.Protocol):
    """Reads the values of messages."""

    def messages(self, values: list[bytes]) -> Parsed:
        """Parses values, none of them empty; their numbers begin with 1."""


def message_reader_of(schema: Schema, format: typing.Any) -> MessageReader:
    """What reads messages of a format; the arguments are those of `stream`.

    Raises:
      ValueError: as of `reader_of`, or there are no such messages.
    """
    if type(format) in _MESSAGES:
        return _MESSAGES[type(format)](schema, format)
    reader = reader_of(schema, format, False, 1)
    if not isinstance(reader, MessageReader):
        allowed = (
            "one of csv, tsv, jsonl, tfrecord, a tf_ext.data.Csv, a "
            "tf_ext.data.Avro or a tf_ext.data.Protobuf"
        )
        refuse("stream", "format", allowed, format)
    return reader


def reader_of(
    schema: Schema, format: typing.Any, header: object, threads: int
) -> Reader:
    """What reads files of a format; the arguments are those of `read`.

    Raises:
      ValueError: there is no such format, or the others do not fit it.
    """
    dialect = format
    if not isinstance(format, Csv):
        names = [*_DIALECTS, *_READERS]
        if format not in names:
            allowed = f"one of {', '.join(names)}, or a tf_ext.data.Csv"
            refuse("read", "format", allowed, format)
        dialect = _DIALECTS.get(format)
    if not isinstance(header, bool):
        refuse("read", "header", "True or False", header)
    if dialect is None:
        if header:
            refuse("read", "header", f"False for {format}", header)
        return _READERS[format](schema, threads)
    for field in schema.used:
        if is_list(field):
            allowed = f"one in which bags have a `separator` for {format}"
            refuse("read", "schema", allowed, field)
    optional = [field.optional for field in schema.fields]
    if not header and optional != sorted(optional):
        allowed = "one whose optional fields are the last ones without a header"
        refuse("read", "schema", allowed, [f.name for f in schema.fields])
    return CsvFiles(schema, dialect, header)
