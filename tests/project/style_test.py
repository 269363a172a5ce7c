# SPDX-License-Identifier: Apache-2.0
"""What the source tree has to keep to."""

import ast
import collections
import importlib
import inspect
import pathlib
import pkgutil
import re

from absl.testing import absltest
from paths import ROOT

import tf_ext

# The aim is 500; more where one thought needs it.
_MAX_LINES = 600
_PRIVATE_IMPORTS = {
    "tensorflow.python": "use the public tf.* name; if there is none, do "
    "without it: private names change between minor versions",
    "keras.src": "use keras.* of `from tf_ext._keras import keras`",
    "keras": "write `from tf_ext._keras import keras`, which is tf_keras "
    "under TF_USE_LEGACY_KERAS=1",
    "tf_keras": "write `from tf_ext._keras import keras`, which is Keras 3 "
    "without TF_USE_LEGACY_KERAS=1",
}
# Which others each folder of cc/core may include.
_CORE_FOLDERS = {
    "support": (),
    "hashing": ("support",),
    "bags": ("support", "hashing"),
    "initializers": ("support", "hashing"),
    "rules": ("support", "hashing"),
    "snapshot": ("support", "hashing"),
    "records": ("snapshot",),
    "table": ("support", "hashing", "initializers", "rules", "snapshot"),
    "benchmarks": ("support", "hashing", "bags", "table"),
}
# What is written by hand, and begins with the license's name.
_SOURCES = ("cc/**/*.cc", "cc/**/*.h", "cc/**/*.inc", "*/**/*.py", ".ci/*")
# Links to what Bazel has built, and what setup.py has.
_OUTPUT = ("bazel-out", "build", "dist")
# The rooms of tests/support, and the ends of names that belong in them alone.
_ROOMS = {
    "programs": ("_program",),
    "cases": ("_cases",),
    "models": ("_models", "_tables"),
    "oracles": ("_reference", "_forging"),
    "clusters": (),
}
# What the names of all files of a room end with.
_ENDS = {"programs": "_program", "cases": "_cases"}

_ASKS_FOR_STRATEGY = re.compile(
    "collectives_of|is_parameter_server|has_strategy|get_strategy"
    "|distribute_strategy"
    r"|type\(\w*regime|isinstance\([^)]*(?:regime|Regime)|\bregime is "
)


def _files(*patterns):
    """The files of the project, without those that were built from them."""
    return [
        path
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
        if path.relative_to(ROOT).parts[0] not in _OUTPUT
    ]


