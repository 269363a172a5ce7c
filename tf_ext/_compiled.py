# SPDX-License-Identifier: Apache-2.0
"""Says what is wrong where the compiled parts are missing."""

import importlib.util
import os
import sys


def check() -> None:
    """Raises an ImportError if `tf_ext._core` was not compiled.

    Without it, `from tf_ext import _core` would report a circular import.
    """
    if importlib.util.find_spec("tf_ext._core") is None:
        raise missing("tf_ext._core")


def missing(part: str) -> ImportError:
    """An ImportError that says that `part` is missing, and what to do."""
    folder = os.path.dirname(os.path.abspath(__file__))
    version = ".".join(map(str, sys.version_info[:2]))
    return ImportError(
        f"tf_ext in {folder} is not compiled for Python {version}: {part} is "
        "missing. If tf_ext is installed, run Python in a folder other than "
        "its source folder; else run `pip install .` in the source folder, or "
        "`python setup.py build_ext --inplace` to use it there."
    )
