# SPDX-License-Identifier: Apache-2.0
"""What is on the disk before a snapshot counts: calls that reach the system."""

import os
import tempfile
import unittest.mock

import file_log
import processes
import pytest
import tensorflow as tf
from absl.testing import absltest, parameterized

from tf_ext.snapshot import open_snapshot

pytestmark = pytest.mark.slow


class DurabilityTest(parameterized.TestCase, tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        temporary = tempfile.TemporaryDirectory(prefix="tf_ext_durable_")
        cls.addClassCleanup(temporary.cleanup)
        folder = os.path.realpath(temporary.name)
        cls.root = os.path.join(folder, "root")
        os.mkdir(cls.root)
        log = os.path.join(folder, "log")
        variables = {
            "LD_PRELOAD": file_log.compiled(folder),
            "FILE_LOG": log,
            "FILE_LOG_ROOT": cls.root,
        }
        with unittest.mock.patch.dict(os.environ, variables):
            processes.run("snapshot_durability_program.py", cls.root)
        cls.calls = {}
        with open(log) as file:
            for line in file:
                call = line.split()
                if call[0] == "begin":
                    cls.calls[call[1]] = []
                elif cls.calls:
                    list(cls.calls.values())[-1].append(tuple(call))

    def _path(self, *names):
        return os.path.join(self.root, "made", *names)

    def _after(self, calls, begin, *call):
        """The place of the first such call from `begin` on."""
        self.assertIn(call, calls[begin:], f"from {begin} of {calls}")
        return calls.index(call, begin)

    def _check_commit(self, calls, name, begin=0):
        """Checks how a file was written; returns the place after it."""
        directory = os.path.dirname(name)
        part = f"{name}.part"
        size = str(os.path.getsize(name))
        synced = self._after(calls, begin, "sync", part, size)
        renamed = self._after(calls, synced, "rename", part, name)
        return self._after(calls, renamed, "sync", directory, "directory")

    @parameterized.parameters("full", "delta", "replaced", "compact", "reshard")
    def test_snapshot(self, name):
        calls, path = self.calls[name], self._path(name)
        manifest = open_snapshot(path).manifest
        self.assertLen(manifest.files, 3 if name == "reshard" else 2)
        rows = 0
        for file in manifest.files:
            row_file = os.path.join(path, file.name)
            rows = max(
                rows, self._after(calls, 0, "sync", row_file, str(file.bytes))
            )
        # The names of the files, and then what makes them the snapshot.
        named = self._after(calls, rows, "sync", path, "directory")
        commit = os.path.join(path, "manifest.json")
        renamed = self._after(calls, named, "rename", f"{commit}.part", commit)
        self.assertLen([c for c in calls if c[0] == "rename"], 1)
        committed = self._check_commit(calls, commit)
        self.assertLess(renamed, committed)
        removed = [
            index
            for index, call in enumerate(calls)
            if call[0] == "remove" and call[1].endswith(".chunks")
        ]
        self.assertLen(removed, 2 if name == "replaced" else 0)
        for index in removed:
            self.assertGreater(index, committed)
        if name != "replaced":  # The directory is new.
            parent = self._path()
            made = self._after(calls, 0, "sync", parent, "directory")
            self.assertLess(made, renamed)

    def test_recovery_point(self):
        calls = self.calls["points"]
        root = self._path("points")
        [point] = os.listdir(root)
        point = os.path.join(root, point)
        [variables] = [
            name for name in os.listdir(point) if name.startswith("variables-")
        ]
        table = os.path.join(point, "table-000", "manifest.json")
        made = self._after(calls, 0, "sync", root, "directory")
        saved = self._check_commit(calls, table, made)
        self._after(calls, made, "sync", point, "directory")
        stated = self._check_commit(
            calls, os.path.join(point, variables), saved
        )
        last = self._check_commit(
            calls, os.path.join(point, "point.json"), stated
        )
        # The point before is there until then, and goes first file first.
        before = os.path.join(root, "point-0000000008")
        removed = [
            call[1]
            for call in calls[last:]
            if call[0] == "remove" and call[1].startswith(before)
        ]
        self.assertEqual(removed[0], os.path.join(before, "point.json"))
        self.assertGreater(len(removed), 3)
        first = os.path.join(before, "point.json")
        whole = self._after(calls, 0, "rename", f"{first}.part", first)
        self.assertNotIn(("remove", first, "-"), calls[whole:last])

    @pytest.mark.slow
    def test_weights(self):
        calls = self.calls["weights"]
        file = self._path("model.weights.h5")
        part = self._path("model.part.weights.h5")
        size = str(os.path.getsize(file))
        synced = self._after(calls, 0, "sync", part, size)
        renamed = self._after(calls, synced, "rename", part, file)
        self._after(calls, renamed, "sync", self._path(), "directory")

    @pytest.mark.slow
    def test_export(self):
        calls = self.calls["export"]
        root = self._path("versions")
        version = os.path.join(root, "1")
        [renamed] = [i for i, c in enumerate(calls) if c[-1] == version]
        part = calls[renamed][1]
        for folder, _, names in os.walk(version):
            inside = os.path.normpath(
                os.path.join(part, os.path.relpath(folder, version))
            )
            for call in [
                ("sync", inside, "directory"),
                *(
                    (
                        "sync",
                        os.path.join(inside, name),
                        str(os.path.getsize(os.path.join(folder, name))),
                    )
                    for name in names
                ),
            ]:
                self.assertLess(self._after(calls, 0, *call), renamed)
        self._after(calls, renamed, "sync", root, "directory")
        self._after(calls, 0, "sync", self._path(), "directory")


if __name__ == "__main__":
    absltest.main()
