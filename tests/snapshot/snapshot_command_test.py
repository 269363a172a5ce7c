# SPDX-License-Identifier: Apache-2.0
"""Snapshots at a terminal."""

import errno
import os
import subprocess
import sys
import unittest.mock

import numpy as np
import snapshot_util as util
from absl.testing import absltest
from saving_util import TestCase, contents

from tf_ext import _core
from tf_ext.snapshot import open_snapshot, reader, writer


def _rows(path):
    """All rows of a snapshot, sorted: uint8 `[n, row_bytes]`."""
    rows = np.concatenate(
        list(reader.latest_rows(open_snapshot(path).chain, lambda _: None))
    )
    return rows[np.argsort(reader.signs_of(rows))]


class CommandTest(TestCase):
    def setUp(self):
        super().setUp()
        self.root = self.directory()
        table = self.table = util.table(2, name="deep")
        util.push(table, range(300))
        table.save(self._path("0"), incremental=True, step=1200)
        self.full = contents(table)
        util.push(table, range(250, 320), 1)
        table.erase(range(5))
        table.save(self._path("1"), base=self._path("0"))

    def _path(self, name):
        return os.path.join(self.root, name)

    def _succeed(self, *arguments):
        status, out, err = util.run_command(*arguments)
        self.assertEqual((status, err), (0, ""))
        return out

    def _fail(self, status, message, *arguments):
        found, out, err = util.run_command(*arguments)
        self.assertEqual((found, out), (status, ""), err)
        self.assertRegex(
            err, rf"^python -m tf_ext.snapshot: error: {message}\n$"
        )
        self.assertEqual(err.count("\n"), 1)

    def _damage(self, name):
        file = util.data_files(self._path(name))[0]
        with open(file, "r+b") as opened:
            opened.seek(100)
            byte = opened.read(1)
            opened.seek(100)
            opened.write(bytes([byte[0] ^ 1]))
        return file

    def test_inspect(self):
        out = self._succeed("inspect", self._path("0"))
        for line in (
            rf"snapshot +{self._path('0')}",
            "kind +full",
            "table +deep",
            "dim +4",
            r"fields +weights float32\[4\], accumulator float32\[4\]",
            "rows +300 of 40 bytes",
            r"size +12.\d kB in 2 files",
            "shards +2",
            "step +1,200",
            r"versions +tf_ext \S+, TensorFlow 2\.21\.\d+",
            "config +hash_version=1, initializer=.*, optimizer=adagrad, .*",
        ):
            self.assertRegex(out, rf"(?m)^{line}$")
        self.assertNotIn("chain", out)

    def test_inspect_a_chain(self):
        out = self._succeed("inspect", self._path("1"))
        for line in (
            r"kind +delta, of \.\./0",
            "rows +70 of 40 bytes, 5 erased signs",
            r"chain of 2, 1\d.\d kB",
            " +kind +step +rows +erased +size +directory",
            rf"0 +full +1,200 +300 +0 +.* kB +{self._path('0')}",
            rf"1 +delta +- +70 +5 +.* kB +{self._path('1')}",
        ):
            self.assertRegex(out, rf"(?m)^{line}$")

    def test_verify(self):
        self.assertRegex(
            self._succeed("verify", self._path("1")),
            "/1 is whole: 4 files of a chain of 2 snapshots, 1.* kB.\n$",
        )

    def test_verify_names_all_damage(self):
        files = [self._damage("0"), self._damage("1")]
        status, out, err = util.run_command("verify", self._path("1"))
        self.assertEqual((status, out), (1, ""))
        self.assertRegex(
            err,
            rf"(?s)error: {files[0]} is damaged at byte 0: .*CRC32C.*\n"
            rf".*error: {files[1]} is damaged at byte 0: .*\n"
            r".*error: 2 of 4 files of .*/1 are damaged\.\n$",
        )

    def test_reshard_keeps_every_bit(self):
        wanted = _rows(self._path("0"))
        path = self._path("0")
        for shards in (1, 3, 5, 2):
            out = self._path(f"in{shards}")
            self.assertIn(
                f"{out}: 300 rows in {shards} shard",
                self._succeed("reshard", path, out, "--shards", shards),
            )
            self._succeed("verify", out)
            self.assertAllEqual(_rows(out), wanted)
            manifest = open_snapshot(out).manifest
            self.assertEqual(manifest.shards, shards)
            self.assertEqual(
                [f.shard for f in manifest.files], [*range(shards)]
            )
            path = out
        table = util.table(3, name="deep")
        self.assertEqual(table.load(path).step, 1200)
        self.assertEqual(contents(table), self.full)

    def test_reshard_in_several_passes(self):
        with unittest.mock.patch.object(writer, "_SHARDS_AT_ONCE", 2):
            self._succeed(
                "reshard", self._path("1"), self._path("5"), "--shards", 5
            )
        self._succeed("verify", self._path("5"))
        self.assertAllEqual(_rows(self._path("5")), _rows(self._path("1")))

    def test_compact(self):
        out = self._path("all")
        self.assertIn(
            "315 rows in 2 shards",
            self._succeed("compact", self._path("1"), out),
        )
        self.assertAllEqual(_rows(out), _rows(self._path("1")))
        manifest = open_snapshot(out).manifest
        self.assertEqual((manifest.kind, manifest.erased), ("full", 0))
        table = util.table(name="deep")
        table.load(out)
        self.assertEqual(contents(table), contents(self.table))

    def test_what_is_damaged_is_not_rewritten(self):
        file = self._damage("0")
        for command in (["compact"], ["reshard", "--shards=3"]):
            self._fail(
                1,
                f"{file} is damaged at byte 0: .*",
                *command,
                self._path("1"),
                self._path("all"),
            )
            self.assertFalse(os.path.exists(self._path("all")))

    def test_a_full_disk_leaves_nothing(self):
        os.makedirs(self._path("all"))
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with unittest.mock.patch("os.fsync", side_effect=full):
            self._fail(
                2,
                r".*No space left on device: '.*/all/rows-.*-000.chunks'",
                "compact",
                self._path("1"),
                self._path("all"),
            )
        self.assertEmpty(os.listdir(self._path("all")))

    def test_wrong_arguments(self):
        self._fail(2, "There is no snapshot in '/none': .*", "verify", "/none")
        self._fail(
            2,
            "Argument `out` must be a directory that is empty .*/1', which .*",
            "compact",
            self._path("1"),
            self._path("1"),
        )
        self._fail(
            2,
            "Argument `shards` of reshard must be .* from 1 to 100000. .*=0",
            "reshard",
            self._path("0"),
            self._path("x"),
            "--shards=0",
        )
        with unittest.mock.patch.dict(sys.modules, {"tensorflow": None}):
            self._fail(
                2,
                "gs://x is not local; .* TensorFlow, which .*",
                *("inspect", "gs://x"),
            )
        status, _, err = util.run_command("explode")
        self.assertEqual(status, 2)
        self.assertIn("invalid choice: 'explode'", err)

    def test_a_terminal_has_a_bar(self):
        status, out, err = util.run_command(
            "verify", self._path("1"), terminal=True
        )
        self.assertEqual(status, 0)
        self.assertIn("is whole", out)
        self.assertIn("verifying", err)

    def test_a_closed_pipe_is_no_error(self):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tf_ext.snapshot",
                "inspect",
                self.root + "/1",
            ],
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
        )
        os.close(write)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_to_parquet_without_pyarrow(self):
        with unittest.mock.patch.dict(sys.modules, {"pyarrow": None}):
            self._fail(
                2,
                r".*not installed: pip install 'tf_ext\[parquet\]'",
                "to-parquet",
                self._path("0"),
                self._path("0.parquet"),
            )

    def test_to_parquet(self):
        try:
            from pyarrow import parquet
        except ModuleNotFoundError:
            self.skipTest("pyarrow is not installed")
        out = self._path("1.parquet")
        self.assertIn(
            "315 rows", self._succeed("to-parquet", self._path("1"), out)
        )
        table = parquet.read_table(out)
        signs = table["sign"].to_pylist()
        self.assertEqual(
            {
                name: dict(zip(signs, table[name].to_pylist(), strict=True))
                for name in table.column_names[1:]
            },
            contents(self.table),
        )
        self.assertEqual(table.schema.metadata[b"tf_ext.label"], b"deep")
        self._damage("0")
        with open(out, "rb") as opened:
            whole = opened.read()
        self._fail(
            1, ".* is damaged at byte 0: .*", "to-parquet", self._path("1"), out
        )
        with open(out, "rb") as opened:
            self.assertEqual(opened.read(), whole)
        self.assertCountEqual(os.listdir(self.root), ["0", "1", "1.parquet"])


class ShardOfTest(TestCase):
    def test_is_the_servers(self):
        signs = np.array([0, -1, 5, 2**63 - 1, -(2**63)])
        self.assertAllEqual(_core.shard_of(signs, 1), np.zeros(5))
        shards = _core.shard_of(np.arange(10_000), 7)
        self.assertAllGreater(np.bincount(shards, minlength=7), 1200)
        with self.assertRaisesRegex(ValueError, "at least 1, but it is 0"):
            _core.shard_of(signs, 0)


if __name__ == "__main__":
    absltest.main()
