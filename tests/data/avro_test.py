# SPDX-License-Identifier: Apache-2.0
"""Apache Avro: container files and messages, and what is damaged in them."""

import datetime
import decimal
import http.server
import io
import json
import pathlib
import random
import struct
import tempfile
import threading
import typing
from unittest import mock

import fastavro
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from queue_source import Queue

import tf_ext
from tf_ext.data.avro_files import AvroFiles
from tf_ext.data.messages import MessageParser

Field, Schema, Avro = tf_ext.data.Field, tf_ext.data.Schema, tf_ext.data.Avro
Message = tf_ext.data.Message
_CLICK = {
    "type": "record",
    "name": "Click",
    "namespace": "shop",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "item", "type": ["null", "long"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "click", "type": "float"},
    ],
}
_SCHEMA = Schema(
    [
        Field("user"),
        Field("item", "int64", default=-1),
        Field("tags", bag=True),
        Field("click", "float32"),
    ]
)


def _click(number):
    return {
        "user": f"u{number % 7}",
        "item": None if number % 3 == 0 else number,
        "tags": ["a", "b"][: number % 3],
        "click": float(number % 2),
    }


def _encoded(record, schema=_CLICK, header=b""):
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), record)
    return header + data.getvalue()


def _wire(number):
    return struct.pack(">bI", 0, number)


def _rows(part):
    """The rows of a Part of `_SCHEMA`."""
    tags = part.bags["tags"]
    values, splits = tags.values.to_pylist(), tags.splits
    return [
        {
            "user": part.dense["user"][row].as_py().decode(),
            "item": int(part.dense["item"][row]),
            "tags": [t.decode() for t in values[splits[row] : splits[row + 1]]],
            "click": float(part.dense["click"][row]),
        }
        for row in range(part.rows)
    ]


def _wanted(number):
    return _click(number) | {"item": -1 if number % 3 == 0 else number}


class AvroFilesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.file = pathlib.Path(folder) / "part-0.avro"

    def _write(self, schema, records, **options):
        with open(self.file, "wb") as file:
            fastavro.writer(
                file, fastavro.parse_schema(schema), records, **options
            )

    def _read(self, schema, **options):
        options = {"batch_size": 64, "max_errors": 1.0, **options}
        data = tf_ext.data.read(self.file, schema, "avro", **options)
        return list(data)

    def test_types(self):
        moment = datetime.datetime(2026, 11, 27, 12, tzinfo=datetime.UTC)
        of_type = {
            "b": ("boolean", True),
            "i": ("int", -7),
            "l": ("long", 2**60),
            "d": ("double", 0.5),
            "text": ("bytes", b"\xff\0"),
            "fixed": ({"type": "fixed", "name": "F", "size": 2}, b"xy"),
            "kind": (
                {"type": "enum", "name": "K", "symbols": ["A", "B"]},
                "B",
            ),
            "either": (["null", "int", "double"], 2.0),
            "whole": (["null", "int", "long"], 2**40),
            "no": (["null", "string"], None),
            "ms": ({"type": "long", "logicalType": "timestamp-millis"}, moment),
            "us": ({"type": "long", "logicalType": "timestamp-micros"}, moment),
            "day": ({"type": "int", "logicalType": "date"}, moment.date()),
            "price": (
                {
                    "type": "bytes",
                    "logicalType": "decimal",
                    "precision": 40,
                    "scale": 2,
                },
                decimal.Decimal("12.50"),
            ),
            "list": ({"type": "array", "items": ["null", "long"]}, [3, 4]),
            "map": ({"type": "map", "values": "int"}, {"a": 1}),
            "geo": (
                {
                    "type": "record",
                    "name": "G",
                    "fields": [
                        {"name": "country", "type": "string"},
                        {
                            "name": "of",
                            "type": {"type": "map", "values": "int"},
                        },
                    ],
                },
                {"country": "de", "of": {}},
            ),
            "again": (["null", "G"], None),
        }
        fields = [{"name": n, "type": t} for n, (t, _) in of_type.items()]
        record = {name: value for name, (_, value) in of_type.items()}
        self._write({"type": "record", "name": "R", "fields": fields}, [record])
        noon = 1795780800
        [found] = self._read(
            Schema(
                [
                    Field("b", "float32"),
                    Field("i", "int32"),
                    Field("l", "uint64"),
                    Field("d", "float32"),
                    Field("text"),
                    Field("fixed"),
                    Field("kind"),
                    Field("either", "int64"),
                    Field("whole", "int64"),
                    Field("no", default="-"),
                    Field("ms", "int64", time="s"),
                    Field("us", "int64", time="s"),
                    Field("day", "int64", time="s"),
                    Field("price", "float32"),
                    Field("list", "int64", bag=True),
                    Field("geo.country"),
                    Field("again.country", default="?"),
                    Field("new", "int64", default=5, optional=True),
                ]
            )
        )
        self.assertEqual(found.pop("list").to_list(), [[3, 4]])
        self.assertEqual(
            {name: values.numpy().item() for name, values in found.items()},
            {
                "b": 1.0,
                "i": -7,
                "l": 2**60,
                "d": 0.5,
                "text": b"\xff\0",
                "fixed": b"xy",
                "kind": b"B",
                "either": 2,
                "whole": 2**40,
                "no": b"-",
                "ms": noon,
                "us": noon,
                "day": noon - 43200,
                "price": 12.5,
                "geo.country": b"de",
                "again.country": b"?",
                "new": 5,
            },
        )

    def test_files_of_unions_and_of_no_records(self):
        fields = [{"name": "x", "type": "long"}]
        record = {"type": "record", "name": "R", "fields": fields}
        schema = Schema([Field("x", "int64")])
        self._write([record], [{"x": 1}, {"x": 2}])
        [found] = self._read(schema)
        self.assertEqual(found["x"].numpy().tolist(), [1, 2])
        self._write("long", [1, 2])
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError, "cannot be read .* it is of int64"
        ):
            self._read(schema)

    @parameterized.parameters("null", "deflate")
    def test_blocks(self, codec):
        records = [_click(n) for n in range(500)]
        self._write(_CLICK, records, codec=codec, sync_interval=200)
        users = [u for one in self._read(_SCHEMA) for u in one["user"].numpy()]
        self.assertEqual(users, [f"u{n % 7}".encode() for n in range(500)])

    @parameterized.parameters("null", "deflate")
    def test_damage(self, codec):
        """No byte ends the process, or loses a record without a word."""
        records = [_click(n) for n in range(60)]
        self._write(_CLICK, records, codec=codec, sync_interval=300)
        whole = self.file.read_bytes()
        rng = random.Random(5)
        refused = 0
        for place in rng.sample(range(len(whole)), 120):
            data = bytearray(whole)
            data[place] ^= 1 << rng.randrange(8)
            refused += self._check_damaged(bytes(data), 60)
        self.assertGreater(refused, 5)
        ends = rng.sample(range(len(whole)), 30)
        self.assertGreater(
            sum(self._check_damaged(whole[:end], None) for end in ends), 10
        )

    def _check_damaged(self, data, count):
        self.file.write_bytes(data)
        reader = AvroFiles(_SCHEMA, 1)
        try:
            records = sum(
                parse().records for parse in reader.blocks(str(self.file))
            )
        except tf_ext.data.DamagedFileError:
            return True
        if count is not None:
            self.assertEqual(records, count)
        return False

    def test_memory_that_lacks_is_no_damage(self):
        self._write(_CLICK, [_click(1)])
        begins = mock.patch.object(
            fastavro, "block_reader", side_effect=MemoryError
        )
        later = mock.patch.object(
            fastavro.block_reader, "__next__", side_effect=MemoryError
        )
        for failing in (begins, later):
            with failing, self.assertRaises(MemoryError):
                list(AvroFiles(_SCHEMA, 1).blocks(str(self.file)))

    def test_files_that_lack_fields(self):
        self._write(_CLICK, [_click(1)])
        name = str(self.file)
        for field in (Field("age"), Field("tags", "int64"), Field("user.x")):
            with self.assertRaisesRegex(tf_ext.data.DamagedFileError, "olumn"):
                list(AvroFiles(Schema([field]), 1).blocks(name))
        self.file.write_bytes(b"user,item\n")
        with self.assertRaisesRegex(tf_ext.data.DamagedFileError, "of Avro"):
            list(AvroFiles(_SCHEMA, 1).blocks(name))

    def test_messages_are_no_files(self):
        self._write(_CLICK, [_click(1)])
        with self.assertRaisesRegex(ValueError, "`format` of read"):
            tf_ext.data.read(self.file, _SCHEMA, Avro(_CLICK), batch_size=1)


