# SPDX-License-Identifier: Apache-2.0
"""Streams of Protobuf messages."""

import random

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
)
from queue_source import Queue

import tf_ext
from tf_ext.data.messages import MessageParser

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
Message, Protobuf = tf_ext.data.Message, tf_ext.data.Protobuf

_FILE = """
  name: "events.proto" package: "shop" syntax: "proto3"
  enum_type { name: "Kind"
    value { name: "NONE" number: 0 } value { name: "AD" number: 3 } }
  message_type { name: "Geo"
    field { name: "country" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "near" number: 2 type: TYPE_MESSAGE label: LABEL_OPTIONAL
            type_name: ".shop.Geo" } }
  message_type { name: "Event"
    field { name: "user" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "item" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL
            oneof_index: 0 proto3_optional: true }
    field { name: "tags" number: 3 type: TYPE_STRING label: LABEL_REPEATED }
    field { name: "ids" number: 4 type: TYPE_UINT32 label: LABEL_REPEATED }
    field { name: "click" number: 5 type: TYPE_FLOAT label: LABEL_OPTIONAL }
    field { name: "kind" number: 6 type: TYPE_ENUM label: LABEL_OPTIONAL
            type_name: ".shop.Kind" }
    field { name: "geo" number: 7 type: TYPE_MESSAGE label: LABEL_OPTIONAL
            type_name: ".shop.Geo" }
    field { name: "raw" number: 8 type: TYPE_BYTES label: LABEL_OPTIONAL }
    field { name: "yes" number: 9 type: TYPE_BOOL label: LABEL_OPTIONAL }
    field { name: "places" number: 10 type: TYPE_MESSAGE label: LABEL_REPEATED
            type_name: ".shop.Geo" }
    oneof_decl { name: "_item" } }
"""
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_FILE, descriptor_pb2.FileDescriptorProto()))
_DESCRIPTOR = _POOL.FindMessageTypeByName("shop.Event")
_Event = message_factory.GetMessageClass(_DESCRIPTOR)


def _parse(fields, values, message=_Event):
    parser = MessageParser(Schema(fields), Protobuf(message), {})
    messages = [Message("a", n, value) for n, value in enumerate(values)]
    return parser.parse(messages)


