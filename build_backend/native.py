"""Compiles the op library and the pybind11 module.

Objects are compiled in parallel and kept under build/; one is compiled again
when its command, its source or a header that it includes has changed.
"""

import ast
import concurrent.futures
import contextlib
import fcntl
import os
import shlex
import subprocess
import sysconfig
import time

import pybind11
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

from build_backend import tensorflow_install

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_EXPORTS = "cc/exports.lds"
_COMMON_COPTS = [
    "-std=c++17",
    "-O2",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
]
_LINK_OPTS = ["-shared", f"-Wl,--version-script={_EXPORTS}"]
_BUILD_INFO = '''"""What this copy of tf_ext was built against (generated)."""

TENSORFLOW_VERSION = "{version}"
'''


def read_sources() -> dict[str, list[str]]:
    """The lists of cc/sources.bzl by name."""
    path = os.path.join(_ROOT, "cc", "sources.bzl")
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
    }


class BuildNative(build_ext):
    """build_ext that makes tf_ext._core, tf_ext/_tf_ext_ops.so and the info."""

    def run(self):
        os.chdir(_ROOT)
        os.makedirs(self.build_temp, exist_ok=True)
        with _locked(os.path.join(self.build_temp, "lock")):
            self._build()

    def get_outputs(self):
        return list(self._outputs().values())

    def get_output_mapping(self):
        return {}

    def _outputs(self):
        folder = "" if self._in_source_tree() else self.build_lib
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        return {
            "ops": os.path.join(folder, "tf_ext", "_tf_ext_ops.so"),
            "core": os.path.join(folder, "tf_ext", f"_core{suffix}"),
            "info": os.path.join(folder, "tf_ext", "_build_info.py"),
        }

    def _in_source_tree(self):
        return self.inplace or self.editable_mode

    def _build(self):
        sources = read_sources()
        _check_sources_exist(sources)
        tensorflow = tensorflow_install.find()
        jobs = self.parallel
        if not isinstance(jobs, int) or jobs < 1:
            jobs = len(os.sched_getaffinity(0))
        compiler = _Compiler(self.build_temp, tensorflow.version, jobs)
        objects = compiler.compile(_units(sources, tensorflow))

        outputs = self._outputs()
        os.makedirs(os.path.dirname(outputs["info"]), exist_ok=True)
        # A name that TensorFlow does not have should fail here, not at a
        # user's import. A Python module's names come from the interpreter.
        compiler.link(
            objects["core"] + objects["ops"],
            ["-Wl,-z,defs", *tensorflow.link_flags],
            outputs["ops"],
        )
        compiler.link(objects["core"] + objects["python"], [], outputs["core"])
        _write_if_changed(
            outputs["info"], _BUILD_INFO.format(version=tensorflow.version)
        )


def _units(sources, tensorflow):
    """Group -> (sources, options); ops first, for they take longest."""
    # Headers of others are system headers: their warnings are not ours.
    ops_options = [
        flag.replace("-I", "-isystem", 1)
        for flag in tensorflow.compile_flags
        if not flag.lstrip("-").startswith("std=")
    ]
    python_options = [
        f"-isystem{pybind11.get_include()}",
        f"-isystem{sysconfig.get_path('include')}",
    ]
    return {
        "ops": (sources["OPS_SOURCES"], ops_options),
        "core": (sources["CORE_SOURCES"], sources["CORE_COPTS"]),
        "python": (sources["PYTHON_SOURCES"], python_options),
    }


def _check_sources_exist(sources):
    listed = [
        path
        for name, paths in sources.items()
        if name.endswith("_SOURCES")
        for path in paths
    ]
    missing = [path for path in listed if not os.path.exists(path)]
    if missing:
        raise CompileError(
            f"{len(missing)} of the {len(listed)} files listed in "
            f"cc/sources.bzl are missing: {', '.join(missing)}"
        )


class _Compiler:
    """Runs the C++ compiler ($CXX or g++), only where something changed."""

    def __init__(self, folder, tensorflow_version, jobs):
        self._folder = folder
        # The dependency files leave system headers out, TensorFlow's too.
        self._stamp = f"tensorflow {tensorflow_version}"
        self._jobs = jobs
        self._cxx = shlex.split(os.environ.get("CXX", "g++"))

    def compile(self, units):
        """Group -> objects, all groups compiled together."""
        with concurrent.futures.ThreadPoolExecutor(self._jobs) as pool:
            futures = {
                group: [
                    pool.submit(self._compile_one, source, options)
                    for source in group_sources
                ]
                for group, (group_sources, options) in units.items()
            }
            every = [f for group in futures.values() for f in group]
            failures = [e for e in (f.exception() for f in every) if e]
        if failures:
            raise CompileError("\n".join(str(e) for e in failures))
        return {g: [f.result() for f in fs] for g, fs in futures.items()}

    def link(self, objects, flags, output):
        partial = f"{output}.partial"
        command = [*self._cxx, *objects, *_LINK_OPTS, *flags, "-o", partial]
        record = os.path.join(
            self._folder, f"{os.path.basename(output)}.command"
        )
        if self._is_current(output, record, command, [*objects, _EXPORTS]):
            return
        _run_and_date(command, partial)
        # A process that has the old library mapped keeps it.
        os.replace(partial, output)
        self._write_record(record, command)

    def _compile_one(self, source, options):
        stem = os.path.join(self._folder, os.path.splitext(source)[0])
        output, record = f"{stem}.o", f"{stem}.command"
        os.makedirs(os.path.dirname(output), exist_ok=True)
        command = [*self._cxx, *_COMMON_COPTS, *options, "-I."]
        command += ["-MMD", "-MF", f"{stem}.d", "-c", source, "-o", output]
        dependencies = [source, *_read_dependencies(f"{stem}.d")]
        if not self._is_current(output, record, command, dependencies):
            print(f"compiling {source}", flush=True)
            _run_and_date(command, output)
            self._write_record(record, command)
        return output

    def _is_current(self, output, record, command, dependencies):
        try:
            with open(record, encoding="utf-8") as file:
                if file.read() != self._record_text(command):
                    return False
            newest = max(os.stat(path).st_mtime_ns for path in dependencies)
            return os.stat(output).st_mtime_ns > newest
        except FileNotFoundError:
            return False

    def _write_record(self, record, command):
        with open(record, "w", encoding="utf-8") as file:
            file.write(self._record_text(command))

    def _record_text(self, command):
        return f"{self._stamp}\n{shlex.join(command)}\n"


def _run_and_date(command, output):
    start = time.time_ns()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.stdout:
        print(done.stdout, flush=True)
    if done.returncode != 0:
        raise CompileError(
            f"exit status {done.returncode} of: {shlex.join(command)}"
        )
    # A source that was saved while it was compiled has to be newer.
    os.utime(output, ns=(start, start))


def _read_dependencies(path):
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return []
    _, _, names = text.replace("\\\n", " ").partition(":")
    return names.split()


def _write_if_changed(path, text):
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


@contextlib.contextmanager
def _locked(path):
    """Two builds in one folder would read each other's half-made objects."""
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
