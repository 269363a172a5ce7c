# SPDX-License-Identifier: Apache-2.0
"""The types of Apache Avro as those of Apache Arrow."""

import typing
from collections.abc import Mapping

try:
    import pyarrow as pa
except ImportError:
    pa = None

_Type: typing.TypeAlias = typing.Any
# Of each: the type of Arrow, and the fewest bytes that a value takes.
_PRIMITIVE: dict[str, tuple[str, int]] = {
    "null": ("null", 0),
    "boolean": ("bool_", 1),
    "int": ("int32", 1),
    "long": ("int64", 1),
    "float": ("float32", 4),
    "double": ("float64", 8),
    "bytes": ("binary", 1),
    "string": ("string", 1),
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
        self._known: dict[str, tuple[typing.Any, int]] = {}
        # Those that the current type is within.
        self._open: list[str] = []

    def of(self, schema: _Type) -> tuple[typing.Any, int]:
        """The type of Arrow, and the fewest bytes that a value takes."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            if schema in _PRIMITIVE:
                name, size = _PRIMITIVE[schema]
                return getattr(pa, name)(), size
            if schema in self._known:
                return self._known[schema]
            return self.of(self._named[schema])
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.of(kind)
        if kind in ("record", "error"):
            return self._record(schema)
        if kind == "enum":
            return self._keep(schema, pa.string(), 1)
        if kind == "fixed":
            found = _decimal(schema) or pa.binary()
            return self._keep(schema, found, schema["size"])
        if kind == "array":
            item, size = self.of(schema["items"])
            if not size:
                raise ValueError(
                    f"its arrays of {item} take no bytes, so that a few "
                    "declare any number of values"
                )
            return pa.list_(item), 1
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"])[0]), 1
        found, size = self.of(kind)
        return _logical(schema) or found, size

    def _record(self, schema: _Type) -> tuple[typing.Any, int]:
        name = schema["name"]
        if name in self._open:
            raise ValueError(
                f"its type {name} is within itself, so that a long message "
                "would end the process"
            )
        self._open.append(name)
        fields = [
            (one["name"], self.of(one["type"])) for one in schema["fields"]
        ]
        self._open.pop()
        type_ = pa.struct([(name, found) for name, (found, _) in fields])
        return self._keep(schema, type_, sum(size for _, (_, size) in fields))

    def _keep(
        self, schema: _Type, type_: typing.Any, size: int
    ) -> tuple[typing.Any, int]:
        self._known[schema["name"]] = type_, size
        return type_, size

    def _union(self, schema: list[_Type]) -> tuple[typing.Any, int]:
        found = [self.of(one)[0] for one in schema]
        kinds = list(
            dict.fromkeys(one for one in found if not pa.types.is_null(one))
        )
        if not kinds:
            return pa.null(), 1
        if len(kinds) == 1:
            return kinds[0], 1
        if all(map(pa.types.is_integer, kinds)):
            return pa.int64(), 1
        if all(
            pa.types.is_integer(one) or pa.types.is_floating(one)
            for one in kinds
        ):
            return pa.float64(), 1
        fields = [pa.field(str(one), one) for one in kinds]
        return pa.dense_union(fields), 1


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
