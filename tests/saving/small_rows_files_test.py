# SPDX-License-Identifier: Apache-2.0
"""Small rows in files of all kinds: bitwise, and at their size."""

import json
import os

import h5py
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import parameterized
from models.counter_tables import make_model
from models.sharded_tables import counters_of
from models.small_rows import (
    DTYPES,
    KINDS,
    Files,
    make_table,
    stored_bytes,
    train,
)
from saving_util import TestCase

import tf_ext
from tf_ext._keras import keras
from tf_ext.tables.find import tables_of

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except(
        "KerasFilesTest::*_of_the_new_format",
        "KerasFilesTest::test_files_are_smaller",
        "RoundTripTest::test_counters_and_statistics_are_beside_small_rows[012]",
        "RoundTripTest::test_is_bitwise_with_any_number_of_shards[013]",
        "RoundTripTest::test_rows_of_other_types_are_refused[02]",
        "RoundTripTest::test_tables_that_only_serve_hold_small_weights[012]",
    ),
]

_BOTH = ("float16", "bfloat16")


def _trained(dtypes, shards=2, **kwargs):
    table = make_table(dtypes, shards, **kwargs)
    for step in range(1, 4):
        train(table, range(60), seed=step, step=step)
    return table


class RoundTripTest(TestCase):
    @parameterized.product(kind=KINDS, dtypes=DTYPES)
    def test_is_bitwise_with_any_number_of_shards(self, kind, dtypes):
        table = _trained(dtypes)
        write, read = getattr(Files, kind)(self.path("saved"))
        write(table)
        expected = stored_bytes(table)
        loaded = [make_table(dtypes, shards) for shards in (1, 2, 5)]
        for one in loaded:
            train(one, [7, 1000])
            read(one)
            self.assertEqual(stored_bytes(one), expected)
        for one in (table, *loaded):
            train(one, range(30, 120), seed=9, step=9)
            self.assertEqual(stored_bytes(one), stored_bytes(table))

    @parameterized.product(kind=KINDS)
    def test_counters_and_statistics_are_beside_small_rows(self, kind):
        admission = tf_ext.admission.Count(20, forget=50)
        table = _trained(_BOTH, admission=admission)
        train(table, range(500, 600), seed=8, step=4)
        self.assertNotEmpty(counters_of(table)[1])
        write, read = getattr(Files, kind)(self.path("saved"))
        write(table)
        other = make_table(_BOTH, 5, admission=admission)
        read(other)
        self.assertEqual(stored_bytes(other), stored_bytes(table))
        self.assertEqual(counters_of(other), counters_of(table))

    @parameterized.product(kind=KINDS)
    def test_rows_of_other_types_are_refused(self, kind):
        write, read = getattr(Files, kind)(self.path("saved"))
        write(_trained(("float32", "float32")))
        for dtypes, key, mine in (
            (("float16", "float32"), "dtype", "float16"),
            (("bfloat16", "bfloat16"), "dtype", "bfloat16"),
            (("float32", "bfloat16"), "slot_dtype", "bfloat16"),
        ):
            other = make_table(dtypes)
            train(other, [7])
            before = stored_bytes(other)
            with self.assertRaisesRegex(
                (ValueError, RuntimeError),
                f"its `{key}` is '{mine}', that of the saved rows is "
                r"'float32'\. Make the table as it was saved, or round the "
                r"values: save\(path\) of that table, load\(path, "
                r"convert=True\) of this one\.",
            ):
                read(other)
            self.assertEqual(stored_bytes(other), before)

    @parameterized.product(kind=KINDS)
    def test_tables_that_only_serve_hold_small_weights(self, kind):
        table = _trained(_BOTH)
        write, read = getattr(Files, kind)(self.path("saved"))
        write(table)
        with tf_ext.serving.weights_only():
            served = make_table(_BOTH)
        read(served)
        self.assertEqual(served.stats()["row_bytes"], 16)
        self.assertEqual(
            stored_bytes(served),
            {
                sign: {"weights": row["weights"]}
                for sign, row in stored_bytes(table).items()
            },
        )


