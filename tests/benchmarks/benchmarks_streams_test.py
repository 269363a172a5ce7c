# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of streams run, at tiny sizes."""

import pathlib
import sys
import tempfile
from unittest import mock

import numpy as np
import pytest
from absl.testing import absltest
from clusters import redis_server
from paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import harness
import label_benchmarks
import run
import stream_benchmarks

pytestmark = [pytest.mark.process, pytest.mark.slow]


class StreamBenchmarksTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder)

    def _run(self, name, *options):
        path = self.folder / "results"
        args = run.parse_arguments([name, f"--json={path}", *options])
        run.run(name, args, threads=1)
        return harness.read_json(path)

    def test_late_labels(self):
        if redis_server.missing():
            self.skipTest(redis_server.missing())
        rng = np.random.default_rng(1)
        place = self.folder / "criteo_kaggle_20k"
        place.mkdir()
        lines = ["id,Label"]
        for number in range(400):
            # All of I1 to I13 are 3, and of C1 to C26 an id.
            ids = ",".join(map(str, rng.integers(0, 9, 26)))
            lines.append(f"{number},{number % 2}{',3' * 13},{ids}")
        (place / "part.csv").write_text("\n".join(lines) + "\n")
        with mock.patch.multiple(label_benchmarks, _TEST=100, _BATCH=16):
            found = self._run(
                "late_labels", f"--data={self.folder}", "--seeds", "1"
            )
        self.assertEqual(
            [one["labels"] for one in found],
            ["files", *(f"window {n} s" for n in (600, 60, 15, 5))],
        )
        # With all labels, the same model comes out.
        self.assertEqual(found[1]["less"], [0.0])
        self.assertNotEqual(found[4]["less"], [0.0])

    def test_stream_workers(self):
        with mock.patch.object(stream_benchmarks, "_ROWS", 4096):
            found = self._run("stream_workers", "--repeats=1")
        self.assertEqual([one["reader"] for one in found], ["chief", "workers"])
        for one in found:
            for name in ("wall", "chief", "worker", "server"):
                self.assertGreater(one[name], 0.0)


if __name__ == "__main__":
    absltest.main()
