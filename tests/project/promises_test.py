# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow and Keras do not promise is used in tf_ext/_compat alone."""

import ast
import importlib
import inspect
import pkgutil
import re

import pytest
from absl.testing import absltest
from paths import ROOT

import tf_ext
from tf_ext import _compat

pytestmark = [
    pytest.mark.both_kerases(slow=True),
    pytest.mark.slow_tests(
        "ElsewhereTest::test_tricks_are_found",
    ),
]

_COMPAT = ROOT / "tf_ext" / "_compat"
# Of named tuples, which are public though they begin so; of `os`.
_PUBLIC = {"_asdict", "_exit", "_fields", "_make", "_replace"}
# Hooks that TensorFlow documents, of TrackableResource.
_DOCUMENTED_HOOKS = {"_create_resource", "_destroy_resource", "_initialize"}
_FRAMES = {
    "_current_frames",
    "_getframe",
    "currentframe",
    "f_back",
    "f_code",
    "f_globals",
    "f_locals",
    "tb_frame",
}
_INSIDES = {"__closure__", "__code__", "__del__", "__globals__", "__wrapped__"}
_OF_MODULES = {
    "gc": {"get_objects", "get_referents", "get_referrers"},
    "inspect": {"stack", "trace"},
    "sys": {"modules", "setprofile", "settrace"},
}
_TEXTS = re.compile(
    r"(TF_)?GRPC_[A-Z_]+$|/proc/self|tensorflow\.python|keras\.src"
)
# Whether TensorFlow is imported, which is Python's to say.
_ALLOWED = {("tf_ext/__init__.py", "sys.modules")}


def _is_private(name):
    return name.startswith("_") and not name.endswith("__")


def _own_names(trees):
    """Private names that tf_ext defines itself."""
    found = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                found.add(node.name)
            elif isinstance(node, ast.Attribute):
                if isinstance(node.ctx, ast.Store) and _is_self(node.value):
                    found.add(node.attr)
            elif isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Store):
                    found.add(node.id)
    return found | _PUBLIC


def _is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _tricks(tree, own):
    """(line, what) of each use of what nobody promises."""
    after_init = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name == "__post_init__"
        for inner in ast.walk(node)
    }
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("tf_ext")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            if (
                node.attr in _FRAMES | _INSIDES
                or node.attr in _OF_MODULES.get(of, ())
                or (
                    node.attr == "__class__" and isinstance(node.ctx, ast.Store)
                )
                or (node.attr == "__dict__" and not _is_self(node.value))
                or (
                    node.attr == "__setattr__"
                    and of == "object"
                    and id(node) not in after_init
                )
                or (
                    _is_private(node.attr)
                    and node.attr not in own
                    and of not in imported
                )
            ):
                yield node.lineno, f"{of}.{node.attr}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if _TEXTS.match(node.value):
                yield node.lineno, node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("delattr", "getattr", "hasattr", "setattr"):
                name = node.args[1]
                if (
                    isinstance(name, ast.Constant)
                    and _is_private(name.value)
                    and not name.value.startswith("_tf_ext")
                    and name.value not in own
                ):
                    yield node.lineno, name.value


def _parse(path):
    return ast.parse(path.read_text(), str(path))


def _classes():
    """The classes of tf_ext that derive from TensorFlow's and Keras's."""
    for info in pkgutil.walk_packages(tf_ext.__path__, "tf_ext."):
        if info.name.endswith(("__main__", "_tf_ext_ops")):
            continue
        if info.name.startswith("tf_ext._compat"):
            continue
        module = importlib.import_module(info.name)
        for cls in vars(module).values():
            if inspect.isclass(cls) and cls.__module__ == info.name:
                yield cls


def _is_foreign(cls):
    return cls.__module__.split(".")[0] in ("keras", "tensorflow", "tf_keras")


class ElsewhereTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.paths = [
            path
            for path in sorted((ROOT / "tf_ext").rglob("*.py"))
            if _COMPAT not in path.parents
        ]
        self.own = _own_names([_parse(path) for path in self.paths])

    def test_nothing_private_is_used(self):
        found = [
            f"{path.relative_to(ROOT)}:{line}: {what}"
            for path in self.paths
            for line, what in _tricks(_parse(path), self.own)
            if (str(path.relative_to(ROOT)), what) not in _ALLOWED
        ]
        self.assertEmpty(found, "make it a function of tf_ext/_compat")

    def test_no_private_hook_is_overwritten(self):
        found = [
            f"{cls.__module__}.{cls.__name__}.{name}"
            for cls in _classes()
            for name in vars(cls)
            if _is_private(name)
            and name not in _DOCUMENTED_HOOKS | {"_abc_impl"}
            and any(
                name in vars(base) for base in cls.__mro__ if _is_foreign(base)
            )
        ]
        self.assertEmpty(found, "make it a class of tf_ext/_compat")

    def test_tricks_are_found(self):
        for text in (
            "optimizer._var_key(v)",
            "self._flatten_layers()",
            "super()._trackable_children()",
            "getattr(strategy, '_cluster_resolver', None)",
            "sys._getframe(1)",
            "frame.f_locals",
            "inspect.stack()",
            "sys.modules['tensorflow.python.eager.context']",
            "variable.__class__ = int",
            "variable.__dict__['x'] = 1",
            "object.__setattr__(variable, 'x', 1)",
            "gc.get_objects()",
            "os.environ['GRPC_FAIL_FAST'] = '1'",
            "os.listdir('/proc/self/fd')",
        ):
            self.assertNotEmpty(list(_tricks(ast.parse(text), self.own)), text)
        for text in (
            "self._rows = 1\nother._rows",
            "point._replace(x=1)",
            "def __post_init__(self):\n    object.__setattr__(self, 'x', 1)",
        ):
            tree = ast.parse(text)
            own = self.own | _own_names([tree])
            self.assertEmpty(list(_tricks(tree, own)), text)


class CompatTest(absltest.TestCase):
    def test_each_says_where_it_was_seen_and_has_a_test(self):
        tests = "\n".join(
            path.read_text()
            for path in (ROOT / "tests" / "compat").glob("*_test.py")
        )
        for info in pkgutil.iter_modules(_compat.__path__):
            name = f"tf_ext._compat.{info.name}"
            module = importlib.import_module(name)
            for key, value in vars(module).items():
                if (
                    key.startswith("_")
                    or getattr(value, "__module__", None) != name
                ):
                    continue
                self.assertRegex(
                    inspect.getdoc(value) or "",
                    r"Seen in: (TensorFlow|Keras|tf_keras|Python"
                    r"|tensorflow-recommenders) \d+\.\d+",
                    f"{name}.{key}",
                )
                # Not assertRegex, whose message would hold all tests.
                named = re.search(rf"\b{key}\b", tests)
                self.assertIsNotNone(named, f"{name}.{key} has no test")


if __name__ == "__main__":
    absltest.main()