class ProtobufTest(parameterized.TestCase):
    @parameterized.parameters(_Event, _DESCRIPTOR)
    def test_stream(self, message):
        queue = Queue()
        for number in range(5):
            event = _Event(user=f"u{number}", tags=["a", "b"][: number % 3])
            if number % 2:
                event.item = number
            queue.add("a", event.SerializeToString())
        queue.add("a", b"\xff\xff", b"")
        errors = tf_ext.data.ReadErrors()
        data = tf_ext.data.stream(
            queue,
            Schema(
                [
                    Field("user"),
                    Field("item", "int64", default=-1),
                    Field("tags", bag=True),
                ]
            ),
            Protobuf(message),
            batch_size=8,
            follow=False,
            max_errors=1.0,
            errors=errors,
        )
        [batch] = data
        self.assertEqual(
            batch["user"].numpy().tolist(), [b"u%d" % n for n in range(5)]
        )
        self.assertEqual(batch["item"].numpy().tolist(), [-1, 1, -1, 3, -1])
        self.assertEqual(
            batch["tags"].to_list(), [[], [b"a"], [b"a", b"b"], [], [b"a"]]
        )
        self.assertEqual(
            errors.by_file(),
            {"a": {"no Protobuf message": 1, "empty message": 1}},
        )

    def test_types(self):
        event = _Event(
            user="ä", ids=[7, 2**32 - 1], click=0.5, kind=3, raw=b"\xff\0"
        )
        event.yes = True
        event.geo.near.country = "de"
        fields = [
            Field("user"),
            Field("ids", "int64", bag=True),
            Field("click", "float32"),
            Field("kind", "int64"),
            Field("raw"),
            Field("yes", "int64"),
            Field("geo.near.country"),
            Field("geo.country"),
        ]
        values = [
            event.SerializeToString(),
            _Event(user="x").SerializePartialToString(),
        ]
        found = _parse([*fields[:6], Field("geo.country", default="-")], values)
        self.assertEqual(found.part.rows, 2)
        dense = found.part.dense
        self.assertEqual(dense["user"].to_pylist(), ["ä".encode(), b"x"])
        ids = found.part.bags["ids"]
        self.assertEqual(np.asarray(ids.values).tolist(), [7, 2**32 - 1])
        for name, wanted in (
            ("click", [0.5, 0]),
            ("kind", [3, 0]),
            ("yes", [1, 0]),
        ):
            self.assertEqual(np.ravel(dense[name]).tolist(), wanted)
        self.assertEqual(dense["raw"].to_pylist(), [b"\xff\0", b""])
        # A message that is not set has no fields; one that is has defaults.
        self.assertEqual(dense["geo.country"].to_pylist(), [b"", b"-"])
        deep = [Field("user"), Field("geo.near.country", default="?")]
        found = _parse(deep, values)
        self.assertEqual(
            found.part.dense["geo.near.country"].to_pylist(), [b"de", b"?"]
        )

    def test_names_of_enums(self):
        values = [
            _Event(user="x", kind=n).SerializeToString() for n in (0, 3, 9)
        ]
        found = _parse([Field("kind")], values)
        self.assertEqual(
            found.part.dense["kind"].to_pylist(), [b"NONE", b"AD", b"9"]
        )

    def test_defaults_of_proto2(self):
        # tf.train's are proto3; descriptors themselves are proto2.
        field = descriptor_pb2.FieldOptions
        parsed = _parse(
            [Field("deprecated", "int64", default=5), Field("ctype")],
            [field(weak=True).SerializeToString()],
            field,
        )
        self.assertEqual(np.ravel(parsed.part.dense["deprecated"])[0], 0)
        self.assertEqual(parsed.part.dense["ctype"].to_pylist(), [b"STRING"])

    def test_strings_of_proto2_that_are_not_utf_8(self):
        option = descriptor_pb2.UninterpretedOption  # Has both types.
        good, bad = (
            option(string_value=text, identifier_value="x").SerializeToString()
            for text in (b"1234", b"5678")
        )
        bad = bad.replace(b"x", b"\xff")
        fields = [Field("string_value"), Field("identifier_value")]
        found = _parse(fields, [bad, good], option)
        self.assertEqual(found.reasons, {0: "no Protobuf message"})
        self.assertEqual(
            found.part.dense["string_value"].to_pylist(), [b"1234"]
        )
        # A field that is not read does not matter.
        self.assertEqual(_parse(fields[:1], [bad], option).part.rows, 1)

    def test_missing_fields(self):
        values = [_Event(user="x").SerializeToString(), b"\xff"]
        found = _parse([Field("user"), Field("item", "int64")], values)
        self.assertEqual(found.part.rows, 0)
        self.assertEqual(
            found.reasons, {0: "missing value", 1: "no Protobuf message"}
        )
        optional = Field("other", "int64", default=4, optional=True)
        found = _parse([Field("user"), optional], values)
        self.assertEqual(np.ravel(found.part.dense["other"]).tolist(), [4])

    @parameterized.parameters(
        (Field("person"), r"each field .* not \['person'\]"),
        (Field("geo"), r"not \['geo'\]"),
        (Field("places.country"), "not"),
        (Field("user.name"), "not"),
        (Field("geo.near.near.nowhere"), "not"),
    )
    def test_schemas_that_do_not_fit(self, field, message):
        with self.assertRaisesRegex(ValueError, message):
            _parse([field], [])

    def test_arguments(self):
        for wrong in (None, "shop.Event", _Event(), dict):
            with self.assertRaisesRegex(ValueError, "`message` of Protobuf"):
                Protobuf(wrong)
        # Files have no such format.
        with self.assertRaisesRegex(ValueError, "`format`"):
            schema = Schema([Field("user")])
            tf_ext.data.read(__file__, schema, Protobuf(_Event), batch_size=1)

    def test_which_messages_are_malformed(self):
        events = [_Event(user="a", item=1), _Event(user="b"), _Event(item=2)]
        good, without, other = (one.SerializeToString() for one in events)
        found = _parse(
            [Field("user"), Field("item", "int64")],
            [b"\xff", good, b"\xff\xff", without, other],
        )
        self.assertEqual(
            found.reasons,
            {
                0: "no Protobuf message",
                2: "no Protobuf message",
                3: "missing value",
            },
        )
        self.assertEqual(found.kept.tolist(), [1, 4])

    def test_random_bytes(self):
        rng = random.Random(7)
        fields = [
            *(Field("user"), Field("item", "int64", default=0)),
            Field("tags", bag=True),
            Field("geo.country", default="-"),
        ]
        event = _Event(user="someone", item=-3, tags=["a", "b"])
        event.geo.country = "fr"
        whole = event.SerializeToString()
        values = []
        for _ in range(500):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            values.append(bytes(data[: rng.randrange(1, len(data) + 1)]))
        # As deep as a stack could not take.
        values.append(b"\x3a\x7f" + b"\x12\x7d" * 5000)
        found = _parse(fields, values)
        self.assertEqual(found.part.rows + len(found.reasons), len(values))
        self.assertGreater(found.part.rows, 0)
        self.assertGreater(len(found.reasons), 50)

    def test_examples(self):
        """A class that protoc has generated; maps are not read."""
        with self.assertRaisesRegex(ValueError, "not"):
            _parse([Field("features.feature")], [], tf.train.Example)


if __name__ == "__main__":
    absltest.main()
