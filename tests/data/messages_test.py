# SPDX-License-Identifier: Apache-2.0
"""Messages: each is a record, or malformed, in every format."""

import random

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

import tf_ext
from tf_ext.data.messages import MessageParser

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
Message = tf_ext.data.Message


class MessageTest(parameterized.TestCase):
    """Every message is a record, or malformed: none moves to another's."""

    def _check(self, schema, format, cases, envelope=None):
        """Cases are `(value, the record or why it is malformed)`."""
        rng = random.Random(1)
        parser = MessageParser(schema, format, envelope or {})
        chosen_ones = [
            [rng.choice(cases) for _ in range(size)] for size in (1, 2, 7, 40)
        ]
        # Where all are alike, none may need a look of its own.
        chosen_ones += [[case, cases[0], case] for case in cases]
        for chosen in chosen_ones:
            messages = [
                value if isinstance(value, Message) else Message("a", n, value)
                for n, (value, _) in enumerate(chosen)
            ]
            found = parser.parse(messages)
            names = [*found.part.dense]
            columns = [
                np.asarray(found.part.dense[name]).tolist() for name in names
            ]
            rows = dict(
                zip(
                    found.kept.tolist(), zip(*columns, strict=True), strict=True
                )
            )
            for row, (value, wanted) in enumerate(chosen):
                if isinstance(wanted, str):
                    self.assertEqual(found.reasons.get(row), wanted, value)
                else:
                    self.assertIn(row, rows, value)
                    got = dict(zip(names, rows[row], strict=True))
                    self.assertEqual(got, wanted)

    def test_json(self):
        schema = Schema([Field("x", "int64"), Field("y", default="-")])
        self._check(
            schema,
            "jsonl",
            [
                (b'{"x": 1}', {"x": 1, "y": b"-"}),
                (b'{"x": 2, "y": "a"}\n', {"x": 2, "y": b"a"}),
                (b'{\r\n  "x": 3,\n  "y": "b"\n}\n', {"x": 3, "y": b"b"}),
                (b'{"x": 4, "y": "a\nb"}', "bad JSON"),
                (b'{"x": 5}\n{"x": 6}', "bad JSON"),
                (b'{"x": 7} {"x": 8}', "bad JSON"),
                (b"[1]", "no JSON object"),
                (b'{"x": "a"}', "wrong type"),
                (b'{"y": "a"}', "missing value"),
                (b"", "empty message"),
                (b"{", "bad JSON"),
                (b'{"x": 1, "y": "\xff"}', "invalid UTF-8"),
                (b"\n", "bad JSON"),
            ],
        )

    def test_csv(self):
        schema = Schema([Field("x", "int64"), Field("y")])
        self._check(
            schema,
            "csv",
            [
                (b"1,a", {"x": 1, "y": b"a"}),
                (b"2,b\r\n", {"x": 2, "y": b"b"}),
                (b'3,"c\nd"', {"x": 3, "y": b"c\nd"}),
                (b'4,"e\n\n""f"\n', {"x": 4, "y": b'e\n\n"f'}),
                (b"5,g\n6,h", "line break"),
                (b'5,"g"\n6,h', "line break"),
                (b'5,"g\nh"\n6,i', "line break"),
                (b'7,"i', "wrong quotes"),
                (b'8,"j\n', "wrong quotes"),
                (b"9", "wrong number of fields"),
                (b'"1\nz",2', "bad number"),
                (b"z,a", "bad number"),
                (b"", "empty message"),
                (b"\n", "empty message"),
                (b"1,\0", "NUL byte"),
            ],
        )

    def test_tsv_and_dialects(self):
        schema = Schema([Field("x", "int64"), Field("y")])
        self._check(
            schema,
            "tsv",
            [
                (b'1\t"a', {"x": 1, "y": b'"a'}),
                (b'2\t"a\nb"', "line break"),
            ],
        )
        self._check(
            schema,
            tf_ext.data.Csv(
                "::", quotes=False, encoding="latin-1", comment="#", strip=True
            ),
            [
                (b"1:: \xe9 ", {"x": 1, "y": "\u00e9".encode()}),
                (b"# 2::b", "empty message"),
            ],
        )

    def test_optional_fields(self):
        schema = Schema(
            [
                Field("x", "int64"),
                Field("y", default="?", optional=True),
                Field("z", "int64", default=7, optional=True),
            ]
        )
        cases = [
            (b"1", {"x": 1, "y": b"?", "z": 7}),
            (b"2,a", {"x": 2, "y": b"a", "z": 7}),
            (b"3,b,4", {"x": 3, "y": b"b", "z": 4}),
            (b"5,c,x", "bad number"),
            (b"x,c", "bad number"),
            (b"6,c,6,6", "wrong number of fields"),
            (b'7,"d\n"', {"x": 7, "y": b"d\n", "z": 7}),
            (b"", "empty message"),
        ]
        self._check(schema, "csv", cases)
        # Without one that needs a look of its own.
        self._check(schema, "csv", cases[:5])

    def test_optional_bags(self):
        schema = Schema(
            [Field("x"), Field("bag", separator="|", optional=True)]
        )
        parser = MessageParser(schema, "csv", {})
        values = [b"a", b"b,1|2", b"c", b"d,", b"e,3"]
        messages = [Message("a", n, value) for n, value in enumerate(values)]
        part = parser.parse(messages).part
        self.assertEqual(
            part.dense["x"].to_pylist(), [*map(bytes, zip(b"abcde"))]
        )
        bag = part.bags["bag"]
        self.assertEqual(bag.splits.tolist(), [0, 0, 2, 2, 2, 3])
        self.assertEqual(bag.values.to_pylist(), [b"1", b"2", b"3"])

    def test_examples(self):
        def example(**features):
            return tf.train.Example(
                features=tf.train.Features(feature=features)
            ).SerializeToString()

        def ints(*values):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

        self._check(
            Schema([Field("x", "int64")]),
            "tfrecord",
            [
                (example(x=ints(1)), {"x": 1}),
                (example(x=ints(2), z=ints(3)), {"x": 2}),
                (example(x=ints(2, 3)), "several values"),
                (example(z=ints(2, 3)), "missing value"),
                (b"\xff\xff\xff", "no tf.train.Example"),
                (b"", "empty message"),
            ],
        )

    def test_envelopes(self):
        schema = Schema(
            [
                Field("u"),
                Field("x", "int64"),
                Field("age", "int32", default=-1),
                Field("at", "int64", time="ms"),
            ]
        )

        def message(value, key, age=None, at=b"1000"):
            headers = {"age": age, "at": at}
            known = {k: v for k, v in headers.items() if v is not None}
            return Message("a", 0, value, key, known)

        self._check(
            schema,
            "csv",
            [
                (
                    message(b"1", b"ann", b"7"),
                    {"x": 1, "u": b"ann", "age": 7, "at": 1},
                ),
                (
                    message(b"2", None, at=b"2026-11-27T00:00:00Z"),
                    {"x": 2, "u": b"", "age": -1, "at": 1795737600},
                ),
                (message(b"3", b"bob", b"x"), "bad number"),
                (message(b"3", b"bob", at=None), "missing value"),
                (message(b"x", b"bob"), "bad number"),
                (message(b"x", b"bob", at=b"x"), "bad number"),
            ],
            {"u": "key", "age": "header:age", "at": "header:at"},
        )

    def test_bags_in_envelopes(self):
        schema = Schema([Field("x", "int64"), Field("tags", separator="|")])
        parser = MessageParser(schema, "csv", {"tags": "header:tags"})
        messages = [
            Message("a", 1, b"1", headers={"tags": b"r|s"}),
            Message("a", 2, b"?", headers={"tags": b"t"}),
            Message("a", 3, b"3"),
        ]
        part = parser.parse(messages).part
        self.assertEqual(part.bags["tags"].values.to_pylist(), [b"r", b"s"])
        self.assertEqual(part.bags["tags"].splits.tolist(), [0, 2, 2])
        schema = Schema([Field("x"), Field("tags", bag=True)])
        with self.assertRaisesRegex(ValueError, "`envelope` of stream"):
            MessageParser(schema, "jsonl", {"tags": "key"})


if __name__ == "__main__":
    absltest.main()
