# SPDX-License-Identifier: Apache-2.0
"""The slow tests that one commit runs, as `test_tiers` chooses them."""

import os
import pathlib
from unittest import mock

import pytest
from absl.testing import absltest
from saving_util import TestCase

_FILES = 8

_INI = """
[pytest]
timeout = 20
python_files = *_test.py
python_classes = *Test
markers = slow
"""

_TEXT = """
import pytest

pytestmark = pytest.mark.both_kerases(slow=True)

def test_fast():
    pass

@pytest.mark.slow
def test_slow():
    pass

@pytest.mark.slow
@pytest.mark.documents("README.md", "docs/rows.md")
def test_document():
    pass

@pytest.mark.slow
@pytest.mark.timeout(601)
def test_by_hand():
    pass
"""

# A file of which few tests run by default.
_FEW = """
import pytest

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_except("ATest::*", "*::test_two"),
]

class ATest:
    def test_one(self):
        pass

class BTest:
    def test_one(self):
        pass

    def test_two(self):
        pass
"""

_SOME = _FEW.replace("slow_except", "slow_tests")


class _Names:
    """A plugin that keeps the names of the tests that were collected."""

    def __init__(self):
        self.found = set()

    def pytest_collection_finish(self, session):
        self.found |= {item.nodeid for item in session.items}


class TiersTest(TestCase):
    def setUp(self):
        super().setUp()
        self._folder = pathlib.Path(self.get_temp_dir())
        (self._folder / "pytest.ini").write_text(_INI)
        for number in range(_FILES):
            (self._folder / f"n{number}_test.py").write_text(_TEXT)

    def _collect(self, *options):
        """The names of the tests, and the exit status."""
        names = _Names()
        with mock.patch.dict(os.environ):
            for variable in ("PYTEST_ADDOPTS", "TF_USE_LEGACY_KERAS"):
                os.environ.pop(variable, None)
            status = pytest.main(
                [
                    *["--collect-only", "--import-mode=importlib"],
                    *["-c", str(self._folder / "pytest.ini")],
                    *["-p", "test_groups", "-p", "test_tiers"],
                    *["-p", "no:cacheprovider", "-p", "no:faulthandler"],
                    # It collects garbage five times, of all that tests left.
                    *["-p", "no:unraisableexception"],
                    *[str(self._folder), *options],
                ],
                plugins=[names],
            )
        return names.found, status

    def _slow(self, *options):
        found, status = self._collect("-m", "slow", *options)
        self.assertEqual(status, pytest.ExitCode.OK)
        return found

    def test_parts_are_all_that_is_slow(self):
        everything = self._slow()
        by_hand = {name for name in everything if "by_hand" in name}
        self.assertLen(everything - by_hand, _FILES * 3)
        parts = [self._slow(f"--slow-part={part}/3") for part in range(3)]
        self.assertEqual(set().union(*parts), everything - by_hand)
        self.assertEqual(sum(map(len, parts)), _FILES * 3)
        for part in parts:
            self.assertNotEmpty(part)
        # A commit's number may be larger.
        self.assertEqual(self._slow("--slow-part=7/3"), parts[1])

    def test_named_files_run_in_each_part(self):
        name = "n3_test.py"
        parts = [
            self._slow(f"--slow-part={part}/3", f"--slow-files=x,{name}")
            for part in range(3)
        ]
        self.assertLen([p for p in parts if f"{name}::test_slow" in p], 3)
        # Its runs with tf_keras stay in their part.
        legacy = f"{name}::test_fast@tf_keras"
        self.assertLen([part for part in parts if legacy in part], 1)

    def test_named_documents_run_in_each_part(self):
        names = {f"n{n}_test.py::test_document" for n in range(_FILES)}
        for part in range(3):
            found = self._slow(
                f"--slow-part={part}/3", "--slow-files=docs/rows.md,x"
            )
            self.assertContainsSubset(names, found)
        others = self._slow("--slow-part=0/3", "--slow-files=rows.md")
        self.assertNotEmpty(names - others)

    def test_other_tests_are_in_each_part(self):
        found, _ = self._collect("-m", "not slow", "--slow-part=0/3")
        self.assertEqual(
            found, {f"n{n}_test.py::test_fast" for n in range(_FILES)}
        )

    def test_all_but_some_are_slow(self):
        (self._folder / "few_test.py").write_text(_FEW)
        found, _ = self._collect("-m", "not slow", "-k", "few")
        few = {"ATest::test_one", "BTest::test_two"}
        self.assertEqual(found, {f"few_test.py::{name}" for name in few})
        found, _ = self._collect("-m", "slow", "-k", "few")
        few = {
            *("BTest::test_one", "ATest::test_one@tf_keras"),
            *("BTest::test_one@tf_keras", "BTest::test_two@tf_keras"),
        }
        self.assertEqual(found, {f"few_test.py::{name}" for name in few})

    def test_some_are_slow(self):
        (self._folder / "some_test.py").write_text(_SOME)
        found, _ = self._collect("-m", "not slow", "-k", "some")
        self.assertEqual(found, {"some_test.py::BTest::test_one"})
        found, _ = self._collect("-m", "slow", "-k", "some")
        some = {
            *("ATest::test_one", "BTest::test_two"),
            *("BTest::test_one@tf_keras", "ATest::test_one@tf_keras"),
            "BTest::test_two@tf_keras",
        }
        self.assertEqual(found, {f"some_test.py::{name}" for name in some})

    def test_refuses_patterns_of_no_test(self):
        for text in (_FEW, _SOME):
            text = text.replace("*::test_two", "*::test_six")
            (self._folder / "stale_test.py").write_text(text)
            _, status = self._collect()
            self.assertEqual(status, pytest.ExitCode.USAGE_ERROR)

    def test_refuses_what_is_no_part(self):
        for part in ("3", "1/0", "-1/3", "a/b"):
            found, status = self._collect(f"--slow-part={part}")
            self.assertEqual(found, set())
            self.assertEqual(status, pytest.ExitCode.USAGE_ERROR)


if __name__ == "__main__":
    absltest.main()
