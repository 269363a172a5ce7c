# SPDX-License-Identifier: Apache-2.0
"""Functions that are called when modules have been imported."""

import importlib
import pathlib
import sys
import tempfile
from unittest import mock

from absl.testing import absltest

from tf_ext import _when_imported

_PACKAGE = "waited_package"
_FILES = {
    "other_module.py": "",
    "waited_for.py": f"import {_PACKAGE}.inner, other_module",
    f"{_PACKAGE}/__init__.py": f"from {_PACKAGE} import inner",
    f"{_PACKAGE}/inner.py": "",
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
        ):
            self.enterContext(changed)
        self.addCleanup(self._forget)
        self.finders = [*sys.meta_path]
        self.function = mock.Mock(return_value=True)
        _when_imported.when_imported(["waited_for"], _PACKAGE, self.function)

    def _forget(self):
        for path in _FILES:
            parts = pathlib.PurePath(path).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            sys.modules.pop(name, None)

    def _import(self, name):
        """Imports a module; how often the function was called by then."""
        module = importlib.import_module(name)
        self.assertIs(module.__spec__.loader, module.__loader__)
        return self.function.call_count

    def test_once_when_none_is_being_imported(self):
        self.assertEqual(self._import("waited_for"), 1)
        self.assertEqual(sys.meta_path, self.finders)
        self.assertIn(f"{_PACKAGE}.inner", sys.modules)

    def test_modules_of_the_package_count(self):
        self.assertEqual(self._import(_PACKAGE), 1)

    def test_other_modules_do_not(self):
        self.assertEqual(self._import("other_module"), 0)

    def test_until_the_function_says_so(self):
        self.function.side_effect = [False, True]
        self.assertEqual(self._import(_PACKAGE), 1)
        self.assertEqual(self._import("waited_for"), 2)
        self.assertEqual(sys.meta_path, self.finders)


if __name__ == "__main__":
    absltest.main()
