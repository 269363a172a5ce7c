# SPDX-License-Identifier: Apache-2.0
"""Datasets of JSON lines, TFRecord and Parquet files."""

import json
import pathlib
import struct
import tempfile
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized
from oracles import readable_records as records
from oracles.readable_files import numbers_of
from oracles.readable_records import FORMATS, SCHEMA, Field

import tf_ext
import tf_ext.data.arrow
import tf_ext.data.lines
from tf_ext.data import formats, json_files, parquet_files
from tf_ext.data import lines as lines_module

pytestmark = pytest.mark.slow_tests(
    "MalformedTest::test_exactly_the_malformed_records_are_lost[02]",
    "ReadTest::test_blocks_shuffles_and_*",
    "ReadTest::test_values_types_and_shapes[234]",
)


Schema = tf_ext.data.Schema
# Each kind of bad line once, at 1 % of them.
_RECORDS = 3100


class _FilesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.path = pathlib.Path(folder, "file")

    def _refused(self, format, message, schema=SCHEMA):
        reader = formats.reader_of(schema, format, False, 1)
        with self.assertRaisesRegex(tf_ext.data.DamagedFileError, message):
            for parse in reader.blocks(str(self.path)):
                parse()


class ReadTest(_FilesTest):
    @parameterized.product(format=FORMATS, compressed=[False, True])
    def test_values_types_and_shapes(self, format, compressed):
        records.write(self.path, format, range(10), compressed)
        dataset = tf_ext.data.read(self.path, SCHEMA, format, batch_size=4)
        features, labels = dataset.element_spec
        self.assertEqual(labels, tf.TensorSpec([None], tf.float32))
        self.assertEqual(
            features["tags"], tf.RaggedTensorSpec([None, None], tf.string)
        )
        rows = []
        for features, labels in dataset:
            columns = [
                value.to_list()
                if isinstance(value, tf.RaggedTensor)
                else value.numpy().tolist()
                for value in (labels, *features.values())
            ]
            rows += zip(*columns, strict=True)
        self.assertLen(rows, 10)
        for number, row in enumerate(rows):
            one = records.record(number)
            price = -1.0 if one["price"] is None else one["price"]
            tags = [tag.encode() for tag in one["tags"]]
            self.assertEqual(
                row,
                (
                    *(one["label"], number, price, one["name"].encode()),
                    *(tags, one["tags_weight"]),
                ),
            )

    @parameterized.parameters(*FORMATS)
    def test_blocks_shuffles_and_resumes(self, format):
        records.write(self.path, format, range(300))
        with (
            mock.patch.object(tf_ext.data.lines, "BLOCK_BYTES", 700),
            mock.patch.object(parquet_files, "BLOCK_ROWS", 10),
        ):

            def read(**kwargs):
                return tf_ext.data.read(
                    self.path, SCHEMA, format, batch_size=16, **kwargs
                )

            self.assertEqual(numbers_of(read()), list(range(300)))
            shuffled = read(shuffle=100, repeat=True)
            whole = numbers_of(shuffled.take(40))
            self.assertCountEqual(whole[:300], range(300))
            self.assertNotEqual(whole[:300], list(range(300)))
            self.assertEqual(
                numbers_of(shuffled.skip(17).take(23)), whole[272:]
            )

    @parameterized.parameters(
        # By the number of values, evenly; of so many columns there are more.
        (1000, (350, 350)),
        (500, (234, 234, 232)),
        (5, (234, 234, 232)),
        (1 << 20, (700,)),
    )
    def test_rows_of_blocks_of_parquet(self, values, expected):
        table = pa.table({"a": range(700), "b": ["x", "y"] * 350})
        parquet.write_table(table, self.path)
        fields = [
            tf_ext.data.Field("a", "float32"),
            tf_ext.data.Field("b", "string"),
        ]
        reader = parquet_files.ParquetFiles(tf_ext.data.Schema(fields), 1)
        with mock.patch.object(parquet_files, "_BLOCK_VALUES", values):
            blocks = reader.blocks(str(self.path))
            rows = [parse().part.rows for parse in blocks]
        self.assertEqual(tuple(rows), expected)

    def test_parquet_that_only_tensorflow_can_open(self):
        records.write(self.path, "parquet", range(70))
        file = f"file://{self.path}"
        dataset = tf_ext.data.read(file, SCHEMA, "parquet", batch_size=16)
        self.assertEqual(numbers_of(dataset), list(range(70)))

    @parameterized.parameters(*FORMATS)
    def test_labels_and_weights(self, format):
        records.write(self.path, format, [3, 10])
        fields = [Field("label", "float32"), Field("number", "int32")]
        fields += [Field("price", "float32", default=-2.0)]
        schema = Schema(
            fields, label=["label", "number"], sample_weight="price"
        )
        [(features, labels, weights)] = tf_ext.data.read(
            self.path, schema, format, batch_size=8
        )
        self.assertEqual(features, {})
        self.assertEqual(labels["label"].numpy().tolist(), [1.0, 0.0])
        self.assertEqual(labels["number"].numpy().tolist(), [3, 10])
        self.assertEqual(weights.numpy().tolist(), [0.75, -2.0])

    @parameterized.parameters("csv", "tsv", *FORMATS)
    def test_without_pyarrow(self, format):
        self.path.write_bytes(b"")
        with (
            mock.patch.object(tf_ext.data.arrow, "pa", None),
            self.assertRaisesRegex(
                ImportError,
                rf"read\(format='{format}'\) needs pyarrow: pip install "
                r"'tf-ext\[data\]'$",
            ),
        ):
            tf_ext.data.read(
                self.path, Schema([Field("x")]), format, batch_size=1
            )

    @parameterized.parameters(*FORMATS)
    def test_fields_of_text(self, format):
        texts = [
            {"x": "1|2", "w": "a:1|b:2", "v": "yes", "i": 7},
            {"x": "", "v": "no"},
            {"x": "1|x", "v": "no"},
            {"v": "maybe"},
            {"v": "no", "i": 2**31},
        ]
        if format == "parquet":
            parquet.write_table(pa.Table.from_pylist(texts), self.path)
        elif format == "jsonl":
            self.path.write_text("\n".join(map(json.dumps, texts)))
        else:
            records.write_records(self.path, map(_example, texts))
        fields = [
            Field("x", "int64", separator="|"),
            Field("w", separator="|", weight_separator=":"),
            Field("v", "float32", values={"yes": 1.0, "no": 0.0}),
            Field("i", "int32", default=-5),
        ]
        errors = tf_ext.data.ReadErrors()
        [batch] = tf_ext.data.read(
            self.path,
            Schema(fields),
            format,
            batch_size=8,
            max_errors=1.0,
            errors=errors,
        )
        self.assertEqual(batch["x"].to_list(), [[1, 2], []])
        self.assertEqual(batch["w"].to_list(), [[b"a", b"b"], []])
        self.assertEqual(batch["w_weight"].to_list(), [[1.0, 2.0], []])
        self.assertEqual(batch["v"].numpy().tolist(), [1.0, 0.0])
        self.assertEqual(batch["i"].numpy().tolist(), [7, -5])
        self.assertEqual(errors.errors, 3)

    def test_types_of_parquet(self):
        columns = {
            "bool": pa.array([True, False]),
            "uint64": pa.array([3, 2**63], pa.uint64()),
            "decimal": pa.array([1, 2]).cast(pa.decimal128(20, 1)),
            "large": pa.array(["a", None], pa.large_string()),
            "dictionary": pa.array(["b", None]).dictionary_encode(),
            "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
        }
        parquet.write_table(pa.table(columns), self.path)
        fields = [Field("bool", "int32"), Field("uint64", "int64")]
        fields += [Field("decimal", "float32"), Field("large")]
        fields += [Field("dictionary"), Field("fixed", "float32", bag=True)]
        errors = tf_ext.data.ReadErrors()
        [batch] = tf_ext.data.read(
            self.path,
            Schema(fields),
            "parquet",
            batch_size=8,
            max_errors=1.0,
            errors=errors,
        )
        self.assertEqual(errors.by_reason(), {"bad number": 1})
        found = [value.numpy().tolist()[0] for value in batch.values()]
        self.assertEqual(found[:5], [1, 3, 1.0, b"a", b"b"])
        self.assertEqual(found[5], [1.0, 2.0])


