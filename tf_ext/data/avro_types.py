# SPDX-License-Identifier: Apache-2.0
"""The types of Apache Avro as those of Apache Arrow."""

import typing
from collections.abc import Mapping

try:
    import pyarrow as pa
except ImportError:
    pa = None

_Type: typing.TypeAlias = typing.Any
# The type of Arrow, and whether each value takes bytes.
_Found: typing.TypeAlias = tuple[typing.Any, bool]
_PRIMITIVE = {
    "null": "null",
    "boolean": "bool_",
    "int": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
    "bytes": "binary",
    "string": "string",
}
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
_MOST_DIGITS = 76


def arrow_schema(schema: _Type, named: Mapping[str, _Type]) -> typing.Any:
    """The schema of Arrow of records.

    Args:
      schema: parsed by fastavro.
      named: dict from names to the types that have them.

    Raises:
      ValueError: it is not of records, or one of its types can take the memory
        or the stack of the process, however short the bytes.
    """
    found, _ = _Types(named).of(schema)
    if not pa.types.is_struct(found):
        raise ValueError(f"it is of {found}")
    return pa.schema(list(found))


class _Types:
    def __init__(self, named: Mapping[str, _Type]) -> None:
        self._named = named
        # By name; None of those that the current type is within.
        self._known: dict[str, _Found | None] = {}

    def of(self, schema: _Type) -> _Found:
        """The type of Arrow, and whether each value takes bytes."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            if schema in _PRIMITIVE:
                return getattr(pa, _PRIMITIVE[schema])(), schema != "null"
            if schema not in self._known:
                return self.of(self._named[schema])
            if (known := self._known[schema]) is None:
                raise ValueError(
                    f"its type {schema} is within itself, so that a long "
                    "message would end the process"
                )
            return known
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.of(kind)
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "enum":
            return self._keep(schema, pa.string(), True)
        if kind == "fixed":
            found = _decimal(schema) or pa.binary()
            return self._keep(schema, found, schema["size"] > 0)
        if kind == "array":
            item, takes_bytes = self.of(schema["items"])
            if not takes_bytes:
                raise ValueError(
                    f"its arrays of {item} take no bytes, so that a few "
                    "declare any number of values"
                )
            return pa.list_(item), True
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"])[0]), True
        found, takes_bytes = self.of(kind)
        return _logical(schema) or found, takes_bytes

    def _record(self, schema: _Type) -> _Found:
        self._known[schema["name"]] = None
        fields = [
            (one["name"], self.of(one["type"])) for one in schema["fields"]
        ]
        type_ = pa.struct([(name, found) for name, (found, _) in fields])
        return self._keep(schema, type_, any(some for _, (_, some) in fields))

    def _keep(
        self, schema: _Type, type_: typing.Any, takes_bytes: bool
    ) -> _Found:
        self._known[schema["name"]] = found = type_, takes_bytes
        return found

    def _union(self, schema: list[_Type]) -> _Found:
        found = [self.of(one)[0] for one in schema]
        kinds = list(
            dict.fromkeys(one for one in found if not pa.types.is_null(one))
        )
        if not kinds:
            return pa.null(), True
        if len(kinds) == 1:
            return kinds[0], True
        if all(map(pa.types.is_integer, kinds)):
            return pa.int64(), True
        if all(
            pa.types.is_integer(one) or pa.types.is_floating(one)
            for one in kinds
        ):
            return pa.float64(), True
        fields = [pa.field(str(one), one) for one in kinds]
        return pa.dense_union(fields), True


def _logical(schema: _Type) -> typing.Any:
    """The type of Arrow of a logical type; None without one."""
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return None
    if logical == "decimal":
        return _decimal(schema)
    if schema["type"] == "int" and logical == "date":
        return pa.date32()
    kind, _, unit = logical.rpartition("-")
    if schema["type"] == "long" and unit in _UNITS:
        if kind == "timestamp":
            return pa.timestamp(_UNITS[unit], "UTC")
        if kind == "local-timestamp":
            return pa.timestamp(_UNITS[unit])
    return None


def _decimal(schema: _Type) -> typing.Any:
    if schema.get("logicalType") != "decimal":
        return None
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 0 < precision <= _MOST_DIGITS:
        raise ValueError(
            f"its decimals have {precision} digits; at most {_MOST_DIGITS} can "
            "be read"
        )
    kind = pa.decimal128 if precision <= 38 else pa.decimal256
    return kind(precision, scale)
