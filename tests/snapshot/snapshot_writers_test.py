# SPDX-License-Identifier: Apache-2.0
"""Several writers of one directory, and readers beside a writer."""

import contextlib
import fcntl
import os
import random
import shutil
import threading
import time
import unittest.mock

import processes
import pytest
import snapshot_util as util
import tensorflow as tf
from absl.testing import absltest, parameterized
from saving_util import TestCase, contents

import tf_ext
from tf_ext.ops.snapshot import snapshot_ops
from tf_ext.snapshot import (
    SnapshotConflictError,
    claims,
    open_snapshot,
    reader,
    storage,
    writer,
)
from tf_ext.tables.saving.snapshot_save import Save

pytestmark = pytest.mark.slow_tests(
    "WritersTest::test_the_save_that_began_last_counts[12]",
    "WritersTest::test_without_locks",
)


@contextlib.contextmanager
def _overtaken(op, table, path):
    """Another table is saved there right before an op is called."""
    call = getattr(snapshot_ops, op)

    def overtaken(*args):
        patch.stop()
        table.save(path)
        return call(*args)

    patch = unittest.mock.patch.object(snapshot_ops, op, side_effect=overtaken)
    patch.start()
    try:
        yield
    finally:
        patch.stop()


class _SlowSave(threading.Thread):
    """A save that takes a second or two; `error` is what it raised."""

    def __init__(self, table, path):
        super().__init__()
        self._table, self._path = table, path
        self.error = None
        self.start()
        deadline = time.monotonic() + 60
        while not self._has_begun() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _has_begun(self):
        return tf.io.gfile.isdir(self._path) and any(
            name.endswith(".claim") for name in tf.io.gfile.listdir(self._path)
        )

    def run(self):
        try:
            self._table.save(self._path, max_bytes_per_second=1_000_000)
        except Exception as error:
            self.error = error