def _example(values):
    features = {
        name: tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[value.encode()])
        )
        if isinstance(value, str)
        else tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        for name, value in values.items()
    }
    whole = tf.train.Features(feature=features)
    return tf.train.Example(features=whole).SerializeToString()


class MalformedTest(_FilesTest):
    @parameterized.parameters(*FORMATS)
    def test_exactly_the_malformed_records_are_lost(self, format):
        numbers, counts = records.write_broken(self.path, format, _RECORDS)
        errors = tf_ext.data.ReadErrors()
        # The share of the first blocks may be above that of the file.
        dataset = tf_ext.data.read(
            self.path,
            SCHEMA,
            format,
            batch_size=256,
            max_errors=0.02,
            errors=errors,
        )
        with self.assertLogs("tf_ext") as logs:
            self.assertEqual(numbers_of(dataset), numbers)
        self.assertEqual(errors.by_file(), {str(self.path): counts})
        self.assertEqual((errors.records, errors.errors), (_RECORDS, 31))
        unit = {"jsonl": "line", "tfrecord": "record", "parquet": "row"}
        self.assertLen(logs.output, 11)
        for index, line in enumerate(logs.output[:-1]):
            place = f"file, {unit[format]} {index * 100 + 51}: "
            self.assertIn(place, line)
        dataset = tf_ext.data.read(
            self.path, SCHEMA, format, batch_size=256, max_errors=0.005
        )
        with self.assertRaisesRegex(
            tf.errors.InvalidArgumentError,
            r"\d+ of the first \d+ records are malformed, a share above "
            r"max_errors=0\.005\. In the first files: .*/file: \d+ \w+ ",
        ):
            list(dataset)

    def test_each_kind_of_bad_line(self):
        good = [records.json_line(1), records.json_line(2)]
        for line, reason in records.bad_lines():
            self.path.write_bytes(b"\n".join([good[0], line, good[1]]))
            block = tf_ext.data.lines.Lines(self.path.read_bytes() + b"\n", 1)
            reader = tf_ext.data.json_files.JsonFiles(SCHEMA)
            parsed = reader.parse(block)
            self.assertEqual(parsed.malformed, [(2, reason)], line[:80])
            self.assertEqual(parsed.part.dense["number"].tolist(), [1, 2])

    def test_pyarrow_does_not_see_what_it_may_not_survive(self):
        for line in (b"null", b"{}null{}", b"{} null"):
            lines = lines_module.Lines(line + b"\n{}\n", 1)
            found = json_files._objects(lines_module.check(lines, None))
            self.assertEqual(found.data, b"{}\n")
            self.assertEqual(found.numbers.tolist(), [2])

    @parameterized.parameters(
        (records.bad_examples, records.example), (records.bad_rows, None)
    )
    def test_each_kind_of_bad_record(self, cases, make):
        for bad, reason in cases():
            if make:
                files = [make(1), bad, make(2)]
                records.write_records(self.path, files)
                reader = tf_ext.data.record_files.RecordFiles(SCHEMA)
            else:
                rows = [records.record(1), bad, records.record(2)]
                records.write_parquet(self.path, rows)
                reader = tf_ext.data.parquet_files.ParquetFiles(SCHEMA, 1)
            [parse] = list(reader.blocks(str(self.path)))
            parsed = parse()
            self.assertEqual(parsed.malformed, [(2, reason)])
            self.assertEqual(parsed.part.dense["number"].tolist(), [1, 2])

    def test_a_wrong_checksum_costs_one_record(self):
        records.write(self.path, "tfrecord", range(200))
        data = bytearray(self.path.read_bytes())
        data[20] ^= 1
        self.path.write_bytes(data)
        errors = tf_ext.data.ReadErrors()
        dataset = tf_ext.data.read(
            self.path, SCHEMA, "tfrecord", batch_size=16, errors=errors
        )
        self.assertEqual(numbers_of(dataset), list(range(1, 200)))
        self.assertEqual(errors.by_reason(), {"wrong checksum": 1})


