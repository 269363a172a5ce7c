# SPDX-License-Identifier: Apache-2.0
"""Fields of objects within objects, by themselves and in lines of JSON."""

import pyarrow as pa
from absl.testing import absltest, parameterized

import tf_ext
from tf_ext.data import json_files, paths

Field, Schema = tf_ext.data.Field, tf_ext.data.Schema


class PathsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("a", ["a"]),
        ("a.b.c", ["a", "b", "c"]),
        (".", ["."]),
        ("a.", ["a."]),
        ("a..b", ["a..b"]),
    )
    def test_steps(self, name, steps):
        self.assertEqual(paths.steps_of(name), steps)
        self.assertEqual(paths.roots_of(name)[0], name)
        self.assertEqual(paths.roots_of(name)[-1], steps[0])

    def test_conflicts(self):
        names = ["a.b", "a", "c.d.e", "c.d", "f.g", "f.h", "b"]
        self.assertEqual(paths.conflicts(names), ["a", "c.d"])

    @parameterized.parameters(
        ({"a": {"b": 1}}, "a.b", 1),
        ({"a.b": 2, "a": {"b": 1}}, "a.b", 2),
        ({"a.b": None, "a": {"b": 1}}, "a.b", 1),
        ({"a": {"b": {"c": 0}}}, "a.b.c", 0),
        ({"a": 3}, "a", 3),
        ({}, "a", None),
        ({}, "a.b", None),
        ({"a": None}, "a.b.c", None),
        ({"a": {}}, "a.b.c", None),
        ({"a": {"b": None}}, "a.b", None),
    )
    def test_values(self, record, name, value):
        self.assertEqual(paths.value_of(record, name), value)

    @parameterized.parameters(
        ({"a": 3}, "a.b"),
        ({"a": [{"b": 1}]}, "a.b"),
        ({"a": {"b": ""}}, "a.b.c"),
    )
    def test_what_is_no_object(self, record, name):
        with self.assertRaisesRegex(TypeError, "is looked for in no object"):
            paths.value_of(record, name)

    def test_types(self):
        schema = paths.schema_of({"a.b": pa.int64(), "c": pa.string()})
        for name, type_ in (
            ("a.b", pa.int64()),
            ("c", pa.string()),
            ("a", pa.struct([("b", pa.int64())])),
            ("a.d", None),
            ("a.b.d", None),
            ("c.d", None),
            ("d", None),
            ("d.a", None),
        ):
            self.assertEqual(paths.type_at(schema, name), type_)

    def test_columns(self):
        schema = paths.schema_of({"a.b": pa.int64()})
        for rows, values in (
            ([{"a": {"b": 1}}, {"a": None}, {}], [1, None, None]),
            ([{"a.b": 1}, {"a.b": 2}], [1, 2]),
            ([{"a.b": 1}, {"a": {"b": 3}}, {}], [1, 3, None]),
        ):
            table = pa.Table.from_pylist(rows, schema)
            found = paths.column_of(table, "a.b").to_pylist()
            self.assertEqual(found, values)


class JsonTest(parameterized.TestCase):
    @parameterized.parameters(
        (b'{"n": 1e40}', json_files.BAD_NUMBER),
        (b'{"n": 1e40, "a": null}', json_files.BAD_NUMBER),
        (b'{"n": 1, "a": 3}', json_files.WRONG_TYPE),
        (b'{"n": 1, "a": {"b": 3}}', json_files.WRONG_TYPE),
        (b'{"n": 1', json_files.BAD_JSON),
    )
    def test_why_a_line_is_malformed(self, line, reason):
        fields = [Field("n", "int32"), Field("a.b", optional=True, default="")]
        parsed = json_files.JsonFiles(Schema(fields)).messages(
            [b'{"n": 1, "a": {"b": "x"}}', line, b'{"n": 2}']
        )
        [malformed] = parsed.malformed
        self.assertEqual((malformed.number, malformed.reason), (2, reason))

    def test_times_of_which_the_first_line_lacks_some(self):
        # Of this line it is also found out in which form times are.
        fields = [
            Field("t", "int64", time="s"),
            Field("a.t", "int64", time="s", default=7),
        ]
        lines = [
            b'{"t": "1970-01-01T00:00:01Z"}',
            b'{"t": "1970-01-01T00:00:02Z", "a": {"t": 3}}',
        ]
        parsed = json_files.JsonFiles(Schema(fields)).messages(lines)
        self.assertEmpty(parsed.malformed)
        found = {k: list(v) for k, v in parsed.part.dense.items()}
        self.assertEqual(found, {"t": [1, 2], "a.t": [7, 3]})


if __name__ == "__main__":
    absltest.main()
