# SPDX-License-Identifier: Apache-2.0
"""Small Parquet files that would be gigabytes in memory."""

import json
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import tensorflow as tf
from absl.testing import parameterized
from processes import run

from tf_ext import data
from tf_ext.data import columns, parquet_files
from tf_ext.data.parts import decoded

pytestmark = pytest.mark.slow_except(
    "BlocksTest::*",
    "LongTextsTest::test_values_are_those_of_the_file[0123]",
)

# Above the largest batch. Most of these files are 10 GiB or more.
_MOST_MEBIBYTES = 256
_BATCH_MEBIBYTES = 8


class ParquetBombsTest(tf.test.TestCase):
    def test_take_little_memory_or_are_refused(self):
        program, folder = "parquet_bombs_program.py", self.get_temp_dir()
        run(program, folder, "write")
        results, mebibytes = run(program, folder).splitlines()
        results = json.loads(results)
        for kind in (
            "dictionary",
            "plain_type",
            "one_long_of_many",
            "prefixes",
        ):
            self.assertEqual(results.pop(kind), 20, kind)
        texts = "1,048,576 texts of 10,485,760,000 bytes, more than the 256 MiB"
        for kind, message in (
            ("list_of_numbers", "column 'column' have 8,388,608 values on"),
            ("list_of_texts", texts),
            ("list_of_plain_texts", texts),
        ):
            found = results.pop(kind)
            self.assertStartsWith(found, "refused:")
            self.assertIn("DamagedFileError", found)
            self.assertIn(message, found)
        self.assertEmpty(results)
        self.assertLess(int(mebibytes), _MOST_MEBIBYTES + _BATCH_MEBIBYTES)


class LongTextsTest(tf.test.TestCase, parameterized.TestCase):
    """Files that take the same ways are read rightly."""

    @parameterized.product(
        bag=(False, True), stored=(False, True), groups=(1, 3)
    )
    def test_values_are_those_of_the_file(self, bag, stored, groups):
        generator = np.random.default_rng(5)
        values = ["", *map(str, range(50)), "x" * 100_000, None]
        if bag:
            values = values[:-1]
        rows = [
            [values[i] for i in generator.integers(0, len(values), size)]
            for size in generator.integers(0 if bag else 1, 9, 3000)
        ]
        if not bag:
            rows = [row[0] for row in rows]
        index = pa.dictionary(pa.int32(), pa.string())
        column = pa.array(rows, pa.list_(index) if bag else index)
        path = self.get_temp_dir() + "/long.parquet"
        parquet.write_table(
            pa.table({"a": column}),
            path,
            store_schema=stored,
            row_group_size=-(-len(rows) // groups),
        )
        default = None if bag else "none"
        field = data.Field("a", "string", default, bag=bag)
        dataset = data.read(
            path, data.Schema([field]), "parquet", batch_size=100
        )
        found = []
        for batch in dataset:
            found += (
                batch["a"].to_list() if bag else batch["a"].numpy().tolist()
            )
        expected = [
            [text.encode() for text in row]
            if bag
            else (b"none" if row is None else row.encode())
            for row in rows
        ]
        self.assertEqual(found, expected)


class BlocksTest(tf.test.TestCase, parameterized.TestCase):
    """The sizes of the blocks that files are cut into."""

    def _blocks(self, column, field):
        path = self.get_temp_dir() + "/blocks.parquet"
        parquet.write_table(pa.table({"a": column}), path)
        return self._read(path, field)

    def _read(self, path, field):
        files = parquet_files.ParquetFiles(data.Schema([field]), threads=1)
        return [parse().part for parse in files.blocks(path)]

    @parameterized.parameters(False, True)
    def test_of_texts_that_repeat(self, bag):
        texts = ["x" * 1000, "y", "zz"] * 400
        column = [[text] * 3 for text in texts] if bag else texts
        with mock.patch.object(parquet_files, "_BLOCK_BYTES", 100_000):
            parts = self._blocks(pa.array(column), data.Field("a", bag=bag))
        found = []
        for part in parts:
            values = part.bags["a"].values if bag else part.dense["a"]
            self.assertEqual(pa.types.is_dictionary(values.type), not bag)
            values = decoded(values).to_pylist()
            found += values
            size = sum(map(len, values))
            self.assertLess(size, 110_000)
        self.assertLess(len(parts), 20)
        wanted = [t for row in column for t in row] if bag else texts
        self.assertEqual(found, [text.encode() for text in wanted])

    @parameterized.parameters(2, 1000)
    def test_texts_are_indices_where_they_repeat(self, different):
        texts = [str(i % different) for i in range(1000)]
        [part] = self._blocks(pa.array(texts), data.Field("a"))
        are_indices = pa.types.is_dictionary(part.dense["a"].type)
        self.assertEqual(are_indices, different == 2)

    @parameterized.parameters(False, True)
    def test_bytes_of_rows(self, bag):
        index = pa.dictionary(pa.int32(), pa.string())
        rows, type_ = ["aaaa", None, "bb", "aaaa"], index
        if bag:
            rows = [["aaaa", None, "bb"], None, [], ["aaaa"]]
            type_ = pa.list_(index)
        column = pa.array([*rows[:1], *rows], type_).slice(1)
        sizes = columns.decoded_bytes(column, most=9)
        wanted = [6, 0, 0, 4] if bag else [4, 0, 2, 4]
        self.assertEqual(sizes.tolist(), wanted)
        self.assertIsNone(columns.decoded_bytes(column, most=10))
        some = columns.decoded_bytes(column.slice(2), most=3)
        self.assertEqual(some.tolist(), wanted[2:])

    def test_texts_of_lists_of_which_the_first_has_none(self):
        rows = [[], *[[f"{i:04}" * 250] for i in range(400)], []]
        with mock.patch.object(parquet_files, "_BLOCK_BYTES", 100_000):
            parts = self._blocks(pa.array(rows), data.Field("a", bag=True))
        found = [
            text.decode()
            for part in parts
            for text in decoded(part.bags["a"].values).to_pylist()
        ]
        self.assertEqual(found, [text for row in rows for text in row])
        self.assertEqual(sum(part.rows for part in parts), len(rows))

    def test_whatever_the_footer_says_of_encodings(self):
        path = self.get_temp_dir() + "/forged.parquet"
        # Too many bytes a value to be taken for texts that repeat.
        texts = ["x" * 50_000, *map(str, range(100))] * 20
        parquet.write_table(pa.table({"a": texts}), path, compression="none")
        metadata = parquet.ParquetFile(path).metadata.row_group(0).column(0)
        self.assertIn("RLE_DICTIONARY", metadata.encodings)
        with open(path, "rb") as file:
            content = file.read()
        # A list of PLAIN, RLE and RLE_DICTIONARY; then of PLAIN, RLE and RLE.
        before, listed, after = content.rpartition(b"\x35\x00\x06\x10")
        self.assertTrue(listed)
        with open(path, "wb") as file:
            file.write(before + b"\x35\x00\x06\x06" + after)
        metadata = parquet.ParquetFile(path).metadata.row_group(0).column(0)
        self.assertNotIn("RLE_DICTIONARY", metadata.encodings)
        with mock.patch.object(parquet_files, "_BLOCK_BYTES", 200_000):
            parts = self._read(path, data.Field("a"))
        self.assertGreater(len(parts), 3)
        found = [
            text.decode()
            for part in parts
            for text in decoded(part.dense["a"]).to_pylist()
        ]
        self.assertEqual(found, texts)


if __name__ == "__main__":
    tf.test.main()
