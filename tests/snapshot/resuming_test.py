# SPDX-License-Identifier: Apache-2.0
"""Snapshots that are rewritten by one process after the other."""

import json
import os
import shutil
import tempfile
import unittest.mock

import numpy as np
import pytest
import snapshot_util as util
from absl.testing import absltest, parameterized
from cases import transform_cases as cases
from transform_util import TransformTestCase
from transform_util import table as table_of

from tf_ext.snapshot import (
    SnapshotConflictError,
    compact,
    open_snapshot,
    reshard,
    transform,
    writer,
)
from tf_ext.snapshot.sealed_json import seal

pytestmark = pytest.mark.slow_tests(
    "DirectoryTest::test_a_*",
    "DirectoryTest::test_what_the_later_process_has_recorded_stays1",
    "OtherWorkTest::test_a_sealed_record_that_does_not_fit0",
    "OtherWorkTest::test_other_signs",
    "OtherWorkTest::test_some_flipped_bytes_of_the_record",
    "ResumingTest::test_a_later_run_goes_*",
)


_RECORD = "unfinished.json"


class _Killed(BaseException):
    pass


class ResumingTestCase(TransformTestCase):
    """Tests whose runs record how far they are after each block."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.sources = tempfile.mkdtemp(prefix="tf_ext_resuming_")
        cls.addClassCleanup(shutil.rmtree, cls.sources)
        cls.counting = cases.save(cls.sources)

    def setUp(self):
        super().setUp()
        patch = cases.patched()
        patch.__enter__()
        self.addCleanup(patch.__exit__, None, None, None)
        self.new = self.path("new")

    def source(self, name):
        """The path of one of the snapshots that are rewritten."""
        return os.path.join(self.sources, name)

    def run_killed(self, run, reads):
        """Leaves what a process does that is killed after some reads."""
        left = reads

        def progress(_):
            nonlocal left
            left -= 1
            if left < 0:
                raise _Killed

        with unittest.mock.patch.object(
            writer._Work, "discard", lambda self: None
        ):
            with self.assertRaises(_Killed):
                run(progress)

    def run_counted(self, run):
        """How many rows a run has made that is not killed."""
        with cases.counted() as counts:
            run(None)
        return sum(counts)

    def recorded_rows(self):
        """How many rows a record says are written, or 0 without one."""
        return cases.recorded_rows(self.new)

    def check(self, run, made):
        """Runs once more, and checks how many rows it makes, and the result."""
        self.assertEqual(self.run_counted(run), made)
        manifest = open_snapshot(self.new).manifest
        names = [file.name for file in manifest.all_files]
        self.assertCountEqual(os.listdir(self.new), [*names, "manifest.json"])
        return manifest


class ResumingTest(ResumingTestCase):
    @parameterized.parameters("chain", "merge_mean", "reshard")
    def test_a_later_run_goes_on(self, name):
        # When a file of the merged one has no rows yet.
        self._check_goes_on(name, [0.4])

    @parameterized.parameters(*cases.CASES)
    @pytest.mark.slow
    def test_a_later_run_goes_on_from_anywhere(self, name):
        self._check_goes_on(name, np.arange(0.02, 1, 0.07))

    def _check_goes_on(self, name, moments):
        run = cases.run_of(name, self.sources, self.new)
        all_sizes = []
        conversion = run(all_sizes.append).conversion
        wanted = cases.contents(self.new)
        rows = open_snapshot(self.new).manifest.rows
        shutil.rmtree(self.new)
        resumed = 0
        for moment in moments:
            self.run_killed(run, int(moment * len(all_sizes)))
            recorded = self.recorded_rows()
            sizes, found = [], []
            self.check(
                lambda _, sizes=sizes, found=found: found.append(
                    run(sizes.append)
                ),
                rows - recorded,
            )
            self.assertEqual(found[0].conversion, conversion)
            self.assertEqual(
                sum(sizes), cases.bytes_to_read(name, self.sources)
            )
            self.assertEqual(cases.contents(self.new), wanted)
            shutil.rmtree(self.new)
            resumed += recorded > 0
        self.assertGreater(resumed, len(moments) / 3)

    def test_runs_that_are_killed_again_and_again(self):
        run = cases.run_of("chain", self.sources, self.new)
        run(None)
        wanted = cases.contents(self.new)
        rows = open_snapshot(self.new).manifest.rows
        shutil.rmtree(self.new)
        before = 0
        for reads in (3, 4, 5):
            self.run_killed(run, reads)
            recorded = self.recorded_rows()
            self.assertGreaterEqual(recorded, before)
            before = recorded
        self.assertGreater(before, 0)
        self.check(run, rows - before)
        self.assertEqual(cases.contents(self.new), wanted)
        table = table_of(cases.DIM + 1, **self.counting)
        table.load(self.new)
        self.assertEqual(table.size(), rows)

    def test_without_a_record_nothing_is_skipped(self):
        def run(progress):
            return transform(
                self.source("plain"),
                self.new,
                keep=lambda signs, _: signs % 2 == 0,
                progress=progress,
            )

        self.run_killed(run, 6)
        self.assertNotIn(_RECORD, os.listdir(self.new))
        self.assertNotEmpty(os.listdir(self.new))
        self.check(run, cases.ROWS // 2)

    def test_the_distance_of_records(self):
        # Of two files with 7.7 MiB each.
        for least, chunks, records in ((3 << 20, 0, 4), (1, 4, 3)):
            with (
                unittest.mock.patch.multiple(
                    writer, _BYTES_PER_RECORD=least, _CHUNKS_PER_RECORD=chunks
                ),
                unittest.mock.patch.object(
                    writer.resuming, "write", wraps=writer.resuming.write
                ) as written,
            ):
                transform(self.source("plain"), self.new, name="other")
            self.assertEqual(written.call_count, records)
            shutil.rmtree(self.new)


class OtherWorkTest(ResumingTestCase):
    """Records that are not those of the work begin it anew."""

    def _kill(self, reads=5, **arguments):
        arguments = {"dim": cases.DIM + 1} | arguments

        def run(progress):
            return transform(
                self.source("plain"), self.new, progress=progress, **arguments
            )

        shutil.rmtree(self.new, ignore_errors=True)
        self.run_killed(run, reads)
        self.assertGreater(self.recorded_rows(), 0)
        return run

    @pytest.mark.slow
    def test_other_arguments(self):
        signs = np.arange(50)
        eye = np.eye(cases.DIM, 3)
        other = [
            {"dim": cases.DIM + 2},
            {"name": "other"},
            {"optimizer": "sgd"},
            {"dtype": "float16"},
            {"slot_dtype": "bfloat16"},
            {"drop": signs},
            {"drop": signs + 1},
            {"keep": signs},
            {"drop": "sign < 50"},
            {"keep": "sign < 50"},
            {"dim": None, "projection": eye},
            {"dim": None, "projection": eye * 2},
            {"merge": self.source("other")},
            {"merge": self.source("other"), "by": "mean"},
        ]
        wanted = []
        for arguments in other:
            arguments = {"dim": cases.DIM + 1} | arguments
            transform(self.source("plain"), self.new, **arguments)
            wanted.append(cases.contents(self.new))
            shutil.rmtree(self.new)
        for index, arguments in enumerate(other):
            before = other[index - 1]
            self._kill(20 if "merge" in before else 5, **before)
            arguments = {"dim": cases.DIM + 1} | arguments
            transform(self.source("plain"), self.new, **arguments)
            self.assertEqual(cases.contents(self.new), wanted[index])

    def test_other_signs(self):
        signs = np.arange(50)
        np.save(self.path("signs.npy"), signs)
        plain, dim = self.source("plain"), cases.DIM + 1
        self._kill(drop=signs)
        self.check(
            lambda _: transform(plain, self.new, dim=dim, drop=signs + 1),
            cases.ROWS - 50,
        )
        self._kill(drop=signs)
        self.check(
            lambda _: transform(
                plain, self.new, dim=dim, name="other", drop=signs
            ),
            cases.ROWS - 50,
        )
        # The same, said in another way.
        self._kill(drop=signs)
        recorded = self.recorded_rows()
        self.check(
            lambda _: transform(
                self.source("plain"),
                self.new,
                dim=cases.DIM + 1,
                drop=[self.path("signs.npy")],
            ),
            cases.ROWS - 50 - recorded,
        )

    def test_another_command(self):
        plain = self.source("plain")
        run = self._kill()
        for command in (
            lambda _: compact(plain, self.new),
            lambda _: reshard(plain, self.new, 2),
        ):
            self.check(command, cases.ROWS)
            shutil.rmtree(self.new)
            self.run_killed(run, 5)

    def test_a_source_that_was_replaced(self):
        source = shutil.copytree(self.source("plain"), self.path("source"))

        def run(progress):
            return transform(source, self.new, dim=9, progress=progress)

        self.run_killed(run, 5)
        self.assertGreater(self.recorded_rows(), 0)
        table = table_of(cases.DIM)
        util.push(table, range(500, 700))
        table.save(source)
        self.check(run, 200)

    def test_another_version(self):
        run = self._kill()
        with unittest.mock.patch.object(writer, "__version__", "9.9"):
            self.check(run, cases.ROWS)

    def _change(self, name, change):
        path = os.path.join(self.new, name)
        with open(path, "rb") as file:
            before = file.read()
        with open(path, "wb") as file:
            file.write(change(before))

    def _of_record(self, *kinds):
        with open(os.path.join(self.new, _RECORD)) as file:
            record = json.load(file)
        return [file for kind in kinds for file in record[kind]]

    def test_files_that_are_not_as_recorded(self):
        run = self._kill(14)
        recorded = self.recorded_rows()
        [complete] = self._of_record("files")
        [begun] = self._of_record("begun")
        kept = shutil.copytree(self.new, self.path("kept"))
        run(None)
        wanted = cases.contents(self.new)
        for name, change, made in (
            (complete["name"], lambda data: data[:-1], cases.ROWS),
            (complete["name"], lambda data: data + b"x", cases.ROWS),
            (complete["name"], None, cases.ROWS),
            (begun["name"], lambda data: data[:-1], cases.ROWS),
            (begun["name"], None, cases.ROWS),
            (
                begun["name"],
                lambda data: data[:5000] + b"\xff" + data[5001:],
                cases.ROWS,
            ),
            # What the killed process wrote after the record.
            (
                begun["name"],
                lambda data: data + b"x" * 5000,
                cases.ROWS - recorded,
            ),
        ):
            shutil.rmtree(self.new)
            shutil.copytree(kept, self.new)
            if change is None:
                os.remove(os.path.join(self.new, name))
            else:
                self._change(name, change)
            self.check(run, made)
            self.assertEqual(cases.contents(self.new), wanted)

    @parameterized.parameters(("begun", []), ("rounded", [0, 0, -1]))
    def test_a_sealed_record_that_does_not_fit(self, member, value):
        self._check_record_of(member, value)

    @parameterized.parameters(
        ("passes", 0),
        ("passes", 2),
        ("passes", 9),
        ("passes", -1),
        ("blocks", 0),
        ("blocks", "1"),
        ("rounded", [0, 0]),
        ("rounded", None),
        ("files", []),
        ("begun", {}),
        ("counters", [{}]),
        ("format", 99),
        ("work", "x"),
    )
    @pytest.mark.slow
    def test_a_sealed_record_of_something_else(self, member, value):
        self._check_record_of(member, value)

    def _check_record_of(self, member, value):
        run = self._kill(14)

        def change(data):
            record = json.loads(data)
            del record["crc32c"]
            return seal(record | {member: value})

        self._change(_RECORD, change)
        self.check(run, cases.ROWS)

    def test_some_flipped_bytes_of_the_record(self):
        self._check_damage(500)

    @pytest.mark.slow
    def test_flipped_bytes_of_the_record(self):
        self._check_damage(3)

    def _check_damage(self, step):
        run = self._kill(14)
        kept = shutil.copytree(self.new, self.path("kept"))
        size = os.path.getsize(os.path.join(kept, _RECORD))
        run(None)
        wanted = cases.contents(self.new)
        for at in range(0, size, step):
            for change in (
                lambda data, at=at: (
                    data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                ),
                lambda data, at=at: data[:at],
            ):
                shutil.rmtree(self.new)
                shutil.copytree(kept, self.new)
                self._change(_RECORD, change)
                self.check(run, cases.ROWS)
                self.assertEqual(cases.contents(self.new), wanted)


class DirectoryTest(ResumingTestCase):
    """What else may happen in the directory."""

    def _run(self, progress=None):
        return transform(
            self.source("plain"),
            self.new,
            dim=cases.DIM + 1,
            progress=progress,
        )

    def test_an_error_leaves_nothing(self):
        self.run_killed(self._run, 9)
        self.assertGreater(self.recorded_rows(), 0)
        for error in (KeyboardInterrupt, MemoryError, OSError):
            left = 6

            def fail(_, error=error):
                nonlocal left
                left -= 1
                if left == 0:
                    raise error

            with self.assertRaises(error):
                self._run(fail)
            self.assertEmpty(os.listdir(self.new))
            self.run_killed(self._run, 9)
            self.assertGreater(self.recorded_rows(), 0)

    def test_a_save_removes_it(self):
        self.run_killed(self._run, 9)
        table = table_of(cases.DIM)
        util.push(table, range(5))
        manifest = table.save(self.new)
        names = [file.name for file in manifest.all_files]
        self.assertCountEqual(os.listdir(self.new), [*names, "manifest.json"])

    def test_files_are_durable_before_they_are_recorded(self):
        storage, synced = writer.storage_of(self.new), {}
        sync, write = storage.sync, writer.resuming.write

        def synced_now(name):
            sync(name)
            synced[os.path.basename(name)] = os.path.getsize(name)

        def written(storage, out, record):
            for file in record.begun:
                self.assertEqual(synced[file.name], file.bytes)
            write(storage, out, record)

        with (
            unittest.mock.patch.object(storage, "sync", synced_now),
            unittest.mock.patch.object(writer.resuming, "write", written),
        ):
            self._run()
        self.assertNotEmpty(synced)

    def test_the_later_of_two_processes_goes_on(self):
        self._run()
        wanted = cases.contents(self.new)
        shutil.rmtree(self.new)
        made = []
        for at in (3, 9, 13):
            left = at

            def overtaken(_):
                nonlocal left
                left -= 1
                if left == 0:
                    recorded = self.recorded_rows()
                    self.check(self._run, cases.ROWS - recorded)
                    made.append(recorded)

            with self.assertRaisesRegex(SnapshotConflictError, "precedence"):
                self._run(overtaken)
            # What the earlier one did afterwards changes nothing.
            manifest = open_snapshot(self.new).manifest
            names = [file.name for file in manifest.all_files]
            self.assertCountEqual(
                os.listdir(self.new), [*names, "manifest.json"]
            )
            self.assertEqual(cases.contents(self.new), wanted)
            shutil.rmtree(self.new)
        self.assertGreater(min(made[1:]), 0)

    # Without begun files, a record is the first thing that would be changed.
    @parameterized.parameters((9, 5, True), (5, 12, False))
    def test_what_the_later_process_has_recorded_stays(self, at, reads, keeps):
        self._run()
        wanted = cases.contents(self.new)
        shutil.rmtree(self.new)
        left, storage = at, writer.storage_of(self.new)

        def overtaken(_):
            nonlocal left
            left -= 1
            if left == 0:
                self.run_killed(self._run, reads)

        with unittest.mock.patch.object(storage, "keeps_open_files", keeps):
            with self.assertRaises(SnapshotConflictError):
                self._run(overtaken)
            recorded = self.recorded_rows()
            self.assertGreater(recorded, 0)
            self.check(self._run, cases.ROWS - recorded)
        self.assertEqual(cases.contents(self.new), wanted)

    def test_a_file_of_the_earlier_process_is_not_continued(self):
        self.run_killed(self._run, 5)
        [begun] = [n for n in os.listdir(self.new) if n.endswith(".chunks")]
        with open(os.path.join(self.new, begun), "ab") as file:
            left = 3

            def late(_):
                nonlocal left
                left -= 1
                if left > 0:
                    file.write(b"late" * 1000)
                    file.flush()

            self._run(late)
            file.write(b"late")
        open_snapshot(self.new).verify()
        self.assertNotIn(begun, os.listdir(self.new))

    def test_where_unfinished_files_are_not_kept(self):
        storage = writer.storage_of(self.new)
        with unittest.mock.patch.object(storage, "keeps_open_files", False):
            self.run_killed(self._run, 14)
            recorded = self.recorded_rows()
            self.assertGreater(recorded, 0)
            self.check(self._run, cases.ROWS - recorded)


if __name__ == "__main__":
    absltest.main()
