# SPDX-License-Identifier: Apache-2.0
"""Ids as other programs write them: as floats, texts, in objects, in bags."""

import json
import pathlib
import tempfile

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from read_util import read_whole

import tf_ext

pytestmark = pytest.mark.slow_tests(
    "ParquetTest::test_floats_that_are_no_integers[12]",
    "ParquetTest::test_texts_of_numbers[13]",
)


Field, Schema = tf_ext.data.Field, tf_ext.data.Schema
_TYPES = ("int32", "int64", "uint64")


class _IdsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.path = pathlib.Path(folder) / "file"

    def _read(self, fields, format, missing=("",)):
        return read_whole(self.path, fields, format, missing)

    def _parquet(self, **columns):
        parquet.write_table(pa.table(columns), self.path)


class ParquetTest(_IdsTest):
    def test_floats_of_pandas(self):
        frame = pandas.DataFrame({"a": [7, None, 2**53], "n": [0, 1, 2]})
        frame.to_parquet(self.path)
        self.assertEqual(frame["a"].dtype, np.float64)
        for dtype in ("int64", "uint64"):
            fields = [Field("a", dtype, default=3), Field("n", "int32")]
            found, errors = self._read(fields, "parquet")
            self.assertEqual(found, {"a": [7, 3, 2**53], "n": [0, 1, 2]})
            self.assertEqual(errors, {})
        found, errors = self._read([Field("a"), Field("n")], "parquet")
        self.assertEqual(found["a"], [b"7", b"", b"9007199254740992"])
        # As of integers in other files, for one column of the model.
        column = tf_ext.feature_column.category_column("a")
        self.assertEqual(
            list(column.signs(found["a"][:1])), list(column.signs([7]))
        )

    @parameterized.parameters(pa.float16(), pa.float32(), pa.float64())
    def test_floats_that_are_no_integers(self, type_):
        most = {16: 2**11, 32: 2**24, 64: 2**53}[type_.bit_width]
        values = [0.5, most, 2 * most, -2 * most, float("inf"), float("nan")]
        values = np.array([*values, -0.0], f"f{type_.bit_width // 8}")
        self._parquet(a=pa.array(values, type_), n=range(7))
        for field in (Field("a", "int64"), Field("a")):
            found, errors = self._read([field, Field("n", "int32")], "parquet")
            self.assertEqual(
                [int(v) for v in found["a"] if v != b""], [most, 0]
            )
            bad = {"bad number": 4}
            if field.dtype == "int64":
                bad["missing value"] = 1
            self.assertEqual(errors, bad)

    def test_floats_of_each_range(self):
        self._parquet(a=[-1.0, 2.0**31, 2.0**32, 3.0], n=range(4))
        for dtype, rows in (("int32", [0, 3]), ("uint64", [1, 2, 3])):
            fields = [Field("a", dtype), Field("n", "int32")]
            found, _ = self._read(fields, "parquet")
            self.assertEqual(found["n"], rows)

    @parameterized.parameters(
        pa.string(), pa.large_string(), pa.binary(), "dictionary"
    )
    def test_texts_of_numbers(self, type_):
        texts = ["7", "?", None, " +8.0", "x", "18446744073709551615", ""]
        column = pa.array(texts)
        if type_ == "dictionary":
            column = column.dictionary_encode()
        else:
            column = column.cast(type_)
        self._parquet(a=column, n=range(7))
        fields = [Field("a", "uint64", default=1), Field("n", "int64")]
        found, errors = self._read(fields, "parquet", missing=["", "?"])
        self.assertEqual(found["a"], [7, 1, 1, 8, 2**64 - 1, 1])
        self.assertEqual(found["n"], [0, 1, 2, 3, 5, 6])
        self.assertEqual(errors, {"bad number": 1})
        fields = [Field("a", "float32", default=-1.0), Field("n", "int64")]
        found, errors = self._read(fields, "parquet", missing=["", "?"])
        self.assertEqual(found["a"], [7, -1, -1, 8, np.float32(2**64), -1])

    def test_texts_that_are_not_utf_8(self):
        texts = pa.array([b"7", b"\xff", b"2026-01-31", b"9"], pa.binary())
        self._parquet(a=texts, b=texts, n=range(4))
        fields = [Field("n", "int64"), Field("a", "int64", time="s")]
        found, errors = self._read(fields, "parquet")
        self.assertEqual(found["n"], [0, 2, 3])
        self.assertEqual(errors, {"bad time": 1})
        found, errors = self._read([Field("b", "int32")], "parquet")
        self.assertEqual((found, errors), ({"b": [7, 9]}, {"bad number": 2}))

    def test_lists(self):
        self._parquet(
            floats=[[1.0, 2.0], [], None, [0.5], [None]],
            texts=[["1"], ["2", "3.0"], None, ["4"], ["5"]],
            n=range(5),
        )
        fields = [
            Field("floats", bag=True),
            Field("texts", "int64", bag=True),
            Field("n", "int64"),
        ]
        found, errors = self._read(fields, "parquet")
        self.assertEqual(found["floats"], [[b"1", b"2"], [], []])
        self.assertEqual(found["texts"], [[1], [2, 3], []])
        self.assertEqual(errors, {"bad number": 1, "missing value": 1})

    def test_decimals_and_columns_of_nothing(self):
        ids = pa.array([7, 8]).cast(pa.decimal128(38, 0))
        self._parquet(a=ids, b=pa.nulls(2), c=pa.nulls(2), d=pa.nulls(2))
        fields = [Field("a", "uint64"), Field("b", "int32", default=5)]
        fields += [Field("c", default="x"), Field("d", bag=True)]
        found, _ = self._read(fields, "parquet")
        expected = {"a": [7, 8], "b": [5, 5], "c": [b"x"] * 2, "d": [[], []]}
        self.assertEqual(found, expected)