class AvroMessagesTest(parameterized.TestCase):
    def _parse(self, values, avro):
        parser = MessageParser(_SCHEMA, avro, {})
        return parser.parse([Message("a", n, v) for n, v in enumerate(values)])

    def test_records(self):
        values = [_encoded(_click(n)) for n in range(20)]
        for avro in (Avro(_CLICK), Avro(json.dumps(_CLICK))):
            found = self._parse(values, avro)
            self.assertEqual(_rows(found.part), [*map(_wanted, range(20))])

    def test_each_is_a_record_or_malformed(self):
        rng = random.Random(3)
        values, damaged = [], set()
        for number in range(300):
            value = bytearray(_encoded(_click(number)))
            if rng.random() < 0.5:
                damaged.add(number)
                if rng.random() < 0.7:
                    place = rng.randrange(len(value))
                    value[place] ^= 1 << rng.randrange(8)
                elif rng.random() < 0.5:
                    del value[rng.randrange(len(value)) :]
                else:
                    value += b"\0"
            values.append(bytes(value))
        found = self._parse(values, Avro(_CLICK))
        self.assertFalse(found.reasons.keys() - damaged)
        self.assertGreater(len(found.reasons), 60)
        self.assertContainsSubset(
            set(found.reasons.values()),
            {"no Avro record", "empty message", "bad number"},
        )
        rows = dict(zip(found.kept.tolist(), _rows(found.part)))
        for number in set(range(300)) - damaged:
            self.assertEqual(rows[number], _wanted(number))
        self.assertEqual(len(rows) + len(found.reasons), 300)

    def test_numbers_out_of_range(self):
        schema = {
            "type": "record",
            "name": "R",
            "fields": [{"name": "x", "type": "int"}],
        }
        long = b"\xfe\xff\xff\xff\xff\xff\xff\x7f"
        parser = MessageParser(Schema([Field("x", "int64")]), Avro(schema), {})
        found = parser.parse(
            [Message("a", n, v) for n, v in enumerate([b"\2", long, b"\4"])]
        )
        self.assertEqual(found.part.dense["x"].tolist(), [1, 2])
        self.assertEqual(found.reasons, {1: "no Avro record"})

    def test_a_stream_is_that_of_json(self):
        queues = Queue(), Queue()
        numbers = range(50)
        queues[0].add("a", *(_encoded(_click(n)) for n in numbers))
        queues[1].add("a", *(json.dumps(_click(n)).encode() for n in numbers))
        found = [
            tf_ext.data.stream(
                source, _SCHEMA, format, batch_size=16, follow=False
            )
            for source, format in zip(queues, (Avro(_CLICK), "jsonl"))
        ]
        batches = 0
        for one, other in zip(*found, strict=True):
            self.assertEqual(
                one.pop("tags").to_list(), other.pop("tags").to_list()
            )
            for name in one:
                np.testing.assert_array_equal(one[name], other[name])
            batches += 1
        self.assertEqual(batches, 4)

    @parameterized.parameters(
        ({}, "`schema` of Avro must be given"),
        ({"schema": _CLICK, "registry": "http://a"}, "`schema` of Avro"),
        ({"registry": 3}, "`registry` of Avro"),
        ({"registry": {}}, "`registry` of Avro"),
        ({"schema": 3}, "`schema` of Avro must be a dict or a text of JSON"),
        ({"schema": "{"}, "`schema` of Avro"),
        ({"schema": '"string"'}, "it is of string"),
        ({"schema": {"type": "recor", "name": "R"}}, "`schema` of Avro"),
        (
            {
                "schema": {
                    "type": "record",
                    "name": "R",
                    "fields": [{"name": "next", "type": ["null", "R"]}],
                }
            },
            "type R is within itself",
        ),
        (
            {
                "schema": {
                    "type": "record",
                    "name": "R",
                    "fields": [
                        {
                            "name": "x",
                            "type": {"type": "array", "items": "null"},
                        }
                    ],
                }
            },
            "arrays of null take no bytes",
        ),
    )
    def test_arguments(self, given, message):
        with self.assertRaisesRegex(ValueError, message):
            Avro(**given)

    def test_fields_that_the_schema_lacks(self):
        with self.assertRaisesRegex(ValueError, "`schema` of Avro must have"):
            MessageParser(Schema([Field("age")]), Avro(_CLICK), {})
        with self.assertRaisesRegex(ValueError, "`format` of stream"):
            MessageParser(_SCHEMA, "avro", {})


