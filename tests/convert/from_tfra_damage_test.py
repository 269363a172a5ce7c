# SPDX-License-Identifier: Apache-2.0
"""Damaged files of TensorFlow Recommenders Addons change no table."""

import glob
import pathlib
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from oracles import tfra_files
from saving_util import TestCase, contents

import tf_ext
from tf_ext.convert import rows_in, stored_array, tfra

pytestmark = pytest.mark.slow_tests(
    "DamageTest::test_flipped_*", "DamageTest::test_files_cut_off"
)

_DIM = 3
_COLUMN = tf_ext.feature_column.category_column("user")
_IDS = tf_ext.feature_column.category_column("user", hashing="identity")


def _table(rule="sgd"):
    return tf_ext.SparseTable("rows", _DIM, rule)


def _rows(count=50, **types):
    return tfra_files.random_rows(0, count, _DIM, **types)


class DamageTest(TestCase):
    def _refused(self, path, text, **options):
        table = _table("adagrad")
        with self.assertRaisesRegex(tf_ext.convert.DamagedFilesError, text):
            tf_ext.convert.from_tfra(path, table, _IDS, **options)
        self.assertEqual(table.size(), 0)

    def test_files_cut_off(self):
        path = self.directory()
        files = tfra_files.save_to_file_system(path, "user", *_rows(count=4))
        for name in files[0], files[1]:
            data = name.read_bytes()
            for size in range(len(data)):
                name.write_bytes(data[:size])
                self._refused(path, f"has {size} bytes|and .* {size}\\. Rows")
            name.write_bytes(data)

    def test_keys_of_strings_in_files(self):
        path = self.directory()
        files = tfra_files.save_to_file_system(path, "user", *_rows(count=2))
        files[0].write_bytes(b"\x0cabc".ljust(24, b"\0") * 2)
        self._refused(path, "Save a checkpoint.")

    @parameterized.parameters(np.nan, np.inf, -np.inf)
    def test_no_numbers(self, value):
        keys, values = _rows()
        values[17, 1] = value
        text = f"NaN, infinite or beyond float32 in the row of key {keys[17]}"
        for name in "user", "user/accumulator":
            path = self.directory()
            tfra_files.save_to_file_system(path, "user", *_rows())
            tfra_files.save_to_file_system(path, name, keys, values)
            self._refused(path, text)

    def test_beyond_float32(self):
        path = self.directory()
        keys, values = _rows(dtype=np.float64)
        values[3, 0] = 1e39
        tfra_files.save_to_file_system(path, "user", keys, values)
        self._refused(path, "beyond float32", value_dtype="float64")

    def test_files_that_change_meanwhile(self):
        path = self.directory()
        files = tfra_files.save_to_file_system(path, "user", *_rows())
        table = _table()
        check = tfra._check

        def cut(*args):
            check(*args)
            files[1].write_bytes(files[1].read_bytes()[:-4])

        with (
            mock.patch.object(tfra, "_check", cut),
            self.assertRaisesRegex(
                tf_ext.convert.DamagedFilesError, "the file ends here"
            ),
        ):
            tf_ext.convert.from_tfra(path, table, _IDS)

    @parameterized.parameters(
        ("index", 30, "the checksum of byte 0 is wrong"),
        ("data-00000-of-00001", 9, "the checksum of tensor .*-keys"),
        ("data-00000-of-00001", -9, "the checksum of tensor .*-values"),
    )
    def test_a_flipped_bit(self, ending, at, text):
        prefix = self.path("ckpt")
        tfra_files.save_checkpoint(prefix, {"user": _rows(count=4)})
        file = pathlib.Path(f"{prefix}.{ending}")
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        file.write_bytes(data)
        self._refused(prefix, text)

    def test_strings_of_another_size(self):
        data = b"\1\2" + b"\0" * 4 + b"abb"
        path = pathlib.Path(self.path("strings"))
        path.write_bytes(data + b"more")
        for size in len(data) - 1, len(data) + 1:
            array = stored_array.StoredArray(
                str(path), "x", 0, size, tf.string, (2,), 0
            )
            with self.assertRaisesRegex(
                tf_ext.convert.DamagedFilesError,
                f"tensor 'x' has {size} bytes instead of 9",
            ):
                list(array.chunks(10))

    def test_strings_without_lengths(self):
        path = pathlib.Path(self.path("strings"))
        endless = b"\xff" * 40
        for data, at in (
            (endless, 40),
            (endless[:10] + b"\1" * 30, 40),
            (b"\1" + endless, 41),
            (b"\1\xff", 2),
        ):
            path.write_bytes(data)
            array = stored_array.StoredArray(
                str(path), "x", 0, len(data), tf.string, (2,), 0
            )
            with self.assertRaisesRegex(
                tf_ext.convert.DamagedFilesError,
                f" {at}: tensor 'x' (has no lengths|ends here)",
            ):
                list(array.chunks(10))

    def test_data_cut_off(self):
        prefix = self.path("ckpt")
        tfra_files.save_checkpoint(prefix, {"user": _rows(count=4)})
        file = pathlib.Path(f"{prefix}.data-00000-of-00001")
        file.write_bytes(file.read_bytes()[:-1])
        self._refused(prefix, "ends at byte 80, but the file has 79")

    @parameterized.parameters("index", "data-00000-of-00001")
    def test_checkpoints_cut_off(self, ending):
        prefix = self.path("ckpt")
        tfra_files.save_checkpoint(prefix, {"user": _rows(count=4)})
        file = pathlib.Path(f"{prefix}.{ending}")
        data = file.read_bytes()
        for size in range(0, len(data), 7):
            file.write_bytes(data[:size])
            self._refused(prefix, "is damaged at byte|there is no header")

    @parameterized.product(
        ending=["index", "data-00000-of-00001"], keys=[np.int64, object]
    )
    def test_flipped_bytes_of_checkpoints(self, ending, keys):
        prefix = self.path("ckpt")
        rows = _rows(count=20, keys=keys)
        tfra_files.save_checkpoint(prefix, {"user": rows}, shards=2)
        column = _COLUMN if keys is object else _IDS
        intact = _table()
        tf_ext.convert.from_tfra(prefix, intact, column)
        [name] = glob.glob(f"{prefix}.{ending}")
        file = pathlib.Path(name)
        data = file.read_bytes()
        rng = np.random.default_rng(5)
        refused = 0
        for at in rng.integers(len(data), size=500):
            damaged = bytearray(data)
            damaged[at] ^= 1 << int(rng.integers(8))
            file.write_bytes(damaged)
            table = _table()
            try:
                tf_ext.convert.from_tfra(prefix, table, column)
            except (tf_ext.convert.DamagedFilesError, FileNotFoundError):
                refused += 1
                self.assertEqual(table.size(), 0)
            else:  # It has no meaning, such as padding.
                self.assertEqual(contents(table), contents(intact))
        self.assertGreater(refused, 300)

    def test_row_sizes_bound_memory(self):
        """A file of rows is never read as a whole."""
        self.assertLessEqual(rows_in.CHUNK_BYTES, 16 << 20)
        path, table = self.directory(), _table()
        tfra_files.save_to_file_system(path, "user", *_rows())
        sizes = []
        read = stored_array.StoredArray._read

        def note(self, file, size):
            sizes.append(size)
            return read(self, file, size)

        with (
            mock.patch.object(stored_array.StoredArray, "_read", note),
            mock.patch.object(tfra, "CHUNK_BYTES", 60),
        ):
            tf_ext.convert.from_tfra(path, table, _IDS)
        self.assertLessEqual(max(sizes), 60)


if __name__ == "__main__":
    tf.test.main()
