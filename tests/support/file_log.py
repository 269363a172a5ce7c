# SPDX-License-Identifier: Apache-2.0
"""Compiles the library that logs the file operations of a process."""

import os
import shlex
import shutil
import subprocess
import unittest

from paths import SUPPORT


def compiled(folder):
    """Compiles `file_log.cc`.

    Args:
      folder: path-like, where the library is written.

    Returns:
      string, the library's path, for LD_PRELOAD.

    Raises:
      unittest.SkipTest: if there is no C++ compiler.
    """
    compiler = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(compiler[0]) is None:
        raise unittest.SkipTest("There is no C++ compiler.")
    library = os.path.join(folder, "file_log.so")
    source = SUPPORT / "file_log.cc"
    subprocess.run(
        [*compiler, "-shared", "-fPIC", source, "-o", library, "-ldl"],
        check=True,
    )
    return library