class _Registry(http.server.BaseHTTPRequestHandler):
    """What a schema registry answers, of `schemas` by id."""

    schemas: typing.ClassVar = {}
    asked: typing.ClassVar = []

    def do_GET(self):
        self.asked.append(self.path)
        parts = self.path.partition("?")[0].split("/")
        if parts[1] == "subjects":
            id_ = {"places": 7, "countries": 8, "tags": 9}[parts[2]]
            found = {
                "subject": parts[2],
                "version": 1,
                "id": id_,
                **self.schemas[id_],
            }
        else:
            found = self.schemas.get(int(parts[3]))
        status = 200 if found else 404
        body = found or {"error_code": 40403, "message": "Schema not found"}
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class RegistryTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), _Registry
        )
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        later = json.loads(json.dumps(_CLICK))
        del later["fields"][1]  # As an optional field.
        later["fields"].append({"name": "more", "type": "long"})
        tag = {"type": "enum", "name": "Tag", "symbols": ["a", "b"]}
        tagged = json.loads(json.dumps(_CLICK))
        tagged["fields"][2]["type"]["items"] = "Tag"
        tagged["namespace"] = ""
        lacks = json.loads(json.dumps(_CLICK))
        del lacks["fields"][0]
        placed = json.loads(json.dumps(_CLICK))
        placed["fields"].append({"name": "place", "type": "Place"})
        placed["namespace"] = ""
        place = {
            "type": "record",
            "name": "Place",
            "fields": [{"name": "country", "type": "Country"}],
        }
        country = {"type": "enum", "name": "Country", "symbols": ["de", "fr"]}
        self.of_id = {1: _CLICK, 2: later, 4: tagged, 6: placed}
        self.of_id |= {7: place, 8: country, 9: tag}
        _Registry.asked.clear()
        _Registry.schemas = {
            number: {"schema": json.dumps(one)}
            for number, one in {**self.of_id, 3: lacks}.items()
        }
        # That of id 6 refers to one that refers to another one.
        for number, name, subject in (
            (4, "Tag", "tags"),
            (6, "Place", "places"),
            (7, "Country", "countries"),
        ):
            _Registry.schemas[number]["references"] = [
                {"name": name, "subject": subject, "version": 1}
            ]
        _Registry.schemas[5] = {
            "schema": "message A {}",
            "schemaType": "PROTOBUF",
        }
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        fields = [
            Field("item", "int64", default=-1, optional=True)
            if field.name == "item"
            else field
            for field in _SCHEMA.fields
        ]
        self.parser = MessageParser(Schema(fields), Avro(registry=self.url), {})

    def _parse(self, values):
        return self.parser.parse(
            [Message("a", n, v) for n, v in enumerate(values)]
        )

    def test_schemas_by_id(self):
        values, wanted = [], []
        for number in range(30):
            id_ = (1, 2, 4, 6)[number // 2 % 4]
            record = {**_click(number), "more": 1, "place": {"country": "fr"}}
            schema = json.loads(json.dumps(self.of_id[id_]))
            if id_ == 4:
                schema["fields"][2]["type"]["items"] = self.of_id[9]
            if id_ == 6:
                place = json.loads(json.dumps(self.of_id[7]))
                place["fields"][0]["type"] = self.of_id[8]
                schema["fields"][-1]["type"] = place
            values.append(_encoded(record, schema, _wire(id_)))
            wanted.append(
                {**_wanted(number), **({"item": -1} if id_ == 2 else {})}
            )
        found = self._parse(values)
        self.assertEqual(found.reasons, {})
        self.assertEqual(_rows(found.part), wanted)
        count = len(_Registry.asked)
        self._parse(values)
        self.assertLen(_Registry.asked, count)

    def test_messages_that_cannot_be_read(self):
        good = _encoded(_click(1), header=_wire(1))
        with self.assertLogs("tf_ext", "WARNING") as logs:
            found = self._parse(
                [
                    _encoded(_click(1), header=_wire(3)),
                    good,
                    _encoded(_click(1), header=_wire(5)),
                    _encoded(_click(1), header=_wire(77)),
                    b"\1" + good[1:],
                    b"\0\0\0",
                    good[:-1],
                ]
            )
        self.assertEqual(
            found.reasons,
            {
                0: "other schema",
                2: "other schema",
                3: "other schema",
                4: "no schema id",
                5: "no schema id",
                6: "no Avro record",
            },
        )
        self.assertEqual(_rows(found.part), [_wanted(1)])
        self.assertIn("each field of the schema", logs.output[0])
        self.assertIn("of PROTOBUF", logs.output[1])
        self.assertIn("there is none", logs.output[2])

    @mock.patch("tf_ext.data.avro_files._ABSENT_SECONDS", 0.0)
    def test_a_schema_that_comes_later(self):
        value = _encoded(_click(1), header=_wire(1))
        with mock.patch.dict(_Registry.schemas, {1: None}):
            self.assertLen(self._parse([value]).reasons, 1)
        self.assertEqual(self._parse([value]).reasons, {})

    def test_a_registry_that_is_away(self):
        settings = {"url": "http://127.0.0.1:1", "max.retries": 0}
        parser = MessageParser(_SCHEMA, Avro(registry=settings), {})
        value = _encoded(_click(1), header=_wire(1))
        with self.assertRaisesRegex(
            tf_ext.data.SourceError, "The schema 1 of messages is not known"
        ):
            parser.parse([Message("a", 1, value)])
        with self.assertRaisesRegex(ValueError, "`registry` of Avro"):
            MessageParser(_SCHEMA, Avro(registry={"url": "a", "x": 1}), {})


if __name__ == "__main__":
    absltest.main()