class WritersTest(TestCase):
    def _large(self, shards=1):
        table = util.table(shards, dim=64)
        table.pull(range(3000), training=True)
        return table

    @parameterized.parameters((1, None), (2, None), (2, "ram://writers/0"))
    def test_the_save_that_began_last_counts(self, shards, path):
        path = path or self.directory()
        early, late = self._large(shards), util.table(shards, dim=64)
        util.push(late, range(30))
        slow = _SlowSave(early, path)
        late.save(path)
        self.assertTrue(slow.is_alive())
        slow.join()
        self.assertIsInstance(slow.error, SnapshotConflictError)
        self.assertRegex(
            str(slow.error),
            rf"^Saving table 'user' in '{path}' was aborted: another writer "
            ".*has started to write there since.*stop the job that should",
        )
        self.assertEqual(util.loaded(path, dim=64), contents(late))
        manifest = open_snapshot(path).manifest
        self.assertSameElements(
            tf.io.gfile.listdir(path),
            ["manifest.json", *(file.name for file in manifest.files)],
        )

    def test_the_other_process_is_named(self):
        path = self.directory()
        slow = _SlowSave(self._large(), path)
        # As of a save that does not end before this one has looked.
        with claims.Claim(path, "Another save").taken():
            pass
        slow.join()
        self.assertRegex(
            str(slow.error), rf"another writer \(process {os.getpid()} of "
        )

    def test_a_save_that_fails_leaves_the_others_files(self):
        path = self.directory()
        slow = _SlowSave(self._large(), path)
        with unittest.mock.patch.object(
            snapshot_ops,
            "write_file_atomically",
            side_effect=tf.errors.ResourceExhaustedError(None, None, "full"),
        ):
            with self.assertRaisesRegex(tf.errors.OpError, "full"):
                util.table(dim=64).save(path)
        # It took the directory, so neither save counts, and nothing is left.
        slow.join()
        self.assertIsInstance(slow.error, SnapshotConflictError)
        self.assertEmpty(os.listdir(path))

    def test_a_claim_of_a_killed_process_blocks_nobody(self):
        path = self.directory()
        claim = os.path.join(path, f"writer-host-1-{'a' * 16}.claim")
        for content in (b"", b"x"):
            with open(claim, "wb") as file:
                file.write(content)
            table = util.table()
            util.push(table, range(10))
            table.save(path)
            self.assertNotIn(os.path.basename(claim), os.listdir(path))
            self.assertEqual(util.loaded(path), contents(table))

    def test_a_directory_that_is_removed_during_a_save(self):
        path = os.path.join(self.directory(), "gone")
        table = self._large()
        slow = _SlowSave(table, path)
        shutil.rmtree(path)
        slow.join()
        self.assertIsInstance(slow.error, SnapshotConflictError)
        self.assertRegex(
            str(slow.error),
            rf"^Saving table 'user' in '{path}' was aborted: the directory "
            rf"{path} was removed meanwhile",
        )
        table.save(path)
        self.assertEqual(util.loaded(path, dim=64), contents(table))

    def test_a_directory_that_is_removed_before_it_is_held(self):
        path = os.path.join(self.directory(), "gone")
        os.mkdir(path)
        claim = claims.Claim(path, "Saving")
        with claim.taken():
            pass
        shutil.rmtree(path)
        with self.assertRaisesRegex(
            SnapshotConflictError, f"^Saving was aborted: the directory {path} "
        ):
            with claim.held():
                self.fail("Nobody holds what is not there.")

    def test_a_lock_that_is_not_freed(self):
        path = self.directory()
        table = util.table()
        opened = os.open(path, os.O_RDONLY)
        self.addCleanup(os.close, opened)
        fcntl.flock(opened, fcntl.LOCK_EX)
        with unittest.mock.patch.object(storage, "_LOCK_TIMEOUT_SECONDS", 0.05):
            with self.assertRaisesRegex(
                TimeoutError, f"^{path} has been locked by another process"
            ):
                table.save(path)
        self.assertEmpty(os.listdir(path))
        fcntl.flock(opened, fcntl.LOCK_UN)
        table.save(path)

    def test_without_locks(self):
        # As on network file systems.
        path = self.directory()
        late = util.table(dim=64)
        util.push(late, range(30))
        with unittest.mock.patch("fcntl.flock", side_effect=OSError(9, "no")):
            slow = _SlowSave(self._large(), path)
            late.save(path)
            slow.join()
        self.assertIsInstance(slow.error, SnapshotConflictError)
        self.assertEqual(util.loaded(path, dim=64), contents(late))

    def test_a_save_whose_files_are_removed_before_they_are_durable(self):
        path = self.directory()
        late = util.table()
        util.push(late, range(30))
        with (
            _overtaken("sync_files", late, path),
            self.assertRaisesRegex(SnapshotConflictError, "another writer"),
        ):
            util.table().save(path)
        self.assertEqual(util.loaded(path), contents(late))

    def test_without_locks_in_the_last_moment(self):
        path = self.directory()
        late = util.table()
        util.push(late, range(30))
        with (
            unittest.mock.patch("fcntl.flock", side_effect=OSError(9, "no")),
            _overtaken("write_file_atomically", late, path),
            self.assertRaisesRegex(SnapshotConflictError, "another wri"),
        ):
            util.table().save(path)

    def test_a_base_that_is_replaced_during_the_save(self):
        root = self.directory()
        paths = [os.path.join(root, name) for name in "012"]
        table = util.table()
        util.push(table, range(100))
        table.save(paths[0], incremental=True)
        util.push(table, range(50))
        table.save(paths[1], base=paths[0])
        util.push(table, [7])
        write = snapshot_ops.write_file_atomically

        def replacing(*args):
            patch.stop()
            util.table().save(paths[0])
            return write(*args)

        patch = unittest.mock.patch.object(
            snapshot_ops, "write_file_atomically", side_effect=replacing
        )
        patch.start()
        message = (
            "chain of table 'user' cannot be continued: .*/1 continues the "
            "snapshot .* has been replaced by .* `end_incremental"
        )
        with self.assertRaisesRegex(ValueError, message):
            table.save(paths[2], base=paths[1])
        # The same before it.
        with self.assertRaisesRegex(ValueError, message):
            table.save(paths[2], base=paths[1])
        table.end_incremental()
        table.save(paths[2], incremental=True)
        self.assertEqual(util.loaded(paths[2]), contents(table))

    def test_a_chain_that_goes_on_while_all_rows_are_written(self):
        root = self.directory()
        paths = [os.path.join(root, name) for name in "0123"]
        table = util.table()
        util.push(table, range(100))
        table.save(paths[0], incremental=True)
        [(_, first)] = table.rows.chain.links
        whole = Save(table.rows, paths[1], id=first)
        whole.begin()
        whole.write_own_rows()
        util.push(table, [7])
        table.save(paths[2], base=paths[0])
        whole.gather()
        whole.commit()
        whole.end()
        whole.remove_leftovers()
        # What was written is no longer the last of the chain.
        util.push(table, [8])
        table.save(paths[3], base=paths[2])
        self.assertEqual(util.loaded(paths[3]), contents(table))

    def test_a_last_snapshot_that_was_replaced(self):
        root = self.directory()
        paths = [os.path.join(root, name) for name in "01"]
        table = util.table()
        util.push(table, range(100))
        table.save(paths[0], incremental=True)
        util.table().save(paths[0])
        with self.assertRaisesRegex(
            ValueError,
            "table 'user' cannot be continued: the snapshot in '.*/0', its "
            "last, has been replaced.* `end_incremental",
        ):
            table.save(paths[1], base=paths[0])
        self.assertFalse(os.path.exists(paths[1]))

    def test_rewriting_and_saving(self):
        path, out = self.directory(), self.path("out")
        table = util.table()
        util.push(table, range(100))
        table.save(path)
        late = util.table()
        util.push(late, range(30))
        with self.assertRaisesRegex(
            SnapshotConflictError, f"^Writing {path} to {out} was aborted"
        ):
            tf_ext.snapshot.compact(path, out, lambda _: late.save(out))
        self.assertEqual(util.loaded(out), contents(late))
        self.assertLen(os.listdir(out), 2)

    def test_rewriting_twice(self):
        path, out = self.directory(), self.path("out")
        table = util.table()
        util.push(table, range(100))
        table.save(path)

        def again(_):
            tf_ext.snapshot.compact(path, out)

        # What a process has begun may be all that a killed one has left.
        with self.assertRaises(SnapshotConflictError):
            tf_ext.snapshot.compact(path, out, again)
        self.assertEqual(util.loaded(out), contents(table))
        with self.assertRaisesRegex(ValueError, "which holds files"):
            tf_ext.snapshot.compact(path, out)

    def test_rewriting_where_another_has_ended_meanwhile(self):
        path, out = self.directory(), self.path("out")
        table = util.table()
        util.push(table, range(100))
        table.save(path)
        claim = writer.Claim

        def late(*args):
            # After the directory has been found empty.
            with unittest.mock.patch.object(writer, "Claim", claim):
                tf_ext.snapshot.compact(path, out)
            return claim(*args)

        with unittest.mock.patch.object(writer, "Claim", late):
            with self.assertRaisesRegex(ValueError, "which holds files"):
                tf_ext.snapshot.compact(path, out)
        tf_ext.snapshot.open_snapshot(out).verify()
        self.assertLen(os.listdir(out), 2)

    @pytest.mark.slow
    def test_processes(self):
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        path = self.path("0")
        lines = processes.run(
            "snapshot_writers_program.py", "stress", path, seed
        )
        found = dict(line.split() for line in lines.splitlines())
        for what in ("saved", "conflict", "read"):
            self.assertGreater(int(found[what]), 0, found)
        names = {file.name for file in open_snapshot(path).manifest.files}
        self.assertEqual({*os.listdir(path)}, {"manifest.json", *names})

    @pytest.mark.slow
    def test_a_process_that_is_stopped(self):
        printed = processes.run(
            "snapshot_writers_program.py", "stop", self.path("0"), 0
        )
        self.assertRegex(printed, "in '.*' was aborted: another writer")


