# SPDX-License-Identifier: Apache-2.0
"""Records of Apache Avro: object container files, and messages."""

import copy
import dataclasses
import functools
import io
import itertools
import json
import logging
import math
import struct
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_ext._checks import refuse
from tf_ext.data.arrow import Converter, require_pyarrow
from tf_ext.data.avro_types import arrow_schema
from tf_ext.data.columns import complaint, plain
from tf_ext.data.errors import DamagedFileError, Malformed, SourceError
from tf_ext.data.isolation import isolate
from tf_ext.data.parts import Parsed, Part, concat
from tf_ext.data.paths import steps_of, type_at
from tf_ext.data.schema import Schema

try:
    import fastavro
    import pyarrow as pa
except ImportError:
    fastavro = pa = None

_LOG = logging.getLogger("tf_ext")
NO_AVRO = "no Avro record"
NO_HEADER = "no schema id"
OTHER_SCHEMA = "other schema"
# In front of each message, with the schema's id, where there is a registry.
_HEADER = struct.Struct(">bI")
# After which a registry is asked again for a schema that it did not have: a
# copy of the registry may learn of a new one later.
_ABSENT_SECONDS = 10.0
_ADVICE = (
    "The number of lost records is unknown: repair the file or leave it out."
)
# What bytes are damaged by decides which of them fastavro raises.
_ERRORS = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, TypeError),
    *(ValueError, struct.error),
)
_AvroSchema: typing.TypeAlias = typing.Any
_Record: typing.TypeAlias = dict[str, typing.Any]


@dataclasses.dataclass(frozen=True)
class Avro:
    """Messages of Apache Avro, as a `format` of `tf_ext.data.stream`.

    It needs fastavro: `pip install 'tf-ext[avro]'`, and for a registry
    `pip install 'tf-ext[registry]'`.

    Attributes:
      schema: dict, or a text of JSON, the schema that all messages were written
        with; each is a record and nothing else.
      registry: string, the URL of a schema registry, or a dict of settings of
        confluent_kafka's SchemaRegistryClient, such as
        `"basic.auth.user.info"`. Each message begins with a zero byte and the
        id of its schema, four bytes, as Confluent's serializers write it. A
        registry is asked again, after ten seconds, for one that it has not.

    Example:
      >>> avro = tf_ext.data.Avro({
      ...     "type": "record", "name": "Click", "fields": [
      ...         {"name": "user", "type": "string"},
      ...         {"name": "click", "type": "float"}]})
      >>> avro.registry is None
      True
    """

    schema: Mapping[str, typing.Any] | str | None = None
    registry: str | Mapping[str, typing.Any] | None = None

    def __post_init__(self) -> None:
        if (self.schema is None) == (self.registry is None):
            allowed = "given, unless `registry` is, but not both"
            refuse("Avro", "schema", allowed, self.schema)
        if self.registry is not None and not (
            (isinstance(self.registry, str) and self.registry)
            or (isinstance(self.registry, Mapping) and "url" in self.registry)
        ):
            allowed = 'a URL, or a dict of settings with "url"'
            refuse("Avro", "registry", allowed, self.registry)
        if self.schema is not None:
            if not isinstance(self.schema, str | Mapping):
                allowed = "a dict or a text of JSON"
                refuse("Avro", "schema", allowed, self.schema)
            _require("tf_ext.data.Avro")
            try:
                _Decoder.of(self.schema, {})
            except ValueError as error:
                allowed = f"a schema of records, but {error}"
                refuse("Avro", "schema", allowed, self.schema)


def _require(what: str) -> None:
    require_pyarrow(what)
    if fastavro is None:
        raise ImportError(f"{what} needs fastavro: pip install 'tf-ext[avro]'")


class _Decoder:
    """Decodes records of one schema.

    Args:
      schema: parsed by fastavro, without the logical types that Arrow has.
      types: schema of Arrow.
    """

    def __init__(self, schema: _AvroSchema, types: typing.Any) -> None:
        self.schema = schema
        self.types = types

    @classmethod
    def of(
        cls, schema: _AvroSchema, named: dict[str, typing.Any]
    ) -> typing.Self:
        """From a schema, as JSON or its text, and named types that it uses.

        Raises:
          ValueError: it is none that can be read.
        """
        try:
            if isinstance(schema, str):
                schema = json.loads(schema)
            plain_named = _without_logical(named)
            parsed = fastavro.parse_schema(copy.deepcopy(schema), named)
            decoded = fastavro.parse_schema(
                _without_logical(schema), plain_named
            )
        except (*_ERRORS, fastavro.schema.SchemaParseException) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return cls(decoded, arrow_schema(parsed, named))

    def decode(self, data: io.BytesIO) -> _Record:
        """The record that comes next."""
        found: typing.Any = fastavro.schemaless_reader(data, self.schema)
        return found

    def part(
        self, records: Sequence[_Record], converter: Converter, schema: Schema
    ) -> tuple[Part, dict[int, str]]:
        """The well-formed records, and why others are malformed."""
        tables, bad = isolate(
            len(records),
            lambda begin, end: self._table(records[begin:end], schema),
            lambda _: self._table([], schema),
            (pa.ArrowException, *_ERRORS),
        )
        whole = pa.concat_tables(tables)
        part, reasons = converter.part(
            {
                field.name: whole[field.name].combine_chunks()
                for field in schema.used
            }
        )
        kept = np.delete(np.arange(len(records)), bad)
        found = {int(kept[row]): reason for row, reason in reasons.items()}
        return part, found | dict.fromkeys(bad, NO_AVRO)

    def _table(self, records: Sequence[_Record], schema: Schema) -> typing.Any:
        columns = {}
        for field in schema.used:
            type_ = type_at(self.types, field.name)
            if type_ is None:
                column = pa.nulls(len(records))
            else:
                values = [_value_at(one, field.name) for one in records]
                column = pa.array(values, type_)
            columns[field.name] = plain(field, column, schema.missing)
        return pa.table(columns)


