# SPDX-License-Identifier: Apache-2.0
"""PEP 517 backend: setuptools, built against the TensorFlow already there.

A static build requirement on TensorFlow would download 250 MB into the
isolated build environment each time; here it is asked for only when the
environment that is installed into has no TensorFlow that fits.
"""

import glob
import shutil

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401 (hooks that stay as they are)
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

from build_backend import tensorflow_install
from build_backend.compiler import CompileError, check_compiler


def get_requires_for_build_wheel(config_settings=None):
    _require_compiler()
    requires = build_meta.get_requires_for_build_wheel(config_settings)
    return requires + _tensorflow_requirement()


def get_requires_for_build_editable(config_settings=None):
    _require_compiler()
    requires = build_meta.get_requires_for_build_editable(config_settings)
    return requires + _tensorflow_requirement()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _remove_stale_modules()
    return build_meta.build_wheel(
        wheel_directory, config_settings, metadata_directory
    )


def build_editable(
    wheel_directory, config_settings=None, metadata_directory=None
):
    return build_meta.build_editable(
        wheel_directory, config_settings, metadata_directory
    )


def _require_compiler():
    # First of all: before TensorFlow is downloaded.
    try:
        check_compiler()
    except CompileError as error:
        # pip shows the text alone, without a traceback.
        raise SystemExit(f"error: {error}") from None


def _tensorflow_requirement():
    if tensorflow_install.find_in_target() is not None:
        return []
    return [str(tensorflow_install.requirement())]


def _remove_stale_modules():
    # setuptools packs whatever an earlier build left there, deleted modules
    # too. The objects (build/temp.*) stay: they are checked one by one.
    for folder in glob.glob("build/lib*"):
        shutil.rmtree(folder)
