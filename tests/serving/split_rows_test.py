# SPDX-License-Identifier: Apache-2.0
"""Rows of split exports: of tables, and of snapshots."""

import os
import pathlib
import unittest.mock

import pytest
from absl.testing import absltest
from models import small_models as small
from pyarrow import parquet
from saving_util import TestCase
from snapshot_util import data_files

import tf_ext
from tf_ext.regimes.local import LocalPlacement
from tf_ext.serving import export_split, read_manifest
from tf_ext.serving.row_sources import of_snapshot
from tf_ext.snapshot import DamagedSnapshotError, SnapshotConflictError
from tf_ext.snapshot import parquet as row_groups
from tf_ext.tables import rows as rows_of_tables

pytestmark = pytest.mark.both_kerases(slow=True)


class SplitRowsTest(TestCase):
    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(self.directory())

    def test_rows_of_a_snapshot(self):
        table = small.table("adam")
        table.pull(range(1000), training=True)
        snapshot = str(self.path / "rows")
        table.save(snapshot, step=12)
        rows, _ = table.export_rows(), table.clear()
        table.pull([5000], training=True)
        with unittest.mock.patch.object(row_groups, "_ROW_GROUP_BYTES", 6000):
            version = export_split(
                small.functional(table),
                self.path / "out",
                snapshots={"deep": snapshot},
            )
        [about] = read_manifest(version)["tables"]
        self.assertEqual((about["rows"], about["step"]), (1000, 12))
        opened = tf_ext.snapshot.open_snapshot(snapshot)
        self.assertEqual(about["snapshot"], opened.manifest.id)
        file = parquet.ParquetFile(pathlib.Path(version, "deep.parquet"))
        found = file.read()
        self.assertEqual(
            dict(zip(found["sign"].to_pylist(), found["vector"].to_pylist())),
            dict(zip(rows[0].tolist(), rows[1]["weights"].tolist())),
        )
        other = tf_ext.SparseTable("deep", 4, initializer="zeros")
        with self.assertRaisesRegex(ValueError, "its `initializer` is 'zeros'"):
            export_split(
                small.functional(other),
                self.path / "out",
                snapshots={"deep": snapshot},
            )
        self.assertEqual(os.listdir(self.path / "out"), ["1"])
        damaged = pathlib.Path(data_files(snapshot)[0])
        damaged.write_bytes(damaged.read_bytes()[:-9])
        with self.assertRaisesRegex(DamagedSnapshotError, damaged.name):
            export_split(
                small.functional(table),
                self.path / "out",
                snapshots={"deep": snapshot},
            )
        self.assertEqual(os.listdir(self.path / "out"), ["1"])

    def test_rows_that_no_process_holds_are_refused(self):
        table = small.table("sgd")
        table.save(self.path / "rows")
        with unittest.mock.patch.object(
            LocalPlacement,
            "check_exportable",
            side_effect=ValueError("on servers"),
        ):
            model = small.functional(table)
            with self.assertRaisesRegex(ValueError, "on servers"):
                export_split(model, self.path / "out")
            export_split(
                model,
                self.path / "out",
                snapshots={"deep": str(self.path / "rows")},
            )

    def test_a_snapshot_that_is_replaced_before_it_is_read(self):
        table = small.table("sgd")
        table.pull([1, 2], training=True)
        for rows in ([3], []):
            table.save(self.path / "rows")
            source = of_snapshot(
                tf_ext.snapshot.open_snapshot(self.path / "rows")
            )
            table.clear()
            table.pull(rows, training=True)
            table.save(self.path / "rows")
            with self.assertRaisesRegex(
                SnapshotConflictError, "rows was replaced by another snapshot"
            ):
                list(source.chunks())

    def test_rows_are_written_in_groups(self):
        table = small.table("sgd")
        table.pull(range(1000), training=True)
        with (
            unittest.mock.patch.object(row_groups, "_ROW_GROUP_BYTES", 6000),
            unittest.mock.patch.object(rows_of_tables, "_CHUNK_BYTES", 2400),
        ):
            seen = []
            version = export_split(
                small.functional(table), self.path, progress=seen.append
            )
        self.assertEqual(sum(seen), 1000 * 24)
        file = parquet.ParquetFile(pathlib.Path(version, "deep.parquet"))
        self.assertBetween(file.num_row_groups, 3, 5)
        self.assertEqual(file.metadata.num_rows, 1000)


if __name__ == "__main__":
    absltest.main()
