# SPDX-License-Identifier: Apache-2.0
"""The code of docs/parameter_servers.md and docs/multi_worker.md runs."""

import pathlib
import tempfile

import pytest
from absl.testing import absltest
from docs_util import blocks, program
from processes import run_program

pytestmark = pytest.mark.both_kerases(slow=True)

# Stands for the machines that a page has: their chief is the program below.
_MACHINES = """
import json, os
import tf_ext
with tf_ext.distribute.local_cluster(workers=1, ps=1) as machines:
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": machines.cluster, "task": {"type": "chief", "index": 0}}
    )
"""


class CodeTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def _program(self, page_blocks, indent=""):
        return program(page_blocks, self.folder, indent)

    @pytest.mark.documents("docs/parameter_servers.md")
    @pytest.mark.slow
    def test_parameter_servers_on_one_machine(self):
        model, local, *_ = blocks("docs/parameter_servers.md", "python")
        self.assertIn("local_cluster", local.text)
        run_program(self._program([model, local]), self.folder)
        self.assertTrue(pathlib.Path(self.folder, "model.keras").exists())

    @pytest.mark.documents("docs/parameter_servers.md")
    @pytest.mark.slow
    def test_parameter_servers_on_several_machines(self):
        model, _, *others = blocks("docs/parameter_servers.md", "python")
        self.assertLen(others, 10)
        run_program(
            _MACHINES + self._program([model, *others], "    "), self.folder
        )
        written = pathlib.Path(self.folder, "data", "points", "checkpoint")
        self.assertIn("ckpt-3", written.read_text())

    @pytest.mark.documents("docs/multi_worker.md")
    @pytest.mark.slow
    def test_multi_worker(self):
        model, start, *others = blocks("docs/multi_worker.md", "python")
        self.assertIn("run_local_workers", start.text)
        self.assertLen(others, 3)
        # The process that starts the workers ends with them.
        text = self._program([model, start])
        text += 'if "TF_CONFIG" in os.environ:\n'
        text += self._program(others, "    ")
        text += '    print("all is done")\n'
        printed = run_program(text, self.folder)
        self.assertIn("all is done", printed)


if __name__ == "__main__":
    absltest.main()