class JsonTest(_IdsTest):
    @parameterized.parameters(*_TYPES)
    def test_floats_of_pandas(self, dtype):
        frame = pandas.DataFrame({"a": [7, None, 9], "s": ["x.0", "y", "z"]})
        frame.to_json(self.path, orient="records", lines=True)
        self.assertIn('"a":7.0', self.path.read_text())
        fields = [Field("a", dtype, default=3), Field("s")]
        found, errors = self._read(fields, "jsonl")
        self.assertEqual(found, {"a": [7, 3, 9], "s": [b"x.0", b"y", b"z"]})
        self.assertEqual(errors, {})

    def test_beside_other_numbers(self):
        lines = [
            *('{"a": 7.0, "b": 18446744073709551615}', '{"a": 7.5, "b": 1}'),
            *('{"a": "7", "b": 1}', '{"a": 7, "b": 1.0, "c": [8.0, 9]}'),
            *('{"a": 1e3, "b": 1, "c": [8.5]}', '{"a": true, "b": 1.0}'),
            *('{"a": 9223372036854775808.0, "b": 1}', '{"a": 8, "b": -1.0}'),
            *('{"a": 9007199254740993.0, "b": 1}', '{"a": "7.0", "b": 1}'),
        ]
        self.path.write_text("\n".join(lines))
        fields = [Field("a", "int64"), Field("b", "uint64")]
        fields += [Field("c", "int32", bag=True)]
        found, errors = self._read(fields, "jsonl")
        self.assertEqual(found["a"], [7, 7, 9007199254740993])
        self.assertEqual(found["b"], [2**64 - 1, 1, 1])
        self.assertEqual(found["c"], [[], [8, 9], []])
        self.assertEqual(errors, {"bad number": 4, "wrong type": 3})

    def test_fields_of_objects(self):
        records = [
            {"user": {"geo": {"country": "fr", "ids": [1, 2]}, "age": 7.0}},
            {"user": {"geo": None, "age": 8}, "x": {"geo": 1}},
            {"user.geo.country": "de", "user": {"age": 1}},
            {"user": {"geo": {"country": "it"}}, "user.age": 2},
            {"user": 3},
            {"user": {"geo": [], "age": 1}},
            {"user": {"geo": {"country": 5}, "age": 1}},
            {"user": None, "user.age": 3},
            {"n": 1},
        ]
        self.path.write_text("\n".join(map(json.dumps, records)))
        fields = [
            Field("user.geo.country", default="?"),
            Field("user.geo.ids", "int64", bag=True),
            Field("user.age", "int32"),
        ]
        found, errors = self._read(fields, "jsonl")
        self.assertEqual(
            found["user.geo.country"], [b"fr", b"?", b"de", b"it", b"?"]
        )
        self.assertEqual(found["user.geo.ids"], [[1, 2], [], [], [], []])
        self.assertEqual(found["user.age"], [7, 8, 1, 2, 3])
        self.assertEqual(errors, {"missing value": 1, "wrong type": 3})

    def test_a_name_with_points_is_none_of_a_path(self):
        self.path.write_text('{"a.": "x", ".b": "y", "c..d": "z"}')
        fields = [Field("a."), Field(".b"), Field("c..d")]
        found, _ = self._read(fields, "jsonl")
        self.assertEqual(found, {"a.": [b"x"], ".b": [b"y"], "c..d": [b"z"]})

    def test_a_field_that_has_fields(self):
        schema = Schema([Field("a.b"), Field("a.b.c")])
        self.path.write_text("{}")
        with self.assertRaisesRegex(
            ValueError, r"`schema` of read must be .* as \['a.b'\] are"
        ):
            tf_ext.data.read(self.path, schema, "jsonl", batch_size=1)


