# SPDX-License-Identifier: Apache-2.0
"""Snapshots that are damaged, and disks that are full or read-only."""

import contextlib
import os
import random
import shutil
import subprocess
from unittest import mock

import pytest
import snapshot_util as util
import tensorflow as tf
from absl.testing import absltest
from saving_util import TestCase, contents

from tf_ext.regimes.processes import Processes
from tf_ext.snapshot.manifest import DamagedSnapshotError

pytestmark = pytest.mark.slow_tests(
    "DamageTest::test_flipped_bytes",
    "DamageTest::test_truncations",
)


def _tenth(test):
    """The test with a tenth of the full count, and with all if it is slow."""

    def quick(self):
        test(self, 10)

    @pytest.mark.slow
    def full(self):
        test(self, 1)

    return quick, full


class DamageTest(TestCase):
    def setUp(self):
        super().setUp()
        root = self.directory()
        self.paths = [os.path.join(root, name) for name in "01"]
        table = util.table(2)
        util.push(table, range(300))
        table.save(self.paths[0], incremental=True)
        util.push(table, range(250, 320), 1)
        table.erase(range(5))
        table.save(self.paths[1], base=self.paths[0])
        self.wanted = contents(table)
        self.files = [
            os.path.join(path, name)
            for path in self.paths
            for name in os.listdir(path)
        ]
        seed = random.randrange(2**32)
        self.random = random.Random(seed)
        print(f"seed {seed}")
        # Both kinds of table that a load may be into.
        self.empty, self.full = util.table(), util.table(3)
        util.push(self.full, [1, 1000], 2)
        self.before = contents(self.full)

    def test_what_another_process_finds_is_raised_here(self):
        text = "'/tmp/x' is damaged at byte 12"
        for error in (DamagedSnapshotError(text), ValueError("no space")):

            @contextlib.contextmanager
            def together(processes, what, error=error):
                yield
                # As of `Collectives.together`.
                raise RuntimeError(f"{what}: {type(error).__name__}: {error}")

            damaged = isinstance(error, DamagedSnapshotError)
            wanted = DamagedSnapshotError if damaged else RuntimeError
            with mock.patch.object(Processes, "together", together):
                with self.assertRaisesRegex(wanted, str(error)) as raised:
                    self.full.load(self.paths[0])
            self.assertIs(type(raised.exception), wanted)

    def _assert_refused(self, file):
        with self.assertRaisesRegex(
            DamagedSnapshotError, rf"^{file} is damaged.* byte \d+"
        ):
            self.empty.load(self.paths[1])
        self.assertEqual(self.empty.size(), 0)
        with self.assertRaises(DamagedSnapshotError):
            self.full.load(self.paths[1])
        self.assertEqual(contents(self.full), self.before)

    @contextlib.contextmanager
    def _changed(self, file, change):
        with open(file, "rb") as opened:
            whole = opened.read()
        data = bytearray(whole)
        change(data)
        with open(file, "wb") as opened:
            opened.write(data)
        yield
        with open(file, "wb") as opened:
            opened.write(whole)

    def _flips(self, part):
        for _ in range(2000 // part):
            file = self.random.choice(self.files)

            def flip(data):
                place = self.random.randrange(len(data))
                data[place] ^= self.random.randrange(1, 256)

            with self._changed(file, flip):
                self._assert_refused(file)
        self._assert_whole()

    def _truncations(self, part):
        for _ in range(500 // part):
            file = self.random.choice(self.files)

            def cut(data):
                del data[self.random.randrange(len(data)) :]

            with self._changed(file, cut):
                self._assert_refused(file)
        self._assert_whole()

    def _assert_whole(self):
        self.full.load(self.paths[1])
        self.assertEqual(contents(self.full), self.wanted)

    test_flipped_bytes, test_flipped_bytes_all = _tenth(_flips)
    test_truncations, test_truncations_all = _tenth(_truncations)

    def test_a_missing_file(self):
        file = util.data_files(self.paths[0])[1]
        os.rename(file, file + ".away")
        for table in (self.empty, self.full):
            with self.assertRaisesRegex(
                DamagedSnapshotError, f"is missing: .*{file}"
            ):
                table.load(self.paths[1])
        self.assertEqual(self.empty.size(), 0)
        self.assertEqual(contents(self.full), self.before)

    def test_a_file_of_another_snapshot(self):
        table = util.table(2)
        table.save(self.paths[0] + "x")
        files = [
            util.data_files(path)[0]
            for path in (self.paths[0] + "x", self.paths[0])
        ]
        shutil.copy(*files)
        self._assert_refused(files[1])


class DiskTest(TestCase):
    def _table(self, rows=200):
        table = util.table(dim=256)
        util.push(table, range(rows))
        return table

    def test_a_full_disk(self):
        disk = self.directory()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            self.skipTest("mounting a tmpfs is not permitted")
        self.addCleanup(subprocess.run, ["umount", disk], check=True)
        paths = [os.path.join(disk, str(number)) for number in range(3)]
        table = self._table(300)
        table.save(paths[0], incremental=True)
        saved = contents(table)
        util.push(table, range(150, 400), 1)
        table.erase([3])
        for arguments in ({"base": paths[0]}, {}):
            with self.assertRaisesRegex(
                tf.errors.ResourceExhaustedError,
                f"{paths[1]}/rows-.*No space left on device",
            ):
                table.save(paths[1], **arguments)
            self.assertEmpty(os.listdir(paths[1]))
            self.assertEqual(util.loaded(paths[0], dim=256), saved)
        # Nor does a full disk lose what is to be replaced.
        table.end_incremental()
        with self.assertRaises(tf.errors.ResourceExhaustedError):
            table.save(paths[0])
        self.assertEqual(util.loaded(paths[0], dim=256), saved)

    def test_a_full_disk_during_a_delta(self):
        disk = self.directory()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            self.skipTest("mounting a tmpfs is not permitted")
        self.addCleanup(subprocess.run, ["umount", disk], check=True)
        paths = [os.path.join(disk, str(number)) for number in range(2)]
        table = self._table()
        table.save(paths[0], incremental=True)
        util.push(table, range(150, 250), 1)
        table.erase([3])
        filler = os.path.join(disk, "filler")
        with open(filler, "wb") as file:
            with contextlib.suppress(OSError):
                file.write(bytes(1 << 20))
        with self.assertRaises(tf.errors.ResourceExhaustedError):
            table.save(paths[1], base=paths[0])
        util.push(table, [7], 2)
        os.remove(filler)
        table.save(paths[1], base=paths[0])
        self.assertEqual(util.loaded(paths[1], dim=256), contents(table))

    def test_a_read_only_directory(self):
        path = self.directory()
        table = self._table()
        table.save(path)
        saved = contents(table)
        util.push(table, range(300), 1)
        # Not by its mode, which does not bind root.
        mount = ["mount", "--bind", "-o", "ro", path, path]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            self.skipTest("mounting is not permitted")
        try:
            with self.assertRaisesRegex(
                OSError, f"Read-only file system: '{path}/writer-"
            ):
                table.save(path)
            self.assertEqual(util.loaded(path, dim=256), saved)
        finally:
            subprocess.run(["umount", path], check=True)

    def test_a_directory_that_cannot_be_made(self):
        path = self.path("file")
        with open(path, "w") as file:
            file.write("mine")
        with self.assertRaisesRegex(NotADirectoryError, f"{path}"):
            self._table().save(os.path.join(path, "0"))


if __name__ == "__main__":
    absltest.main()
