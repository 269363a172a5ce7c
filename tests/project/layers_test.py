# SPDX-License-Identifier: Apache-2.0
"""Packages of tf_ext import only from those that docs/design.md has below.

And no module imports, over others, itself: not for its types either.
"""

import ast
import graphlib
import re

from absl.testing import absltest
from paths import ROOT

# Where everything registers itself with Keras and TensorFlow.
_REGISTRATION = "ops/registration.py"


def _lines():
    """The packages of tf_ext, the names of a layer in a list, from the top."""
    text = (ROOT / "docs" / "design.md").read_text()
    [block] = re.findall(r"layers_test\.py` reads.*?```\n(.*?)```", text, re.S)
    return [re.split(r"\s{2,}", one)[0].split() for one in block.splitlines()]


def _package(name):
    """What a module's name has after `tf_ext`: a package, or a module."""
    return f"{name}.".split(".")[1]


def _imported(text):
    """(line, package) of each import of tf_ext, also where types need it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "tf_ext":
                yield node.lineno, _package(name)


def _upwards(package, text, levels):
    """(line, package) of the imports that do not lead down."""
    top = {"": -1}  # tf_ext itself.
    for line, other in _imported(text):
        if not other.startswith("_") and other != package:
            if (levels | top)[other] <= levels[package]:
                yield line, other


def _modules():
    """`{module: its text}` of tf_ext."""
    modules = {}
    for path in (ROOT / "tf_ext").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        modules[name] = path.read_text()
    return modules


def _modules_imported(text, modules):
    """Those of `modules` that a text imports, anywhere in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [(alias.name,) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [
                (f"{node.module}.{alias.name}", node.module)
                for alias in node.names
            ]
        else:
            continue
        for choices in names:
            yield from [name for name in choices if name in modules][:1]


def _circle(modules):
    """The names of modules that import each other in a circle, or []."""
    imported = {
        name: {*_modules_imported(text, modules)} - {name}
        for name, text in modules.items()
    }
    try:
        graphlib.TopologicalSorter(imported).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


class CirclesTest(absltest.TestCase):
    def test_no_modules_import_each_other(self):
        modules = _modules()
        del modules[f"tf_ext.{_REGISTRATION}".replace("/", ".")[:-3]]
        self.assertGreater(len(modules), 200)
        self.assertEmpty(_circle(modules))

    def test_circles_are_found(self):
        for text in (
            "import a.c",
            "from a import c",
            "from a.c import Thing",
            "if typing.TYPE_CHECKING:\n    from a.c import Thing",
            "def late():\n    from a.c import Thing",
        ):
            with self.subTest(text):
                modules = {"a": "", "a.b": text, "a.c": "from a import b"}
                self.assertCountEqual(_circle(modules)[1:], ["a.b", "a.c"])
        self.assertEmpty(_circle({"a": "from a import b", "a.b": "import c"}))


class LayersTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.levels = {
            name: level
            for level, names in enumerate(_lines())
            for name in names
        }
        # Modules below all others.
        self.levels["_"] = len(self.levels)

    def _files(self):
        for path in sorted((ROOT / "tf_ext").rglob("*.py")):
            inner = path.relative_to(ROOT / "tf_ext")
            if str(inner) != "__init__.py":
                yield inner, path.read_text()

    def _package_of(self, inner):
        name = inner.parts[0].removesuffix(".py")
        return "_" if name.startswith("_") else name

    def test_every_package_has_a_layer(self):
        found = {self._package_of(inner) for inner, _ in self._files()}
        self.assertCountEqual(self.levels, found)

    def test_imports_lead_down(self):
        found = [
            f"tf_ext/{inner}:{line} imports {other or 'tf_ext'}"
            for inner, text in self._files()
            for line, other in _upwards(
                self._package_of(inner), text, self.levels
            )
            if (str(inner), other) != (_REGISTRATION, "")
        ]
        self.assertEmpty(found, "see docs/design.md, Folders and dependencies")

    def test_other_imports_are_found(self):
        for text in (
            "from tf_ext import models",
            "from tf_ext.models import model",
            "import tf_ext.models.model",
            "import tf_ext",
            "from tf_ext import Model",
            "if typing.TYPE_CHECKING:\n    from tf_ext.models import model",
            "def late():\n    from tf_ext.callbacks import Evict",
        ):
            with self.subTest(text):
                levels = self.levels | {"Model": -1}
                self.assertLen([*_upwards("training", text, levels)], 1)
        for text in (
            "from tf_ext import _core, ops",
            "from tf_ext._compat.models import layers_of",
            "from tf_ext.training.loop import TrainingLoop",
            "import tensorflow as tf",
        ):
            with self.subTest(text):
                self.assertEmpty([*_upwards("training", text, self.levels)])
        beside = "from tf_ext.convert import models_in"
        self.assertLen([*_upwards("serving", beside, self.levels)], 1)


if __name__ == "__main__":
    absltest.main()
