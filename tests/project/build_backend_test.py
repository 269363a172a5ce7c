# SPDX-License-Identifier: Apache-2.0
"""What pip is told where tf_ext cannot be compiled."""

import importlib.util
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from unittest import mock

from absl.testing import absltest, parameterized
from paths import ROOT

_NO_COMPILER = (
    "tf_ext is compiled from C++17, and no-such-compiler (environment variable "
    "CXX) cannot do that: No such file or directory. Install g++ (Debian, "
    "Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++), or set CXX to "
    "another C++ compiler."
)


def _load_compiler():
    # The root is not on sys.path, or tf_ext would be the source tree's.
    path = ROOT / "build_backend" / "compiler.py"
    spec = importlib.util.spec_from_file_location("compiler", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


compiler = _load_compiler()


class CheckCompilerTest(absltest.TestCase):
    def _check(self, cxx):
        environment = {"PATH": os.environ["PATH"]}
        if cxx is not None:
            environment["CXX"] = cxx
        with mock.patch.dict(os.environ, environment, clear=True):
            compiler.check_compiler()

    def _message(self, cxx):
        with self.assertRaises(compiler.CompileError) as raised:
            self._check(cxx)
        return str(raised.exception)

    def _program(self, text):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        path = pathlib.Path(folder, "cxx")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    def test_passes_where_it_compiles(self):
        header = pathlib.Path(sysconfig.get_path("include"), "Python.h")
        if shutil.which("g++") is None or not header.exists():
            self.skipTest("g++ or Python's headers are not installed")
        self._check(None)
        self._check("env g++")

    def test_missing(self):
        self.assertEqual(self._message("no-such-compiler"), _NO_COMPILER)

    def test_the_default_is_not_said_to_be_the_environments(self):
        with mock.patch.object(
            compiler.subprocess, "run", side_effect=FileNotFoundError(2, "gone")
        ):
            self.assertIn(
                "and g++ cannot do that: gone. Inst", self._message(None)
            )

    def test_a_wrapper_whose_compiler_is_missing(self):
        program = self._program("echo 'no compiler' >&2; exit 1")
        self.assertRegex(
            self._message(f"{program} g++"),
            r"cxx g\+\+ \(env.*\) cannot do that: no compiler\. Install g\+\+",
        )

    def test_missing_headers(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        with mock.patch.object(
            compiler.sysconfig, "get_path", lambda name: folder
        ):
            message = self._message(self._program("exit 0"))
        version = sysconfig.get_python_version()
        self.assertStartsWith(
            message,
            f"Python's headers are missing: there is no {folder}/Python.h. "
            "Install them (Debian, Ubuntu: apt-get install "
            f"python{version}-dev;",
        )


# Anything heavy that begins before the compiler was looked for ends this.
_HOOK = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from build_backend import backend

    def too_early(*_):
        raise AssertionError("TensorFlow is looked for without a compiler")

    backend.tensorflow_install.find_in_target = too_early
    backend.build_meta.get_requires_for_build_wheel = too_early
    backend.build_meta.get_requires_for_build_editable = too_early
    getattr(backend, sys.argv[2])()
"""


@absltest.skipIf(
    importlib.util.find_spec("setuptools") is None,
    "setuptools is not installed",
)
class HooksTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("wheel", "get_requires_for_build_wheel"),
        ("editable", "get_requires_for_build_editable"),
    )
    def test_a_missing_compiler_is_the_first_and_only_thing_said(self, hook):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(_HOOK), str(ROOT), hook],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, "CXX": "no-such-compiler"},
        )
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout + done.stderr, f"error: {_NO_COMPILER}\n")


if __name__ == "__main__":
    absltest.main()