class ReadersTest(TestCase):
    """A save that replaces the snapshot while it is read."""

    def setUp(self):
        super().setUp()
        self.path = self.directory()
        self.tables = []
        for rows in (300, 200, 100, 50):
            table = util.table(2)
            util.push(table, range(rows))
            self.tables.append(table)
        self.tables[0].save(self.path)

    def _replaced_before(self, module, name, saves=1):
        """Makes the first calls of a function come after another save."""
        function = getattr(module, name)
        pending = self.tables[1 : 1 + saves]

        def call(*args, **kwargs):
            if pending:
                pending.pop(0).save(self.path)
            return function(*args, **kwargs)

        patch = unittest.mock.patch.object(module, name, side_effect=call)
        patch.start()
        self.addCleanup(patch.stop)
        return patch

    @parameterized.parameters(0, 10)
    def test_load(self, rows):
        table = util.table()
        util.push(table, range(rows))
        self._replaced_before(snapshot_ops, "sparse_table_restore")
        table.load(self.path)
        self.assertEqual(contents(table), contents(self.tables[1]))

    @parameterized.parameters(0, 10)
    def test_load_again_and_again(self, rows):
        table = util.table()
        util.push(table, range(rows))
        before = contents(table)
        self._replaced_before(snapshot_ops, "sparse_table_restore", 3)
        with self.assertRaisesRegex(
            SnapshotConflictError,
            f"^The snapshot in {self.path} was replaced by another save while",
        ):
            table.load(self.path)
        self.assertEqual(contents(table), before)

    def test_chunks(self):
        snapshot = open_snapshot(self.path)
        self.tables[1].save(self.path)
        rows = sum(len(signs) for signs, _ in snapshot.chunks())
        self.assertEqual(rows, 200)
        self.assertEqual(snapshot.manifest.rows, 200)

    def test_chunks_when_some_were_read(self):
        chunks = open_snapshot(self.path).chunks()
        next(chunks)
        self.tables[1].save(self.path)
        with self.assertRaisesRegex(
            SnapshotConflictError, f"^The snapshot in {self.path} was replaced"
        ):
            list(chunks)

    def test_verify(self):
        snapshot = open_snapshot(self.path)
        self.tables[1].save(self.path)
        snapshot.verify()
        self.assertEqual(snapshot.manifest.rows, 200)

    def test_verify_again_and_again(self):
        snapshot = open_snapshot(self.path)
        self._replaced_before(reader, "read_chunks", 3)
        with self.assertRaisesRegex(SnapshotConflictError, "was replaced by"):
            snapshot.verify()

    def test_a_file_that_is_lost_is_damage(self):
        snapshot = open_snapshot(self.path)
        os.remove(util.data_files(self.path)[1])
        for read in (
            snapshot.verify,
            lambda: list(snapshot.chunks()),
            lambda: util.table().load(self.path),
        ):
            with self.assertRaisesRegex(
                tf_ext.snapshot.DamagedSnapshotError, "is missing: "
            ):
                read()

    @parameterized.parameters("verify", "compact", "reshard", "to-parquet")
    def test_commands(self, command):
        out = self.path + ".out"
        arguments = {
            "compact": [out],
            "reshard": [out, "--shards", "3"],
            "to-parquet": [out],
        }.get(command, [])
        if command == "to-parquet":
            try:
                import pyarrow  # noqa: F401
            except ModuleNotFoundError:
                self.skipTest("pyarrow is not installed")
        self._replaced_before(reader, "read_chunks")
        status, printed, error = util.run_command(
            command, self.path, *arguments
        )
        self.assertEqual((status, error), (0, ""))
        if command in ("compact", "reshard"):
            self.assertEqual(util.loaded(out), contents(self.tables[1]))
        if command == "to-parquet":
            self.assertIn("200 rows", printed)

    def test_a_command_again_and_again(self):
        self._replaced_before(reader, "read_chunks", 3)
        status, _, error = util.run_command("verify", self.path)
        self.assertEqual(status, 2)
        self.assertRegex(error, "error: The snapshot in .* was replaced by")


if __name__ == "__main__":
    absltest.main()
