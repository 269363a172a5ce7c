# SPDX-License-Identifier: Apache-2.0
"""Compiles C++ files in parallel, and only those that have changed.

An object is compiled again when its command, its source or a header that it
includes has changed. Standard library only: the tests use it, too.
"""

import ast
import concurrent.futures
import contextlib
import fcntl
import functools
import os
import shlex
import subprocess
import sysconfig
import time

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

COPTS = [
    "-std=c++17",
    "-O2",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
]


_TRIAL = "#include <optional>\nint main() { return *std::optional<int>(0); }\n"


class CompileError(Exception):
    """No compiler, or a compiler's or linker's exit status and command."""


def check_compiler():
    """Makes sure that there is a compiler of C++17, and Python's headers.

    Raises:
      CompileError: says what to install.
    """
    cxx = _cxx()
    try:
        done = subprocess.run(
            [*cxx, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"],
            input=_TRIAL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise CompileError(_no_compiler(cxx, error.strerror)) from None
    if done.returncode != 0:
        raise CompileError(_no_compiler(cxx, done.stderr.strip()))
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    if not os.path.exists(header):
        version = sysconfig.get_python_version()
        raise CompileError(
            f"Python's headers are missing: there is no {header}. Install "
            f"them (Debian, Ubuntu: apt-get install python{version}-dev; "
            f"Fedora: dnf install python{version}-devel)."
        )


@functools.cache
def accepts(option):
    """Whether the compiler knows an option, as not all are of g++ and clang."""
    done = subprocess.run(
        [*_cxx(), option, "-fsyntax-only", "-x", "c++", "-"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def _no_compiler(cxx, found):
    command = shlex.join(cxx)
    said = " (environment variable CXX)" if "CXX" in os.environ else ""
    return (
        f"tf_ext is compiled from C++17, and {command}{said} cannot do that: "
        f"{found}. Install g++ (Debian, Ubuntu: apt-get install g++; Fedora: "
        "dnf install gcc-c++), or set CXX to another C++ compiler."
    )


def _cxx():
    """The words of the compiler's command."""
    return shlex.split(os.environ.get("CXX", "g++"))


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


class Compiler:
    """Runs $CXX, or g++, from the source tree's root.

    Args:
      folder: Where objects and the record of how each was made are kept.
      stamp: Text that changes when headers outside of the tree do.
      jobs: How many files to compile at once; None means one a usable core.
    """

    def __init__(self, folder, stamp="", jobs=None):
        self._folder = os.path.abspath(folder)
        self._stamp = stamp
        self._jobs = jobs or len(os.sched_getaffinity(0))
        self._cxx = _cxx()
        os.makedirs(self._folder, exist_ok=True)

    @contextlib.contextmanager
    def lock(self):
        """Two builds in one folder would read each other's partial files."""
        path = os.path.join(self._folder, "lock")
        with open(path, "w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def compile(self, units):
        """Compiles all groups together.

        Args:
          units: Group -> (sources, options of that group).

        Returns:
          Group -> objects, in the order of the sources.

        Raises:
          CompileError: names every file that failed; their messages are
            printed.
        """
        with concurrent.futures.ThreadPoolExecutor(self._jobs) as pool:
            futures = {
                group: [
                    pool.submit(self._compile_one, source, options)
                    for source in sources
                ]
                for group, (sources, options) in units.items()
            }
        every = [future for group in futures.values() for future in group]
        failures = [e for e in (future.exception() for future in every) if e]
        if failures:
            raise CompileError("\n".join(map(str, failures)))
        return {g: [f.result() for f in fs] for g, fs in futures.items()}

    def link(self, objects, flags, output, inputs=()):
        """Links `objects`; `inputs` are further files that `flags` name."""
        output = os.path.abspath(output)
        partial = f"{output}.partial"
        command = [*self._cxx, *objects, *flags, "-o", partial]
        record = os.path.join(
            self._folder, f"{os.path.basename(output)}.command"
        )
        if self._is_current(output, record, command, [*objects, *inputs]):
            return
        _run_and_date(command, partial)
        # A process that has the old library mapped keeps it.
        os.replace(partial, output)
        self._write_record(record, command)

    def _compile_one(self, source, options):
        stem = os.path.splitext(source)[0].lstrip("/")
        stem = os.path.join(self._folder, stem)
        output, record = f"{stem}.o", f"{stem}.command"
        os.makedirs(os.path.dirname(output), exist_ok=True)
        command = [*self._cxx, *COPTS, *options, "-I."]
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
            newest = max(
                os.stat(os.path.join(_ROOT, path)).st_mtime_ns
                for path in dependencies
            )
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
        cwd=_ROOT,
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