class UnsignedTest(_IdsTest):
    def test_of_tfrecord_have_the_bits_of_int64(self):
        with tf.io.TFRecordWriter(str(self.path)) as file:
            for value in (7, -1):
                ids = tf.train.Int64List(value=[value])
                feature = {"a": tf.train.Feature(int64_list=ids)}
                whole = tf.train.Features(feature=feature)
                file.write(tf.train.Example(features=whole).SerializeToString())
        for bag, expected in (
            (False, [7, 2**64 - 1]),
            (True, [[7], [2**64 - 1]]),
        ):
            found, _ = self._read([Field("a", "uint64", bag=bag)], "tfrecord")
            self.assertEqual(found["a"], expected)

    def test_signs_are_those_of_their_texts(self):
        self.path.write_text("18446744073709551615\n5\n")
        found, _ = self._read([Field("a", "uint64", default=2**64 - 2)], "csv")
        self.assertEqual(found["a"], [2**64 - 1, 5])
        column = tf_ext.feature_column.category_column("a")
        texts = ["18446744073709551615", "5"]
        self.assertEqual(
            list(column.signs(np.array(found["a"], np.uint64))),
            list(column.signs(texts)),
        )

    def test_defaults(self):
        default = 2**64 - 2
        self.path.write_text("x,\ny,1\n")
        fields = [Field("s"), Field("a", "uint64", default=default)]
        self.assertEqual(self._read(fields, "csv")[0]["a"], [default, 1])
        with self.assertRaisesRegex(ValueError, "`default` of Field 'a'"):
            Field("a", "uint64", default=-1)


class BagsTest(_IdsTest):
    def test_separators_behind_the_last_value(self):
        self.path.write_text("a|b|,1|2|\n|,3\n||,4|\n|a,|\nb,\n,5|6\nc||d|,\n")
        fields = [Field("s", separator="|")]
        fields.append(Field("n", "int64", separator="|"))
        found, errors = self._read(fields, "csv")
        self.assertEqual(
            found["s"],
            [[b"a", b"b"], [b""], [b"", b""], [b"b"], [], [b"c", b"", b"d"]],
        )
        self.assertEqual(found["n"], [[1, 2], [3], [4], [], [5, 6], []])
        self.assertEqual(errors, {"bad number": 1})

    def test_of_several_bytes_and_with_weights(self):
        self.path.write_text("a:1--b:2--,x\n--,y\na:1-,z\n")
        fields = [Field("s", separator="--", weight_separator=":"), Field("t")]
        found, errors = self._read(fields, "csv")
        self.assertEqual(found["s"], [[b"a", b"b"]])
        self.assertEqual(found["s_weight"], [[1.0, 2.0]])
        self.assertEqual(errors, {"bad weight": 1, "bad number": 1})


if __name__ == "__main__":
    absltest.main()
