# SPDX-License-Identifier: Apache-2.0
"""A version is there whole or not at all, whenever the process is killed."""

import json
import os
import pathlib
import tempfile

import file_log
import processes
import pytest
from absl.testing import absltest

_SEED = 4


class ExportKillTest(absltest.TestCase):
    @pytest.mark.slow
    def test_versions(self):
        folder = tempfile.TemporaryDirectory(prefix="tf_ext_export_")
        root = pathlib.Path(os.path.realpath(self.enterContext(folder)))
        models = root / "models"
        models.mkdir()
        print(f"seed {_SEED}")
        printed = processes.run(
            "export_kill_program.py",
            models,
            _SEED,
            LD_PRELOAD=file_log.compiled(root),
            FILE_LOG_ROOT=str(models),
        )
        found = json.loads(printed.splitlines()[-1])
        # Until the name is taken there is the old version alone.
        taken = found["calls"] - 1
        for kill, state in found["states"]:
            new = {"2": 9} if kill >= taken else {}
            self.assertEqual(state, {"1": 5, **new}, kill)
        self.assertEqual(found["states"][-1][0], taken)
        self._assert_durable(models, (root / "calls").read_text())

    def _assert_durable(self, models, log):
        """All files, then all folders' names, are durable before the rename."""
        lines = [line.split() for line in log.splitlines()]
        # The last, after TensorFlow's own.
        renamed = max(i for i, line in enumerate(lines) if line[0] == "rename")
        _, part, version = lines[renamed]
        self.assertEqual(version, str(models / "2"))
        self.assertEqual(lines[renamed + 1], ["sync", str(models), "directory"])
        synced = {line[1] for line in lines[:renamed] if line[0] == "sync"}
        whole = models / "2"
        for path in [whole, *whole.rglob("*")]:
            name = part + str(path).removeprefix(str(whole))
            self.assertIn(name, synced)


if __name__ == "__main__":
    absltest.main()
