# SPDX-License-Identifier: Apache-2.0
"""Files as data sets and programs have them: values, and flipped bytes."""

import itertools
import pathlib
import tempfile

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from oracles import real_shapes

import tf_ext
from tf_ext.data import formats

_FILES = {one.name: one for one in real_shapes.all_files()}


def _read(file, path):
    """All values as lists, without the cost of a graph, and ReadErrors."""
    schema = tf_ext.data.Schema(file.fields, missing=file.missing)
    reader = formats.reader_of(schema, file.format, file.header, 1)
    errors = tf_ext.data.ReadErrors()
    found = {field.name: [] for field in schema.used}
    rows = 0
    for parse in reader.blocks(str(path)):
        part, records, malformed, unit = parse()
        errors.add(str(path), records, malformed, unit)
        rows += part.rows
        for name, values in found.items():
            if name in part.dense:
                values += part.dense[name].tolist()
            else:
                flat, splits = part.bags[name]
                bags = itertools.pairwise(splits)
                values += [flat[begin:end].tolist() for begin, end in bags]
    return found, rows, errors


class FilesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.path = pathlib.Path(folder) / "file"

    def test_there_are_enough(self):
        self.assertGreaterEqual(len(_FILES), 35)

    @parameterized.parameters(*_FILES)
    def test_values_are_those_that_others_read(self, name):
        file = _FILES[name]
        file.write(self.path)
        expected = file.values(self.path)
        found, rows, errors = _read(file, self.path)
        self.assertEqual(errors.by_reason(), {})
        self.assertEqual(found, expected)
        self.assertEqual(errors.records, rows)
        self.assertGreaterEqual(rows, 2)

    @parameterized.parameters(*_FILES)
    @pytest.mark.slow
    def test_five_hundred_flipped_bytes(self, name):
        file = _FILES[name]
        file.write(self.path)
        _, rows, _ = _read(file, self.path)
        whole = self.path.read_bytes()
        rng = np.random.default_rng(0)
        damaged = 0
        for _ in range(500):
            data = bytearray(whole)
            place = int(rng.integers(len(whole)))
            data[place] ^= int(rng.integers(1, 256))
            self.path.write_bytes(data)
            try:
                _, left, errors = _read(file, self.path)
            except tf_ext.data.DamagedFileError:
                damaged += 1
                continue
            self.assertEqual(left + errors.errors, errors.records)
            if left != rows and not self._is_silent(file, data, whole, place):
                self.assertGreater(errors.errors, 0, (place, bytes(data)))
            damaged += errors.errors > 0
        self.assertGreater(damaged, 0)

    def _is_silent(self, file, data, whole, place):
        """Whether nothing tells that a byte was another."""
        comment = getattr(file.format, "comment", None)
        if comment is None:
            return False
        # Whether a line is a comment, or part of one.
        changed = bytes(data[place : place + 1]), whole[place : place + 1]
        return comment.encode() in changed or b"\n" in changed


if __name__ == "__main__":
    absltest.main()
