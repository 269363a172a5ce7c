# SPDX-License-Identifier: Apache-2.0
"""The parts of the build that pyproject.toml cannot express."""

import os
import sys

import setuptools

# `python setup.py` adds this folder by itself; a PEP 517 frontend does not.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from build_backend.compiler import read_sources
from build_backend.metadata import setup_arguments
from build_backend.native import BuildNative
from build_backend.wheel import ReproducibleWheel

_SOURCES = read_sources()


def _extension(name, *groups):
    sources = [path for group in groups for path in _SOURCES[group]]
    return setuptools.Extension(name, sources, language="c++")


setuptools.setup(
    **setup_arguments(sys.argv[1:]),
    cmdclass={"bdist_wheel": ReproducibleWheel, "build_ext": BuildNative},
    # BuildNative builds them; setuptools needs them to tag the wheel with the
    # platform and Python version, and to list the files of the sdist.
    ext_modules=[
        _extension("tf_ext._core", "CORE_SOURCES", "PYTHON_SOURCES"),
        _extension("tf_ext._tf_ext_ops", "CORE_SOURCES", "OPS_SOURCES"),
    ],
)
