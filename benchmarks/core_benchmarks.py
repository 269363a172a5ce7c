# SPDX-License-Identifier: Apache-2.0
"""The core's own benchmark, in C++ without TensorFlow."""

import importlib.util
import pathlib
import subprocess

from harness import heading

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Where the C++ tests are built: most objects are the same.
_FOLDER = _ROOT / "build" / "core_test"


def build():
    """Compiles the sources of the program that have changed.

    Returns:
      The program's path.

    Raises:
      CompileError: see `build_backend/compiler.py`.
    """
    build_compiler = _load(_ROOT / "build_backend" / "compiler.py")
    sources = build_compiler.read_sources()
    compiler = build_compiler.Compiler(_FOLDER)
    program = _FOLDER / "table_benchmark"
    with compiler.lock():
        objects = compiler.compile(
            {
                key: (sources[key], sources["CORE_COPTS"])
                for key in ("CORE_SOURCES", "CORE_BENCHMARK_SOURCES")
            }
        )
        compiler.link(
            [path for group in objects.values() for path in group],
            ["-pthread"],
            str(program),
        )
    return program


def core(args):
    """Table, index, hashing and their memory access, on one thread.

    Args:
      args: `rows` of the largest table, `batch` signs of one call, `dim` of a
        row, `repeats` of each measurement.

    Raises:
      subprocess.CalledProcessError: if the program fails.
    """
    names = ("rows", "batch", "dim", "repeats")
    settings = {name: getattr(args, name) for name in names}
    command = [str(build()), *(f"--{k}={v}" for k, v in settings.items())]
    print(heading("core", settings), flush=True)
    subprocess.run(command, check=True)


def _load(path):
    # The root is not on sys.path, or tf_ext would be the source tree's.
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
