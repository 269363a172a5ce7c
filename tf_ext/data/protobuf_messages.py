# SPDX-License-Identifier: Apache-2.0
"""Messages of Protocol Buffers."""

import dataclasses
import typing

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from tf_ext._checks import refuse
from tf_ext.data.arrow import Converter, require_pyarrow
from tf_ext.data.columns import complaint, plain
from tf_ext.data.errors import Malformed
from tf_ext.data.field import Field
from tf_ext.data.parts import Parsed
from tf_ext.data.paths import schema_of, steps_of
from tf_ext.data.schema import Schema

try:
    import pyarrow as pa
except ImportError:
    pa = None

NO_MESSAGE = "no Protobuf message"
# Of each C++ type of a field: the type of Arrow.
_TYPES = {
    FieldDescriptor.CPPTYPE_BOOL: "bool_",
    FieldDescriptor.CPPTYPE_DOUBLE: "float64",
    FieldDescriptor.CPPTYPE_ENUM: "int32",
    FieldDescriptor.CPPTYPE_FLOAT: "float32",
    FieldDescriptor.CPPTYPE_INT32: "int32",
    FieldDescriptor.CPPTYPE_INT64: "int64",
    FieldDescriptor.CPPTYPE_UINT32: "uint32",
    FieldDescriptor.CPPTYPE_UINT64: "uint64",
}


@dataclasses.dataclass(frozen=True)
class Protobuf:
    """Messages of Protocol Buffers, as a `format` of `tf_ext.data.stream`.

    Fields of messages within messages are named by their path, such as
    `geo.country`. One that is not set is missing, if the message tells that
    from its default.
    Enums are numbers, or for a field of strings names; repeated fields are
    bags. Maps are not read.

    Attributes:
      message: the class of the messages, which protoc has generated, or a
        google.protobuf.descriptor.Descriptor.

    Example:
      >>> tf_ext.data.Protobuf(tf.train.Example).message.__name__
      'Example'
    """

    message: typing.Any

    def __post_init__(self) -> None:
        require_pyarrow("tf_ext.data.Protobuf")
        if not isinstance(self.message, Descriptor) and not (
            isinstance(self.message, type) and issubclass(self.message, Message)
        ):
            allowed = "a class of Protobuf messages, or a Descriptor"
            refuse("Protobuf", "message", allowed, self.message)


class ProtobufMessages:
    """Reads messages.

    Args:
      schema: Schema.
      protobuf: Protobuf.
    """

    def __init__(self, schema: Schema, protobuf: Protobuf) -> None:
        found = protobuf.message
        if isinstance(found, Descriptor):
            found = message_factory.GetMessageClass(found)
        self._class = found
        self._schema = schema
        self._converter = Converter(schema)
        self._columns = {
            field.name: _Column.of(field, found.DESCRIPTOR)
            for field in schema.used
        }
        types = {
            name: column.type
            for name, column in self._columns.items()
            if column is not None
        }
        problem = complaint(
            f"`message` of Protobuf, {found.DESCRIPTOR.full_name},",
            schema_of(types),
            schema.used,
        )
        if problem:
            raise ValueError(problem)

    def messages(self, values: list[bytes]) -> Parsed:
        """Parses values, each of which is a message."""
        columns = self._columns.values()
        found, kept, malformed = [], [], []
        for row, value in enumerate(values):
            try:
                message = self._class.FromString(value)
                found.append([one and one.value(message) for one in columns])
            except (DecodeError, UnicodeError):
                malformed.append(Malformed(row + 1, NO_MESSAGE))
            else:
                kept.append(row)
        part, reasons = self._converter.part(
            {
                field.name: self._column(field, [row[i] for row in found])
                for i, field in enumerate(self._schema.used)
            }
        )
        malformed += [
            Malformed(kept[row] + 1, reason) for row, reason in reasons.items()
        ]
        return Parsed(part, len(values), malformed)

    def _column(self, field: Field, values: list[typing.Any]) -> typing.Any:
        column = self._columns[field.name]
        array = pa.array(values, column.type if column else pa.null())
        return plain(field, array, self._schema.missing)


@dataclasses.dataclass(frozen=True)
class _Column:
    """Where a field of a schema is in messages.

    path: of each message on the way the field that has the next one, and last
    the field itself; type: that of Arrow; is_text: whether it is a string, and
    not bytes; names: of the numbers of an enum that is read as strings, or
    None.
    """

    path: tuple[FieldDescriptor, ...]
    type: typing.Any
    is_text: bool
    names: dict[int, str] | None

    @classmethod
    def of(cls, field: Field, message: Descriptor) -> "_Column | None":
        """The column of a field; None if messages do not have it."""
        path: list[FieldDescriptor] = []
        for step in steps_of(field.name):
            if path and (_is_repeated(path[-1]) or not path[-1].message_type):
                return None
            parent = path[-1].message_type if path else message
            if step not in parent.fields_by_name:
                return None
            path.append(parent.fields_by_name[step])
        last, names = path[-1], None
        is_text = last.type == FieldDescriptor.TYPE_STRING
        if last.message_type is not None:
            return None
        if last.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            kind = pa.string() if is_text else pa.binary()
        elif last.enum_type is not None and field.dtype == "string":
            kind = pa.string()
            names = {
                number: one.name
                for number, one in last.enum_type.values_by_number.items()
            }
        else:
            kind = getattr(pa, _TYPES[last.cpp_type])()
        if _is_repeated(last):
            kind = pa.list_(kind)
        return cls(tuple(path), kind, is_text, names)

    def value(self, message: typing.Any) -> typing.Any:
        """What a message has there; None if it is not set.

        Raises:
          UnicodeError: a string is not UTF-8.
        """
        *parents, last = self.path
        for parent in parents:
            if not message.HasField(parent.name):
                return None
            message = getattr(message, parent.name)
        if last.has_presence and not last.has_default_value:
            if not message.HasField(last.name):
                return None
        found = getattr(message, last.name)
        if _is_repeated(last):
            return [self._named(one) for one in found]
        return self._named(found)

    def _named(self, value: typing.Any) -> typing.Any:
        if self.is_text and isinstance(value, bytes):
            # proto2 does not check what it parses.
            raise UnicodeError("A string is not UTF-8.")
        if self.names is None:
            return value
        # Numbers that a later version of the enum names have none here.
        return self.names.get(value, str(value))


def _is_repeated(field: FieldDescriptor) -> bool:
    found = getattr(field, "is_repeated", None)  # Protobuf 6.30 and later.
    if found is None:
        found = field.label == FieldDescriptor.LABEL_REPEATED
    return bool(found)
