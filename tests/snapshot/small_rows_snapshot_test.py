# SPDX-License-Identifier: Apache-2.0
"""Small rows in snapshots, for readers without TensorFlow and commands."""

import os

import numpy as np
import pytest
from absl.testing import absltest, parameterized
from models.small_rows import DTYPES, make_table, stored_bytes, train
from oracles.snapshot_forging import MANIFEST, reseal
from pyarrow import parquet
from saving_util import TestCase
from snapshot_util import data_files, run_command

from tf_ext.snapshot import DamagedSnapshotError, open_snapshot

pytestmark = pytest.mark.slow_tests(
    "SmallRowsSnapshotTest::test_numpy_arrays[23]",
    "SmallRowsSnapshotTest::test_refuses_other_type_*",
    "SmallRowsSnapshotTest::test_refuses_weights_of_int32",
    "SmallRowsSnapshotTest::test_rewritten_by_commands_they_load_*",
)


_BOTH = ("float16", "bfloat16")


def _field(index, **members):
    def change(manifest):
        manifest["row"]["fields"][index] |= members

    return change


def _set(key, value):
    return lambda manifest: manifest.update({key: value})


def _config(old, new):
    def change(manifest):
        table = manifest["table"]
        assert old in table["config"]
        table["config"] = table["config"].replace(old, new)

    return change