class AvroFiles:
    """Reads object container files, which have their schema."""

    def __init__(self, schema: Schema, threads: int) -> None:
        del threads
        _require("tf_ext.data.read(format='avro')")
        self._schema = schema
        self._converter = Converter(schema)

    def blocks(self, file: str) -> Iterator[Callable[[], Parsed]]:
        """Yields functions that parse the blocks of a file, in any thread."""
        with tf.io.gfile.GFile(file, "rb") as raw:
            source: typing.Any = _Bounded(raw)
            try:
                blocks = fastavro.block_reader(source)
                decoder = _Decoder.of(_own(blocks.writer_schema), {})
            except Exception as error:
                _raise_others(error)
                raise DamagedFileError(
                    f"{file} cannot be read as an object container file of "
                    f"Avro: {_short(error)}. Repair the file or leave it out."
                ) from error
            problem = complaint(file, decoder.types, self._schema.used)
            if problem:
                raise DamagedFileError(problem)
            first = 1
            while True:
                begin = source.tell()
                try:
                    block = next(blocks, None)
                except Exception as error:
                    _raise_others(error)
                    raise DamagedFileError(
                        f"{file} is damaged in the block at byte {begin}, "
                        f"behind record {first - 1}: {_short(error)}. {_ADVICE}"
                    ) from error
                if block is None:
                    return
                yield functools.partial(
                    self._parse, f"{file}, byte {begin}", block, decoder, first
                )
                first += block.num_records

    def _parse(
        self, where: str, block: typing.Any, decoder: _Decoder, first: int
    ) -> Parsed:
        data, count = block.bytes_, block.num_records
        try:
            size = len(data.getvalue())
            if not 0 <= count <= size:
                raise ValueError(f"it has {size} bytes for {count} records")
            records = [decoder.decode(data) for _ in range(count)]
            if data.tell() != size:
                raise ValueError(
                    f"{count} records end at {data.tell()} of {size} bytes"
                )
        except _ERRORS as error:
            raise DamagedFileError(
                f"The block of {where}, behind record {first - 1}, is damaged: "
                f"{_short(error)}. {_ADVICE}"
            ) from error
        part, reasons = decoder.part(records, self._converter, self._schema)
        malformed = [
            Malformed(first + row, reason)
            for row, reason in sorted(reasons.items())
        ]
        return Parsed(part, count, malformed, "record")


class AvroMessages:
    """Reads messages.

    Args:
      schema: Schema.
      avro: Avro.
    """

    def __init__(self, schema: Schema, avro: Avro) -> None:
        self._schema = schema
        self._converter = Converter(schema)
        self._registry: _Registry | None = None
        self._decoder: _Decoder | None = None
        if avro.registry is not None:
            self._registry = _Registry(avro.registry, schema)
            return
        self._decoder = _Decoder.of(avro.schema, {})
        problem = complaint(
            "`schema` of Avro", self._decoder.types, schema.used
        )
        if problem:
            raise ValueError(problem)

    def messages(self, values: list[bytes]) -> Parsed:
        """Parses values, each of which is a record."""
        found: list[tuple[_Decoder, int, _Record]] = []
        malformed = []
        for row, value in enumerate(values):
            data = io.BytesIO(value)
            try:
                decoder = self._decoder or self._decoder_of(data)
                if isinstance(decoder, str):
                    malformed.append(Malformed(row + 1, decoder))
                    continue
                record = decoder.decode(data)
                if data.tell() != len(value):
                    raise ValueError("Bytes are left.")
            except SourceError:
                raise
            except _ERRORS:
                malformed.append(Malformed(row + 1, NO_AVRO))
            else:
                found.append((decoder, row, record))
        parts = []
        # Messages of different schemas keep their order.
        for _, run in itertools.groupby(found, lambda one: id(one[0])):
            decoders, rows, records = zip(*run, strict=True)
            part, reasons = decoders[0].part(
                records, self._converter, self._schema
            )
            parts.append(part)
            malformed += [
                Malformed(rows[one] + 1, reason)
                for one, reason in reasons.items()
            ]
        return Parsed(
            concat(parts) if parts else self._nothing(), len(values), malformed
        )

    def _decoder_of(self, data: io.BytesIO) -> "_Decoder | str":
        assert self._registry is not None
        header = data.read(_HEADER.size)
        if len(header) < _HEADER.size or header[0]:
            return NO_HEADER
        return self._registry[_HEADER.unpack(header)[1]] or OTHER_SCHEMA

    def _nothing(self) -> Part:
        columns = {
            field.name: plain(field, pa.nulls(0), ())
            for field in self._schema.used
        }
        return self._converter.part(columns)[0]