class DamagedFileTest(_FilesTest):
    def test_lengths_of_records(self):
        records.write(self.path, "tfrecord", range(3))
        data = self.path.read_bytes()
        [size] = struct.unpack_from("<Q", data)
        second = size + 16
        damaged = bytearray(data)
        damaged[second] ^= 1
        self.path.write_bytes(damaged)
        self._refused(
            "tfrecord",
            f"file is damaged at byte {second}: the length of record 2 does",
        )
        for end in (second + 5, len(data) - 1):
            self.path.write_bytes(data[:end])
            self._refused("tfrecord", "file ends within record [23], which beg")
        # Names a length that is none of a record.
        huge = struct.pack("<Q", 1 << 40)
        checksum = tf_ext._core.crc32c(huge)
        masked = (checksum >> 15 | checksum << 17) + 0xA282EAD8 & 0xFFFFFFFF
        self.path.write_bytes(data + huge + struct.pack("<I", masked))
        self._refused("tfrecord", "record 4 is above 64 MiB")

    def test_a_record_with_the_length_of_gzip(self):
        extra = len(records.example(1, name="x" * 35_000)) - 35_000
        serialized = records.example(1, name="x" * (0x8B1F - extra))
        self.assertLen(serialized, 0x8B1F)
        records.write_records(self.path, [serialized])
        self.assertStartsWith(self.path.read_bytes(), b"\x1f\x8b")
        dataset = tf_ext.data.read(self.path, SCHEMA, "tfrecord", batch_size=1)
        self.assertEqual(numbers_of(dataset), [1])

    @parameterized.parameters("jsonl", "tfrecord")
    def test_compressed_files_without_an_end(self, format):
        records.write(self.path, format, range(2000), compressed=True)
        data = self.path.read_bytes()
        self.path.write_bytes(data[: len(data) // 2])
        self._refused(format, r"file is damaged before byte \d+: it cannot be")

    @parameterized.parameters(*FORMATS)
    def test_empty_files(self, format):
        # A footer, if of Parquet.
        records.write(self.path, format, [])
        dataset = tf_ext.data.read(self.path, SCHEMA, format, batch_size=1)
        self.assertEmpty(list(dataset))

    def test_footers_of_parquet(self):
        records.write(self.path, "parquet", range(300))
        data = self.path.read_bytes()
        for bad in (b"", data[: len(data) // 2], data[:-1] + b"x", b"PAR1" * 9):
            self.path.write_bytes(bad)
            self._refused("parquet", "file cannot be read as Parquet: its foo")

    def test_pages_of_parquet(self):
        records.write(self.path, "parquet", range(300), compressed=True)
        found = parquet.ParquetFile(self.path).metadata.row_group(2).column(1)
        data = bytearray(self.path.read_bytes())
        end = found.data_page_offset + found.total_compressed_size
        data[min(end, len(data)) - 100] ^= 1
        self.path.write_bytes(data)
        self._refused("parquet", r"file is damaged in row group \d, after row ")

    def test_columns_of_parquet(self):
        table = pa.table({"number": ["1"], "label": [1.5], "tags": [["a"]]})
        parquet.write_table(table, self.path)
        for field, message in (
            (
                Field("x"),
                r"schema once as a column, but not \['x'\]. Its columns are "
                r"\[.*\]. Name fields as the file does, leave",
            ),
            (Field("label", separator="|"), "be text, as .* separator, but is"),
            (Field("tags", "float32", bag=True, separator="|"), "be text, as"),
            (Field("tags"), "'tags' of .* be text or numbers, but is list"),
            (Field("tags", "int64"), "be numbers, booleans or text, but is li"),
            (
                Field("number", bag=True),
                "must be lists of text or numbers, but is str",
            ),
        ):
            self._refused("parquet", message, Schema([field]))

    def test_integers_of_parquet_as_texts(self):
        """Of uint64, the upper half has no other type."""
        ids, bags = [0, 2**63, None, 2**64 - 1], [[1, 2**64 - 1], [], None, [7]]
        types = pa.uint64(), pa.list_(pa.uint64())
        columns = zip(("id", "ids"), map(pa.array, (ids, bags), types))
        parquet.write_table(pa.table(dict(columns)), self.path)
        schema = Schema([Field("id"), Field("ids", bag=True)])
        [found] = tf_ext.data.read(self.path, schema, "parquet", batch_size=4)
        self.assertEqual(
            found["id"].numpy().tolist(),
            [b"0", b"9223372036854775808", b"", b"18446744073709551615"],
        )
        self.assertEqual(
            found["ids"].to_list(),
            [[b"1", b"18446744073709551615"], [], [], [b"7"]],
        )

    @parameterized.parameters(*FORMATS)
    def test_headers_are_of_csv(self, format):
        self.path.write_bytes(b"")
        with self.assertRaisesRegex(ValueError, f"be False for {format}"):
            tf_ext.data.read(
                self.path, SCHEMA, format, batch_size=1, header=True
            )


if __name__ == "__main__":
    absltest.main()
