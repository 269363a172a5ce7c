# SPDX-License-Identifier: Apache-2.0
"""No flipped bit of a file loses records without a word."""

import gzip
import json
import pathlib
import tempfile

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from oracles import readable_files, readable_records
from processes import run

import tf_ext
from tf_ext.data import formats, passes

pytestmark = pytest.mark.slow_tests(
    "FlippedBitsTest::test_forty[02489]",
)


_RECORDS = 300
_TEXT = ("csv", "tsv", "jsonl")
_FORMATS = [
    (format, packed)
    for format in ("csv", "tsv", *readable_records.FORMATS)
    for packed in (False, True)
]


def _write(path, format, packed):
    if format not in ("csv", "tsv"):
        readable_records.write(path, format, range(_RECORDS), packed)
        return readable_records.SCHEMA
    separator = "," if format == "csv" else "\t"
    lines = [readable_files.good_line(n, separator) for n in range(_RECORDS)]
    text = b"\n".join(lines) + b"\n"
    path.write_bytes(gzip.compress(text) if packed else text)
    return readable_files.SCHEMA


def _numbers(path, schema, format, errors):
    """What `read` delivers, without the cost of a graph for each file."""
    whole = passes.Passes(
        formats.reader_of(schema, format, False, 1),
        [str(path)],
        batch_size=64,
        shuffle=None,
        seed=0,
        repeat=False,
        max_errors=0.02,
        errors=errors,
        threads=1,
    )
    return [
        int(number)
        for part, order in whole.windows()
        for number in part.dense["number"][order]
    ]


class FlippedBitsTest(parameterized.TestCase):
    def _check(self, format, packed, flips):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        path = pathlib.Path(folder, "flipped")
        schema = _write(path, format, packed)
        whole = path.read_bytes()
        rng = np.random.default_rng(0)
        ended = 0
        for _ in range(flips):
            data = bytearray(whole)
            place = int(rng.integers(len(data)))
            data[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(data)
            errors = tf_ext.data.ReadErrors()
            try:
                numbers = _numbers(path, schema, format, errors)
            except (
                tf_ext.data.DamagedFileError,
                tf_ext.data.TooManyErrorsError,
            ) as error:
                self.assertIn("flipped", str(error))
                ended += 1
                continue
            # A line break that flips joins two records, or cuts one.
            spare = int(format in _TEXT and not packed)
            self.assertBetween(
                errors.records, _RECORDS - spare, _RECORDS + spare, place
            )
            self.assertLen(numbers, errors.records - errors.errors, place)
            self.assertLessEqual(errors.errors, 2, place)
            if format != "parquet" or packed:
                good = set(numbers) & set(range(_RECORDS))
                self.assertGreaterEqual(len(good), _RECORDS - 2, place)
        # A checksum notices, unless it is a header that is hit.
        if format in _TEXT:
            few, most = (0.9, 1) if packed else (0, 0)
        else:
            few, most = (0.9, 1) if format == "tfrecord" and packed else (0, 1)
        self.assertBetween(ended, few * flips, most * flips)

    @parameterized.parameters(*_FORMATS)
    def test_forty(self, format, packed):
        self._check(format, packed, 40)

    @parameterized.parameters(*_FORMATS)
    @pytest.mark.slow
    def test_five_hundred(self, format, packed):
        self._check(format, packed, 500)


class FootersTest(absltest.TestCase):
    def _check(self, *arguments, most_read):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        counts = json.loads(
            run("damaged_footers_program.py", folder, *arguments)
        )
        self.assertLen(counts, 4)
        for name, found in counts.items():
            self.assertGreater(found["refused"], 20, name)
            share = found["read"] / sum(found.values())
            self.assertLessEqual(share, most_read, name)

    def test_wrong_levels_end_no_process(self):
        self._check(most_read=0.0)

    @pytest.mark.slow
    def test_no_byte_ends_the_process(self):
        # Many bytes are of names and statistics that nothing reads.
        self._check("all", most_read=0.5)


if __name__ == "__main__":
    absltest.main()