def _imported_names(path):
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def _messages(path):
    """(line, text) of what is raised; `{}` for what is filled in."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args[:1]:
                if isinstance(argument, ast.Constant | ast.JoinedStr):
                    yield node.lineno, _text(argument)


def _text(node):
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(
        _text(part) if isinstance(part, ast.Constant) else "{}"
        for part in node.values
    )


def _shared_files():
    support = ROOT / "tests" / "support"
    return [
        path.relative_to(support)
        for path in _files("tests/support/**/*.py")
        if path.name != "__init__.py"
    ]


def _misplaced(paths):
    """Says of files where they must be; `paths` begin at tests/support."""
    found = []
    for path in paths:
        room, stem = str(path.parent), path.stem
        rooms = [r for r, ends in _ROOMS.items() if stem.endswith(ends)]
        end = _ENDS.get(room, "")
        if room != "." and room not in _ROOMS:
            place = f"a room: {', '.join(_ROOMS)}"
        elif rooms and room not in rooms:
            place = f"{rooms[0]}/"
        elif not stem.endswith(end):
            place = f"another room, or be `{stem}{end}.py`"
        else:
            continue
        found.append(
            f"tests/support/{path} must be in {place}. See CONTRIBUTING.md, "
            "Where a new test goes"
        )
    return found


def _source_lists():
    tree = ast.parse((ROOT / "cc" / "sources.bzl").read_text())
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
    }


def _public_modules():
    yield tf_ext
    for info in pkgutil.walk_packages(tf_ext.__path__, "tf_ext."):
        if not any(part.startswith("_") for part in info.name.split(".")):
            yield importlib.import_module(info.name)


class SourceListTest(absltest.TestCase):
    def test_every_listed_file_exists_and_every_file_is_listed_once(self):
        listed = collections.Counter(
            path
            for name, paths in _source_lists().items()
            if name.endswith(("_SOURCES", "_TESTS"))
            for path in paths
        )
        found = [str(p.relative_to(ROOT)) for p in _files("cc/**/*.cc")]
        self.assertCountEqual(
            listed.elements(), found, "cc/sources.bzl is the one list"
        )

    def test_tests_that_start_threads_are_listed_as_such(self):
        lists = _source_lists()
        threads = re.compile(r"\bThreads\(|\bstd::thread|_stress_test_util")
        for name in ("CORE_TESTS", "CORE_THREADED_TESTS"):
            for path in lists[name]:
                found = bool(threads.search((ROOT / path).read_text()))
                self.assertEqual(found, name == "CORE_THREADED_TESTS", path)

    def test_tests_and_only_tests_are_listed_as_tests(self):
        for name, paths in _source_lists().items():
            if name.endswith(("_SOURCES", "_TESTS")):
                for path in paths:
                    self.assertEqual(
                        path.endswith("_test.cc"), name.endswith("_TESTS"), path
                    )

    def test_lists_are_sorted(self):
        for name, paths in _source_lists().items():
            if name.endswith(("_SOURCES", "_TESTS")):
                self.assertEqual(paths, sorted(paths), name)


class FilesTest(absltest.TestCase):
    def test_core_does_not_include_tensorflow_or_python(self):
        for path in _files("cc/core/**/*.*"):
            for line in path.read_text().splitlines():
                if line.startswith("#include"):
                    self.assertNotRegex(
                        line,
                        r"tensorflow/|absl/|tsl/|Eigen|pybind11|cc/(ops|python)",
                        f"{path}: cc/core builds without TensorFlow",
                    )

    def test_folders_of_the_core_depend_one_way(self):
        for path in _files("cc/core/**/*.*"):
            folder = path.relative_to(ROOT / "cc" / "core").parts[0]
            self.assertIn(folder, _CORE_FOLDERS, path)
            if path.stem.endswith(("_test", "_test_util")):
                continue
            used = re.findall(
                r'^#include "cc/core/(\w+)/', path.read_text(), re.MULTILINE
            )
            allowed = {folder, *_CORE_FOLDERS[folder]}
            self.assertLessEqual(set(used), allowed, path)

    def test_files_name_their_license(self):
        for path in _files(*_SOURCES):
            mark = "//" if path.relative_to(ROOT).parts[0] == "cc" else "#"
            self.assertIn(
                f"{mark} SPDX-License-Identifier: Apache-2.0",
                path.read_text().splitlines()[:2],
                path,
            )

    def test_files_are_short(self):
        long = {
            str(path.relative_to(ROOT)): lines
            for path in _files(*_SOURCES)
            if (lines := len(path.read_text().splitlines()) - 1) > _MAX_LINES
        }
        self.assertEmpty(long, f"split files of more than {_MAX_LINES} lines")

    def test_names_of_tests_and_of_what_they_share_are_unique(self):
        names = [
            path.name
            for path in _files("tests/**/*.py")
            if path.name != "__init__.py"
        ]
        self.assertCountEqual(names, set(names))

    def test_what_tests_share_is_apart_from_them(self):
        support = ROOT / "tests" / "support"
        misplaced = [
            str(path)
            for path in _files("tests/**/*.py")
            if path.name != "conftest.py"
            and path.name.endswith("_test.py") == (support in path.parents)
        ]
        self.assertEmpty(misplaced)

    def test_what_tests_share_is_in_its_room(self):
        self.assertEmpty(_misplaced(_shared_files()))

    def test_files_in_a_wrong_room_are_found(self):
        for path, place in (
            ("new_program.py", "programs/"),
            ("cases/new_program.py", "programs/"),
            ("programs/new_cases.py", "cases/"),
            ("oracles/new_models.py", "models/"),
            ("new_tables.py", "models/"),
            ("models/new_reference.py", "oracles/"),
            ("programs/new.py", "another room, or be `new_program.py`"),
            ("cases/new.py", "another room, or be `new_cases.py`"),
            ("more/new.py", "a room: programs, cases, models, oracles, clus"),
            ("models/more/new.py", "a room: programs, cases, models, oracles"),
        ):
            [found] = _misplaced([pathlib.PurePath(path)])
            self.assertStartsWith(
                found, f"tests/support/{path} must be in {place}"
            )
        for path in ("new_util.py", "models/new.py", "cases/new_cases.py"):
            self.assertEmpty(_misplaced([pathlib.PurePath(path)]))

    def test_no_private_imports(self):
        for path in _files("tf_ext/**/*.py"):
            for line, name in _imported_names(path):
                for private, advice in _PRIVATE_IMPORTS.items():
                    if f"{name}.".startswith(f"{private}."):
                        self.fail(f"{path}:{line} imports {name}: {advice}")

    def test_data_goes_down_through_arguments(self):
        found = {
            str(path.relative_to(ROOT / "tf_ext"))
            for path in _files("tf_ext/**/*.py")
            if re.search(
                r"\bContextVar\b.*\(|threading\.local\b", path.read_text()
            )
        }
        # What calls of Keras and of users, which pass nothing on, stand above.
        allowed = {
            "_batch_source.py",
            "regimes/step_context.py",
            "tables/saving/keras_files.py",
            "tables/weights_only.py",
        }
        self.assertEqual(found, allowed)

    def test_only_regimes_ask_for_the_strategy(self):
        for path in _files("tf_ext/**/*.py"):
            if path.relative_to(ROOT).parts[1] in ("distribute", "regimes"):
                continue
            found = _ASKS_FOR_STRATEGY.search(path.read_text())
            self.assertIsNone(
                found, f"{path}: ask the regime instead: {found and found[0]}"
            )


class ErrorsTest(absltest.TestCase):
    def test_errors_of_arguments_have_one_form(self):
        for path in _files("tf_ext/**/*.py"):
            for line, text in _messages(path):
                if text.startswith("Argument "):
                    self.assertRegex(
                        text,
                        r"^Argument `[^`]+` (of .+ )?must .*Received: ",
                        f"{path}:{line}: see CONTRIBUTING.md, Style",
                    )


class DocstringTest(absltest.TestCase):
    def test_every_public_name_has_a_docstring(self):
        missing = []
        for module in _public_modules():
            names = getattr(module, "__all__", ())
            for name in names:
                value = getattr(module, name)
                documented = (
                    inspect.isclass(value)
                    or inspect.isroutine(value)
                    or inspect.ismodule(value)
                )
                # A class would inherit its parent's from inspect.getdoc.
                if documented and not value.__doc__:
                    missing.append(f"{module.__name__}.{name}")
        self.assertEmpty(missing)

    def test_packages_say_what_is_public(self):
        for module in _public_modules():
            if hasattr(module, "__path__"):
                self.assertTrue(
                    hasattr(module, "__all__"),
                    f"{module.__name__} has no __all__",
                )


if __name__ == "__main__":
    absltest.main()
