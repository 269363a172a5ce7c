# SPDX-License-Identifier: Apache-2.0
"""Functions that are called when modules have been imported."""

import importlib
import pathlib
import sys
import tempfile
from unittest import mock

from absl.testing import absltest

from tf_ext import _when_imported

_FILES = {
    "other.py": "",
    "waited_for.py": "import waited_package.inner, other",
    "waited_package/__init__.py": "from waited_package import inner",
    "waited_package/inner.py": "",
}


class WhenImportedTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = self.enterContext(tempfile.TemporaryDirectory())
        for name, text in _FILES.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        for changed in (
            mock.patch.object(sys, "path", [folder, *sys.path]),
            mock.patch.object(sys, "meta_path", [*sys.meta_path]),
            mock.patch.dict(sys.modules),
        ):
            self.enterContext(changed)
        self.finders = [*sys.meta_path]
        self.function = mock.Mock(return_value=True)
        _when_imported.when_imported(
            ["waited_for"], "waited_package", self.function
        )

    def _import(self, name):
        """Imports a module; how often the function was called by then."""
        module = importlib.import_module(name)
        self.assertIs(module.__spec__.loader, module.__loader__)
        return self.function.call_count

    def test_once_when_none_is_being_imported(self):
        self.assertEqual(self._import("waited_for"), 1)
        self.assertEqual(sys.meta_path, self.finders)
        self.assertIn("waited_package.inner", sys.modules)

    def test_modules_of_the_package_count(self):
        self.assertEqual(self._import("waited_package"), 1)

    def test_other_modules_do_not(self):
        self.assertEqual(self._import("other"), 0)

    def test_until_the_function_says_so(self):
        self.function.side_effect = [False, True]
        self.assertEqual(self._import("waited_package"), 1)
        self.assertEqual(self._import("waited_for"), 2)
        self.assertEqual(sys.meta_path, self.finders)


if __name__ == "__main__":
    absltest.main()
