# SPDX-License-Identifier: Apache-2.0
"""The setuptools command that makes the op library and the pybind11 module."""

import contextlib
import os
import sysconfig

import pybind11
import setuptools.errors
from setuptools.command.build_ext import build_ext

from build_backend import tensorflow_install
from build_backend.compiler import (
    CompileError,
    Compiler,
    accepts,
    check_compiler,
    read_sources,
)

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_EXPORTS = "cc/exports.lds"
_LINK_OPTS = ["-shared", f"-Wl,--version-script={_EXPORTS}"]
_BUILD_INFO = '''\
# SPDX-License-Identifier: Apache-2.0
"""What this copy of tf_ext was built against (generated)."""

TENSORFLOW_VERSION = "{version}"
'''


class BuildNative(build_ext):
    """build_ext that makes tf_ext._core, tf_ext/_tf_ext_ops.so and the info."""

    def run(self):
        os.chdir(_ROOT)
        sources = read_sources()
        _check_sources_exist(sources)
        try:
            check_compiler()
        except CompileError as error:
            raise setuptools.errors.CompileError(str(error)) from error
        tensorflow = tensorflow_install.find()
        # The dependency files leave system headers out, TensorFlow's too.
        stamp = f"tensorflow {tensorflow.version}"
        jobs = self.parallel if isinstance(self.parallel, int) else None
        compiler = Compiler(self.build_temp, stamp, jobs)
        try:
            with compiler.lock():
                self._build(compiler, sources, tensorflow)
        except CompileError as error:
            raise setuptools.errors.CompileError(str(error)) from error

    def get_outputs(self):
        return list(self._outputs().values())

    def get_output_mapping(self):
        return {}

    def _outputs(self):
        in_source_tree = self.inplace or self.editable_mode
        folder = os.path.join(
            "" if in_source_tree else self.build_lib, "tf_ext"
        )
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        return {
            "ops": os.path.join(folder, "_tf_ext_ops.so"),
            "core": os.path.join(folder, f"_core{suffix}"),
            "info": os.path.join(folder, "_build_info.py"),
        }

    def _build(self, compiler, sources, tensorflow):
        units = _units(sources, tensorflow, self.build_temp)
        objects = compiler.compile(units)
        outputs = self._outputs()
        os.makedirs(os.path.dirname(outputs["info"]), exist_ok=True)
        # A name that TensorFlow does not have should fail here, not at a
        # user's import. A Python module's names come from the interpreter.
        compiler.link(
            objects["core"] + objects["ops"],
            [*_LINK_OPTS, "-Wl,-z,defs", "-ldl", *tensorflow.link_flags],
            outputs["ops"],
            inputs=[_EXPORTS],
        )
        compiler.link(
            objects["core"] + objects["python"],
            _LINK_OPTS,
            outputs["core"],
            inputs=[_EXPORTS],
        )
        _write_if_changed(
            outputs["info"], _BUILD_INFO.format(version=tensorflow.version)
        )


def _units(sources, tensorflow, folder):
    """Group -> (sources, options); ops first, for they take longest."""
    ops_options = []
    for i, flag in enumerate(tensorflow.compile_flags):
        if flag.startswith("-I"):
            link = os.path.join(folder, f"tensorflow_{i}")
            ops_options += _include(flag.removeprefix("-I"), link)
        elif not flag.lstrip("-").startswith("std="):
            ops_options.append(flag)
    python_options = [
        *_include(pybind11.get_include(), os.path.join(folder, "pybind11")),
        *_include(
            sysconfig.get_path("include"), os.path.join(folder, "python")
        ),
    ]
    return {
        "ops": (_write_ops_units(sources, folder), ops_options),
        "core": (sources["CORE_SOURCES"], sources["CORE_COPTS"]),
        "python": (sources["PYTHON_SOURCES"], python_options),
    }


def _include(folder, link):
    """Options for a folder with headers of others, to which `link` leads."""
    # By a link: pip builds with headers in a new folder each time, and ccache
    # knows what it has compiled by the command, too.
    with contextlib.suppress(FileNotFoundError):
        os.remove(link)
    os.symlink(folder, link)
    # System headers: their warnings are not ours. Their messages name files
    # without the folder, or the bytes would depend on where it is.
    options = [f"-isystem{link}", f"-ffile-prefix-map={link}=."]
    # Without it, g++ names them by what the link leads to.
    return [*options, *filter(accepts, ["-fno-canonical-system-headers"])]


def _write_ops_units(sources, folder):
    """Writes files that include the ops' sources; returns their paths."""
    count = sources["OPS_UNITS"]
    paths = [os.path.join(folder, f"ops_{i}.cc") for i in range(count)]
    for i, path in enumerate(paths):
        included = sources["OPS_SOURCES"][i::count]
        text = "".join(f'#include "{source}"\n' for source in included)
        _write_if_changed(path, text)
    return paths


def _check_sources_exist(sources):
    listed = [
        path
        for name, paths in sources.items()
        if name.endswith("_SOURCES")
        for path in paths
    ]
    missing = [path for path in listed if not os.path.exists(path)]
    if missing:
        raise setuptools.errors.CompileError(
            f"{len(missing)} of the {len(listed)} files listed in "
            f"cc/sources.bzl are missing: {', '.join(missing)}"
        )


def _write_if_changed(path, text):
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