class _Registry:
    """The decoders of a schema registry, by id; None for other schemas."""

    def __init__(
        self, settings: str | Mapping[str, typing.Any], schema: Schema
    ) -> None:
        try:
            from confluent_kafka.schema_registry import (
                SchemaRegistryClient,
                SchemaRegistryError,
            )
        except ImportError as error:
            raise ImportError(
                "The `registry` of tf_ext.data.Avro needs confluent-kafka's "
                f"client ({error}): pip install 'tf-ext[registry]'"
            ) from error
        _require("tf_ext.data.Avro")
        if isinstance(settings, str):
            settings = {"url": settings}
        try:
            self._client = SchemaRegistryClient(dict(settings))
        except (TypeError, ValueError) as error:
            refuse("Avro", "registry", f"settings that work: {error}", settings)
        self._error = SchemaRegistryError
        self._url = settings["url"]
        self._used = schema.used
        # With the time until which it is so.
        self._found: dict[int, tuple[_Decoder | None, float]] = {}

    def __getitem__(self, number: int) -> _Decoder | None:
        now = time.monotonic()
        decoder, until = self._found.get(number, (None, now))
        if until <= now:
            decoder, until = self._found[number] = self._asked(number)
        return decoder

    def _asked(self, number: int) -> tuple[_Decoder | None, float]:
        try:
            found = self._client.get_schema(number)
            if found.schema_type != "AVRO":
                raise ValueError(f"it is of {found.schema_type}")
            named: dict[str, typing.Any] = {}
            self._add_references(found, named)
            decoder = _Decoder.of(found.schema_str, named)
            problem = complaint("it", decoder.types, self._used)
            if problem:
                raise ValueError(problem)
        except ValueError as error:
            self._tell(number, str(error))
            return None, math.inf
        except Exception as error:
            # Of the client's, those of HTTP have no class in common.
            status = getattr(error, "http_status_code", None)
            if isinstance(error, self._error) and status == 404:
                if number not in self._found:
                    self._tell(number, "there is none")
                return None, time.monotonic() + _ABSENT_SECONDS
            raise SourceError(
                f"The schema {number} of messages is not known: {self._url} "
                f"answers: {type(error).__name__}: {error}"
            ) from error
        return decoder, math.inf

    def _tell(self, number: int, why: str) -> None:
        _LOG.warning(
            "Messages with the schema %d of %s cannot be read: %s",
            *(number, self._url, why),
        )

    def _add_references(self, schema: typing.Any, named: _Record) -> None:
        for one in schema.references or ():
            found = self._client.get_version(one.subject, one.version).schema
            self._add_references(found, named)
            if one.name not in named:
                fastavro.parse_schema(json.loads(found.schema_str), named)


class _Bounded:
    """A file of TensorFlow, of which no more is read than there is."""

    def __init__(self, file: typing.Any) -> None:
        self._file = file
        self._size = file.size()

    def read(self, size: int) -> bytes:
        """The bytes that come next."""
        if size < 0:
            raise ValueError(f"a length is {size}")
        return self._file.read(min(size, self._size - self._file.tell()))

    def tell(self) -> int:
        """Where it is."""
        return self._file.tell()


def _raise_others(error: Exception) -> None:
    """Raises an error that is not of the bytes; codecs have their own."""
    if isinstance(error, MemoryError | Warning):
        raise error


def _own(schema: _AvroSchema) -> _AvroSchema:
    """A schema that fastavro has parsed, as it was before."""
    if isinstance(schema, dict):
        return {k: v for k, v in schema.items() if not k.startswith("__")}
    # A text is JSON, and not the name of a type.
    return json.dumps(schema) if isinstance(schema, str) else schema


def _without_logical(schema: _AvroSchema) -> _AvroSchema:
    """A schema whose times are numbers, as Arrow takes them."""
    if isinstance(schema, list):
        return [_without_logical(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        name: _without_logical(value)
        for name, value in schema.items()
        if name != "logicalType" or value == "decimal"
    }


def _value_at(record: _Record, name: str) -> typing.Any:
    if name in record:
        return record[name]
    value: typing.Any = record
    for step in steps_of(name):
        if value is None:
            return None
        value = value[step]
    return value


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300].rstrip(".: ")