class KerasFilesTest(TestCase):
    def test_models_come_back_with_their_types(self):
        table = _trained(_BOTH, shards=1)
        model, path = make_model(table), self.path("x.keras")
        model.save(path)
        loaded = keras.models.load_model(path)
        [other] = tables_of(loaded)
        self.assertEqual((other.dtype, other.slot_dtype), _BOTH)
        self.assertEqual(stored_bytes(other), stored_bytes(table))
        ids = {"id": np.arange(100)}
        self.assertAllEqual(
            loaded.predict(ids, verbose=0), model.predict(ids, verbose=0)
        )

    def _file(self, dtypes):
        path = self.path("x.weights.h5")
        make_model(_trained(dtypes, shards=1)).save_weights(path)
        return path

    def test_only_small_rows_are_of_the_new_format(self):
        # Earlier versions read format 1, and refuse others by their number.
        for dtypes, number in (
            (("float32", "float32"), 1),
            (("float16", "float32"), 2),
            (("float32", "bfloat16"), 2),
        ):
            with h5py.File(self._file(dtypes)) as file:
                group = _group_of_rows(file)
                header = json.loads(bytes(group["header"][:]))
                weights = group["chunk_000000_weights"]
                self.assertEqual(weights.dtype, dtypes[0])
                m = group["chunk_000000_m"]
                stored = {"bfloat16": "uint16"}.get(dtypes[1], dtypes[1])
                self.assertEqual(m.dtype, stored)
            self.assertEqual(header["format"], number)

    def test_damage_of_the_new_format(self):
        def format_of(number):
            def change(group):
                header = json.loads(bytes(group["header"][:]))
                header["format"] = number
                _replace(group, "header", json.dumps(header).encode())

            return change

        def floats(group):
            name = "chunk_000000_weights"
            values = group[name][:].astype(np.float32)
            del group[name]
            group[name] = values

        def flip(group):
            group["chunk_000000_m"][0, 0] ^= 1

        for change, message in (
            (format_of(1), "format of the header is 1, but .* in format 2"),
            (format_of(3), "are in format 3; .* tf_ext reads 1 and 2"),
            (floats, "weights' is float32, not float16"),
            (flip, "m' has the CRC32C .*, but was saved with"),
        ):
            path = self._file(_BOTH)
            with h5py.File(path, "r+") as file:
                change(_group_of_rows(file))
            table = make_table(_BOTH)
            train(table, [5])
            before = stored_bytes(table)
            with self.assertRaisesRegex(ValueError, message):
                make_model(table).load_weights(path)
            self.assertEqual(stored_bytes(table), before)

    def test_files_are_smaller(self):
        sizes = {}
        for dtypes in (("float32", "float32"), _BOTH):
            table = make_table(
                dtypes, optimizer="adagrad", eviction=None, statistics=None
            )
            train(table, range(20_000))
            directory = self.directory()
            path = os.path.join(directory, "x.weights.h5")
            make_model(table).save_weights(path)
            tf.train.Checkpoint(table=table).write(f"{directory}/checkpoint")
            data = f"{directory}/checkpoint.data-00000-of-00001"
            table.save(f"{directory}/snapshot")
            sizes[dtypes[0]] = [
                os.path.getsize(path),
                os.path.getsize(data),
                sum(
                    x.stat().st_size
                    for x in os.scandir(directory + "/snapshot")
                ),
            ]
        # 20 bytes a row instead of 32.
        for small, large in zip(sizes["float16"], sizes["float32"]):
            self.assertLess(small, 0.75 * large)


def _group_of_rows(file):
    """The group of an HDF5 file that holds a table."""
    found = []
    file.visititems(
        lambda _, each: (
            found.append(each)
            if isinstance(each, h5py.Group) and "header_crc32c" in each
            else None
        )
    )
    [group] = found
    return group


def _replace(group, name, data):
    """Replaces the header, and makes its checksum right."""
    array = np.frombuffer(data, np.uint8)
    for key, value in (
        (name, array),
        (
            f"{name}_crc32c",
            np.array([tf_ext._core.crc32c(array.tobytes())], np.uint32),
        ),
    ):
        del group[key]
        group[key] = value


if __name__ == "__main__":
    tf.test.main()
