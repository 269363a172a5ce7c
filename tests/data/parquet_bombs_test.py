# SPDX-License-Identifier: Apache-2.0
"""Small Parquet files that would be gigabytes in memory."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import tensorflow as tf
from absl.testing import parameterized
from processes import run

from tf_ext import data

pytestmark = pytest.mark.slow_except(
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


if __name__ == "__main__":
    tf.test.main()
