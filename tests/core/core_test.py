# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs the C++ tests of cc/core.

Only with `-m slow`: Bazel runs them in continuous integration.
"""

import importlib.util
import pathlib
import subprocess
import unittest

import pytest
from absl.testing import absltest, parameterized
from paths import ROOT

_GOOGLETEST = pathlib.Path("/usr/src/googletest/googletest")
_RUN_TIMEOUT_SECONDS = 300


def _load(path):
    # The root is not on sys.path, or tf_ext would be the source tree's.
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_compiler = _load(ROOT / "build_backend" / "compiler.py")
_SOURCES = _compiler.read_sources()
_TESTS = _SOURCES["CORE_TESTS"] + _SOURCES["CORE_THREADED_TESTS"]


@pytest.mark.slow
class CoreTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not (_GOOGLETEST / "src" / "gtest-all.cc").exists():
            raise unittest.SkipTest(
                f"there are no googletest sources in {_GOOGLETEST}: install "
                "Debian's libgtest-dev"
            )
        folder = ROOT / "build" / "core_test"
        compiler = _compiler.Compiler(folder)
        include = f"-isystem{_GOOGLETEST / 'include'}"
        with compiler.lock():
            objects = compiler.compile(
                {
                    "googletest": (
                        [
                            str(_GOOGLETEST / "src" / "gtest-all.cc"),
                            str(_GOOGLETEST / "src" / "gtest_main.cc"),
                        ],
                        ["-w", "-O0", include, f"-I{_GOOGLETEST}"],
                    ),
                    # Templates of tests compile slowly, and need no speed.
                    "tests": (_TESTS, ["-O1", include]),
                    "core": (_SOURCES["CORE_SOURCES"], _SOURCES["CORE_COPTS"]),
                }
            )
            cls.programs = {}
            for path, tested in zip(_TESTS, objects["tests"], strict=True):
                cls.programs[path] = str(folder / pathlib.Path(path).stem)
                compiler.link(
                    [tested, *objects["core"], *objects["googletest"]],
                    ["-pthread"],
                    cls.programs[path],
                )

    @parameterized.named_parameters(
        *((pathlib.Path(path).stem, path) for path in _TESTS)
    )
    def test_passes(self, path):
        done = subprocess.run(
            [self.programs[path], "--gtest_brief=1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_RUN_TIMEOUT_SECONDS,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    absltest.main()
