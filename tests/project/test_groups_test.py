# SPDX-License-Identifier: Apache-2.0
"""Tests that run in processes of their own, as `test_groups` runs them."""

import collections
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ElementTree

import pytest
from absl.testing import absltest
from processes import program_environment
from saving_util import TestCase

pytestmark = pytest.mark.slow_tests("TestGroupsTest::*")

_INI = "[pytest]\ntimeout = 20\n"

# Which process runs pytest, and which ones are its groups'.
_PARENT = """
import os

PARENT = int(os.environ.setdefault("PARENT", str(os.getpid())))
"""

_OWN = """
    import os, signal, time, unittest
    import pytest

    pytestmark = pytest.mark.process

    class OwnTest(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            print("set up")

        @classmethod
        def tearDownClass(cls):
            print("torn down")

        def test_a_elsewhere(self):
            self.assertNotEqual(os.getpid(), PARENT)

        def test_b_fails(self):
            print("its output")
            self.assertEqual(1, 2)

        def test_c_dies(self):
            os.kill(os.getpid(), signal.SIGKILL)

        def test_d_is_in_a_new_process(self):
            pass

        @pytest.mark.timeout(1)
        def test_e_takes_too_long(self):
            time.sleep(60)

        def test_f_of_parts(self):
            for number in range(3):
                with self.subTest(number=number):
                    self.assertNotEqual(number, 1)

        @unittest.skip("of no use")
        def test_g_skipped(self):
            pass
"""

_TOGETHER = """
    import os
    import pytest

    pytestmark = [pytest.mark.process("both"), pytest.mark.both_kerases]

    def test_process():
        with open({name!r}, "a") as file:
            keras = os.environ.get("TF_USE_LEGACY_KERAS", "0")
            print(os.getpid(), keras, file=file)
"""

_BROKEN = """
    import os
    import pytest

    pytestmark = pytest.mark.process
    if os.getpid() != PARENT:
        raise OSError("not here")

    def test_broken():
        pass
"""

_DIFFERENT = """
    import os
    import pytest

    pytestmark = pytest.mark.both_kerases

    if "TF_USE_LEGACY_KERAS" not in os.environ:
        def test_of_one():
            pass

    def test_of_both():
        pass
"""

_LOCAL = """
    import os

    def test_local():
        assert os.getpid() == PARENT
"""


def _pytest(folder, options, **files):
    """Runs files of tests; `{name: [(outcome, text), ...]}`, and the output."""
    folder = pathlib.Path(folder)
    (folder / "pytest.ini").write_text(_INI)
    (folder / "parent.py").write_text(_PARENT)
    for name, text in files.items():
        text = "from parent import PARENT\n" + textwrap.dedent(text)
        (folder / f"{name}_test.py").write_text(text)
    environment = {
        name: value
        for name, value in program_environment().items()
        # Nor options of the pytest that this is a test of.
        if name != "TF_USE_LEGACY_KERAS" and not name.startswith("PYTEST_")
    }
    run = subprocess.run(
        [
            *[sys.executable, "-m", "pytest", *options, "--junitxml=x.xml"],
            *["-p", "test_groups", "-p", "no:cacheprovider"],
            *[f"{name}_test.py" for name in files],
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    output = run.stdout + run.stderr
    print(output)
    found = collections.defaultdict(list)
    for case in ElementTree.parse(folder / "x.xml").iter("testcase"):
        kinds = [(part.tag, part.text or "") for part in case]
        found[case.get("name")] += kinds or [("passed", "")]
    return found, output


class TestGroupsTest(TestCase):
    """Most tests look at one run of pytest."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory(prefix="tf_ext_groups_")
        cls.addClassCleanup(folder.cleanup)
        cls.log = pathlib.Path(folder.name, "log")
        together = _TOGETHER.format(name=str(cls.log))
        cls.found, cls.output = _pytest(
            folder.name,
            ["-n", "0"],
            own=_OWN,
            one=together,
            two=together,
            broken=_BROKEN,
            different=_DIFFERENT,
            local=_LOCAL,
        )

    def _assert_only(self, kind, name):
        self.assertEqual({found for found, _ in self.found[name]}, {kind})

    def test_reports_each_test(self):
        self._assert_only("passed", "test_a_elsewhere")
        self._assert_only("failure", "test_b_fails")
        self._assert_only("failure", "test_e_takes_too_long")
        self.assertIn("failure", [k for k, _ in self.found["test_f_of_parts"]])
        self._assert_only("skipped", "test_g_skipped")
        self._assert_only("passed", "test_local")
        self.assertIn("its output", self.output)

    @pytest.mark.slow
    def test_a_process_that_dies_is_replaced(self):
        self._assert_only("failure", "test_c_dies")
        self.assertIn("Status -9:", self.output)
        self._assert_only("passed", "test_d_is_in_a_new_process")

    def test_files_share_a_process_for_each_keras(self):
        self.assertLen(self.found["test_process"], 2)
        self.assertLen(self.found["test_process@tf_keras"], 2)
        lines = [line.split() for line in self.log.read_text().splitlines()]
        self.assertCountEqual([keras for _, keras in lines], "0011")
        self.assertLen({pid for pid, _ in lines}, 2)

    def test_says_what_is_wrong_with_a_file(self):
        [(kind, text)] = self.found["test_broken"]
        self.assertEqual(kind, "failure")
        self.assertIn("OSError: not here", text)
        [(kind, text)] = self.found["test_of_one@tf_keras"]
        self.assertEqual(kind, "failure")
        self.assertIn("must have the same tests with both Kerases", text)
        self._assert_only("passed", "test_of_both@tf_keras")

    @pytest.mark.slow
    def test_runs_in_several_workers(self):
        text = _TOGETHER.format(name=self.path("log"))
        found, _ = _pytest(self.directory(), ["-n", "2"], one=text, two=text)
        self.assertLen(found["test_process@tf_keras"], 2)
        self.assertNotIn("failure", str(dict(found)))

    @pytest.mark.slow
    def test_counts_what_is_left_out(self):
        options = ["-n", "0", "-k", "not tf_keras"]
        found, output = _pytest(
            self.directory(), options, one=_DIFFERENT, local=_LOCAL
        )
        self.assertLen(found, 3)
        self.assertIn("/ 2 deselected / 3 selected", output)

    @pytest.mark.slow
    def test_one_group_alone_runs_here(self):
        own = (
            _LOCAL
            + "\n    import pytest\n"
            + ("    pytestmark = pytest.mark.process\n")
        )
        found, _ = _pytest(self.directory(), ["-n", "0"], own=own)
        self.assertEqual(found["test_local"], [("passed", "")])


if __name__ == "__main__":
    absltest.main()
