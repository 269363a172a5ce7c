# SPDX-License-Identifier: Apache-2.0
"""What pip is told: that there is no compiler, and what a wheel requires."""

import importlib.util
import io
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import zipfile
from unittest import mock

from absl.testing import absltest, parameterized
from paths import ROOT

import tf_ext

_NO_COMPILER = (
    "tf_ext is compiled from C++17, and no-such-compiler (environment variable "
    "CXX) cannot do that: No such file or directory. Install g++ (Debian, "
    "Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++), or set CXX to "
    "another C++ compiler."
)


def _load(name):
    # The root is not on sys.path, or tf_ext would be the source tree's.
    if "build_backend" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "build_backend", ROOT / "build_backend" / "__init__.py"
        )
        sys.modules["build_backend"] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"build_backend.{name}")


compiler = _load("compiler")
metadata = _load("metadata")
tensorflow_install = _load("tensorflow_install")


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


class TensorFlowTest(parameterized.TestCase):
    """Which TensorFlow a build takes, and what its wheel then requires."""

    def _installed(self, version):
        """Lets the probe of an interpreter find that version, or none."""
        probed = {"version": version, "compile_flags": [], "link_flags": []}
        done = subprocess.CompletedProcess([], 0, json.dumps(probed), "")
        if version is None:
            error = "ModuleNotFoundError: No module named 'tensorflow'"
            done = subprocess.CompletedProcess([], 1, "", error)
        self.enterContext(
            mock.patch.object(
                tensorflow_install.subprocess, "run", return_value=done
            )
        )
        tensorflow_install.find.cache_clear()
        self.addCleanup(tensorflow_install.find.cache_clear)

    @parameterized.parameters(
        ("2.18.0", "2.18", "2.19"),
        ("2.19.1", "2.19", "2.20"),
        ("2.20.0", "2.20", "2.21"),
        ("2.21.0", "2.21", "2.22"),
    )
    def test_a_wheel_is_of_one_minor_version(self, installed, minor, following):
        self._installed(installed)
        for command in ("bdist_wheel", "dist_info", "editable_wheel"):
            written = metadata.setup_arguments([command, "--some-option"])
            self.assertEqual(
                written["version"], f"{tf_ext.__version__}+tf{minor}"
            )
            self.assertEqual(
                written["install_requires"],
                [
                    "keras>=3.9",
                    "numpy>=1.26",
                    "rich>=13",
                    f"tensorflow>={minor},<{following}",
                ],
            )

    @parameterized.parameters("sdist", "egg_info", "build_ext")
    def test_sources_are_of_all_and_need_none_installed(self, command):
        with mock.patch.object(
            tensorflow_install, "find", side_effect=AssertionError
        ):
            written = metadata.setup_arguments([command])
        self.assertEqual(written["version"], tf_ext.__version__)
        self.assertEqual(
            written["install_requires"],
            ["keras>=3.9", "numpy>=1.26", "rich>=13", "tensorflow>=2.18,<2.22"],
        )

    @parameterized.parameters("2.18.0", "2.19.1", "2.20.0", "2.21.1")
    def test_one_in_the_range_is_taken(self, installed):
        self._installed(installed)
        self.assertEqual(tensorflow_install.find().version, installed)

    @parameterized.parameters("2.17.1", "2.22.0", None)
    def test_without_one_the_error_says_what_to_install(self, installed):
        self._installed(installed)
        self.assertIsNone(tensorflow_install.find_in_target())
        with self.assertRaisesRegex(
            RuntimeError,
            r"No TensorFlow that satisfies 'tensorflow<2\.22,>=2\.18' is "
            r"installed for .*pip install 'tensorflow<2\.22,>=2\.18'\.$",
        ):
            tensorflow_install.find()


_SETUP = """
    import sys
    sys.path.insert(0, {root!r})
    import setuptools
    from build_backend.wheel import ReproducibleWheel

    setuptools.setup(
        name="packed",
        version="1.0",
        packages=["packed"],
        package_data={{"packed": ["py.typed", "native.so"]}},
        cmdclass={{"bdist_wheel": ReproducibleWheel}},
    )
"""


@absltest.skipIf(
    importlib.util.find_spec("setuptools") is None,
    "setuptools is not installed",
)
class ReproducibleWheelTest(absltest.TestCase):
    def _wheel(self, mode, time):
        """The bytes of a wheel of files with that mode and time."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        package = folder / "packed"
        package.mkdir()
        (folder / "setup.py").write_text(
            textwrap.dedent(_SETUP.format(root=str(ROOT)))
        )
        for name in ("__init__.py", "native.so", "py.typed"):
            path = package / name
            path.write_text(name)
            path.chmod(mode)
            os.utime(path, (time, time))
        environment = dict(os.environ)
        environment.pop("SOURCE_DATE_EPOCH", None)
        subprocess.run(
            [sys.executable, "setup.py", "-q", "bdist_wheel"],
            cwd=folder,
            env=environment,
            timeout=120,
            check=True,
        )
        (wheel,) = (folder / "dist").glob("*.whl")
        return wheel.read_bytes()

    def test_same_files_make_the_same_bytes(self):
        one = self._wheel(0o664, 1e9)
        self.assertEqual(one, self._wheel(0o700, 1.5e9))
        with zipfile.ZipFile(io.BytesIO(one)) as archive:
            modes = {
                info.filename: stat.S_IMODE(info.external_attr >> 16)
                for info in archive.infolist()
            }
        self.assertEqual(modes["packed/__init__.py"], 0o644)
        self.assertEqual(modes["packed/py.typed"], 0o644)
        self.assertEqual(modes["packed/native.so"], 0o755)


@absltest.skipIf(
    importlib.util.find_spec("pybind11") is None
    or importlib.util.find_spec("setuptools") is None
    or shutil.which("g++") is None,
    "pybind11, setuptools or g++ is not installed",
)
class IncludeTest(absltest.TestCase):
    def test_objects_do_not_tell_where_headers_are(self):
        native = _load("native")
        parent = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        commands = []
        for folder in (parent / "one", parent / "two"):
            folder.mkdir()
            # A link of an earlier build leads elsewhere.
            options = native._include(str(folder), str(parent / "link"))
            commands.append(["g++", *options, "-x", "c++", "-S"])
        # The command is known to a cache wherever the headers are.
        self.assertEqual(*commands)
        (folder / "file.h").write_text(
            "inline auto File() { return __FILE__; }"
        )
        done = subprocess.run(
            [*commands[1], "-o", "-", "-"],
            input="#include <file.h>\nconst char* F() { return File(); }\n",
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        self.assertIn("./file.h", done.stdout)
        self.assertNotIn(str(parent), done.stdout)


if __name__ == "__main__":
    absltest.main()