class SmallRowsSnapshotTest(TestCase):
    def _chain(self, dtypes, shards=2):
        """A table, and the path of a delta of it."""
        path = self.path("chain")
        table = make_table(dtypes, shards)
        train(table, range(60))
        table.save(f"{path}/0", incremental=True)
        train(table, range(40, 90), seed=1, step=2)
        table.erase(range(5))
        table.save(f"{path}/1", base=f"{path}/0")
        return table, f"{path}/1"

    @parameterized.parameters(*DTYPES)
    def test_numpy_arrays(self, dtype, slot_dtype):
        table, path = self._chain((dtype, slot_dtype))
        snapshot = open_snapshot(path)
        self.assertEqual(snapshot.manifest.format, 2)
        self.assertEqual(
            snapshot.fields,
            {
                "weights": (dtype, 3),
                "m": (slot_dtype, 3),
                "v": (slot_dtype, 3),
                "step": ("int32", 1),
                "last_seen": ("int32", 1),
                "show": ("float32", 1),
                "click": ("float32", 1),
            },
        )
        snapshot.verify()
        signs, fields = table.export_rows()
        expected = dict(zip(signs.tolist(), range(len(signs))))
        seen = []
        for some, values in snapshot.chunks():
            # NumPy has no bfloat16.
            for name, stored in (("weights", dtype), ("v", slot_dtype)):
                wanted = "float32" if stored == "bfloat16" else stored
                self.assertEqual(values[name].dtype, wanted)
            seen += some.tolist()
            at = [expected[sign] for sign in some.tolist()]
            for name, value in values.items():
                self.assertAllEqual(value, fields[name][at])
                self.assertTrue(value.flags.c_contiguous)
        self.assertCountEqual(seen, signs.tolist())

    @parameterized.product(shards=(1, 2, 5))
    def test_rewritten_by_commands_they_load_bitwise(self, shards):
        for dtypes in DTYPES:
            table, path = self._chain(dtypes)
            out = self.path("out")
            status, said, _ = run_command(
                "reshard", path, out, "--shards", shards
            )
            self.assertEqual(status, 0, said)
            compact = self.path("compact")
            self.assertEqual(run_command("compact", path, compact)[0], 0)
            for each in (out, compact):
                self.assertEqual(run_command("verify", each)[0], 0)
                manifest = open_snapshot(each).manifest
                self.assertEqual(manifest.format, 2)
                loaded = make_table(dtypes, 3)
                loaded.load(each)
                self.assertEqual(stored_bytes(loaded), stored_bytes(table))

    def test_inspect(self):
        _, path = self._chain(_BOTH)
        status, out, _ = run_command("inspect", path)
        self.assertEqual(status, 0)
        self.assertRegex(
            out,
            r"\nfields +weights float16\[3\], m bfloat16\[3\], v bfloat16\[3\],"
            r" step int32\[1\], last_seen int32\[1\], show float32\[1\],",
        )
        self.assertRegex(out, r"\nrows +50 of 42 bytes, 5 erased signs\n")

    def test_parquet(self):
        for dtypes in (_BOTH, ("bfloat16", "float32")):
            table, path = self._chain(dtypes)
            out = self.path("x.parquet")
            self.assertEqual(run_command("to-parquet", path, out)[0], 0)
            read = parquet.read_table(out)
            weights = {"float16": "halffloat", "bfloat16": "float"}[dtypes[0]]
            self.assertEqual(str(read["weights"].type.value_type), weights)
            self.assertEqual(str(read["v"].type.value_type), "float")
            signs, fields = table.export_rows()
            at = {sign: i for i, sign in enumerate(signs.tolist())}
            order = [at[sign] for sign in read["sign"].to_pylist()]
            self.assertEqual(len(order), len(signs))
            for name in ("weights", "m", "v"):
                found = np.array(read[name].to_pylist(), np.float32)
                self.assertAllEqual(found, fields[name][order])

    def test_snapshots_of_large_rows_are_of_format_1(self):
        _, path = self._chain(("float32", "float32"))
        with open(os.path.join(path, MANIFEST), "rb") as file:
            self.assertTrue(file.read().startswith(b'{\n  "format": 1,\n'))

    def test_deltas_of_other_types_than_their_base(self):
        _, path = self._chain(_BOTH)
        other, _ = self._chain(("float16", "float32"))
        base = os.path.join(os.path.dirname(path), "0")
        snapshot_id = open_snapshot(base).manifest.id
        other.end_incremental()
        other.save(base)
        reseal(os.path.join(base, MANIFEST), _set("id", snapshot_id))
        with self.assertRaisesRegex(
            DamagedSnapshotError, "rows with different fields: weights float16"
        ):
            open_snapshot(path)

    @parameterized.named_parameters(
        (
            "format_1_of_small_rows",
            _set("format", 1),
            r"row.fields\[1\].dtype must be 'float32', but is 'float16'",
        ),
        (
            "weights_of_int32",
            _field(1, dtype="int32"),
            r"row.fields\[1\].dtype must be 'float32' or 'float16' or 'bfloat1",
        ),
        (
            "slots_of_float16",
            _field(2, dtype="float16"),
            r"row.fields\[2\].dtype must be 'float32' or 'int32' or 'bfloat16'",
        ),
        (
            "other_type_of_equal_size",
            _field(1, dtype="bfloat16"),
            "table.config must be one with the line dtype=bfloat16, as of wei",
        ),
        (
            "other_type_in_the_configuration",
            _config("dtype=float16", "dtype=bfloat16"),
            "table.config must be one with the line dtype=float16, as of weigh",
        ),
        (
            "offset_of_four_bytes",
            _field(2, offset=20),
            r"row.fields\[2\].offset must be an integer from 14 to 14",
        ),
        (
            "no_number",
            _set("format", True),
            "format must be an integer, but is True",
        ),
    )
    def test_refuses(self, change, message):
        _, path = self._chain(_BOTH, shards=1)
        table = make_table(_BOTH)
        train(table, [7])
        before = stored_bytes(table)
        reseal(os.path.join(path, MANIFEST), change)
        for read in (open_snapshot, table.load):
            with self.assertRaisesRegex(DamagedSnapshotError, message):
                read(path)
        self.assertEqual(stored_bytes(table), before)

    def test_refuses_format_2_of_large_rows(self):
        _, path = self._chain(("float32", "float32"))
        reseal(os.path.join(path, MANIFEST), _set("format", 2))
        with self.assertRaisesRegex(
            DamagedSnapshotError, "format must be 1, as all fields have 4 bytes"
        ):
            open_snapshot(path)

    def test_a_slot_dtype_that_fields_do_not_have(self):
        # Only a table of the configuration knows which fields are slots.
        _, path = self._chain(_BOTH)
        path = os.path.join(os.path.dirname(path), "0")
        reseal(
            os.path.join(path, MANIFEST), _config("slot_dtype=bfloat16\n", "")
        )
        for convert in (False, True):
            table = make_table(("float16", "float32"))
            with self.assertRaisesRegex(
                DamagedSnapshotError,
                "row.fields must be those of a table of table.config, weights "
                r"float16\[3\], m float32\[3\],",
            ):
                table.load(path, convert=convert)

    def test_damage_is_named(self):
        _, path = self._chain(_BOTH, shards=1)
        [file] = data_files(path)
        with open(file, "r+b") as opened:
            opened.seek(50)
            byte = opened.read(1)[0]
            opened.seek(50)
            opened.write(bytes([byte ^ 1]))
        with self.assertRaisesRegex(DamagedSnapshotError, "at byte"):
            open_snapshot(path).verify()
        with self.assertRaisesRegex(DamagedSnapshotError, "at byte"):
            make_table(("float32", "float32")).load(path, convert=True)


if __name__ == "__main__":
    absltest.main()
