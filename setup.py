"""The parts of the build that pyproject.toml cannot say."""

import os
import sys

import setuptools

# `python setup.py` puts this folder there by itself, a PEP 517 frontend not.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from build_backend.compiler import read_sources
from build_backend.native import BuildNative

_SOURCES = read_sources()


def _extension(name, *groups):
    sources = [path for group in groups for path in _SOURCES[group]]
    return setuptools.Extension(name, sources, language="c++")


setuptools.setup(
    cmdclass={"build_ext": BuildNative},
    # BuildNative knows how to make them; setuptools learns from them that the
    # wheel is for one platform and one Python, and what the sdist has to hold.
    ext_modules=[
        _extension("tf_ext._core", "CORE_SOURCES", "PYTHON_SOURCES"),
        _extension("tf_ext._tf_ext_ops", "CORE_SOURCES", "OPS_SOURCES"),
    ],
)
