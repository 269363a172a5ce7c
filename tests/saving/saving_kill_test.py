# SPDX-License-Identifier: Apache-2.0
"""A model's file is whole and durable, whenever the process is killed.

What reaches the system is looked at, by a library that stands in between, not
the source.
"""

import json
import os
import pathlib

import file_log
import processes
import pytest
from absl.testing import parameterized
from saving_util import TestCase

pytestmark = pytest.mark.slow_tests(
    "KillTest::test_of__model",
)

_SEED = 3


class KillTest(TestCase):
    @parameterized.named_parameters(("model", "m.keras", "m.part.keras"))
    def test_of_(self, name, part):
        self._test(name, part, "0")

    @parameterized.named_parameters(
        ("weights", "m.weights.h5", "m.part.weights.h5", "0"),
        ("model_of_tf_keras", "m.keras", "m.part.keras", "1"),
        ("weights_of_tf_keras", "m.weights.h5", "m.part.weights.h5", "1"),
    )
    @pytest.mark.slow
    def test_more_of_(self, name, part, legacy):
        self._test(name, part, legacy)

    def _test(self, name, part, legacy):
        root = pathlib.Path(os.path.realpath(self.directory()))
        folder = root / "models"
        folder.mkdir()
        print(f"seed {_SEED}")
        printed = processes.run(
            "saving_kill_program.py",
            folder,
            name,
            _SEED,
            timeout_seconds=500,
            LD_PRELOAD=file_log.compiled(root),
            FILE_LOG_ROOT=str(folder),
            TF_USE_LEGACY_KERAS=legacy,
        )
        found = json.loads(printed.splitlines()[-1])
        # Two saves were logged.
        self.assertEqual(
            (root / "calls").read_text().splitlines(),
            [
                f"sync {folder / part} {found['bytes']}",
                f"rename {folder / part} {folder / name}",
                f"sync {folder} directory",
            ]
            * 2,
        )
        # Before the name is taken there is the old file, after that the new.
        taken = found["calls"] - 1
        self.assertEqual(
            found["states"],
            [
                [kill, "new" if kill >= taken else "old"]
                for kill, _ in found["states"]
            ],
        )
        self.assertEqual(found["states"][-1][0], taken)
        self.assertLess(found["states"][0][0], taken - 3)
