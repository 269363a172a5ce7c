# SPDX-License-Identifier: Apache-2.0
"""The version and the dependencies: of a wheel, and of the sources."""

import os
import runpy

from packaging.requirements import Requirement
from packaging.version import Version

from build_backend import tensorflow_install

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# The commands of setuptools that write the metadata of a wheel.
_WHEEL_COMMANDS = {"bdist_wheel", "dist_info", "editable_wheel"}


def setup_arguments(commands: list[str]) -> dict:
    """`version` and `install_requires` for `setuptools.setup`.

    A wheel fits one minor version of TensorFlow: it requires that one, and has
    it in the local label of its version, for pip takes wheels of one version
    for the same. The sources fit all minor versions.

    Args:
      commands: The words of the command line.
    """
    version = runpy.run_path(os.path.join(_ROOT, "tf_ext", "_version.py"))[
        "__version__"
    ]
    requires = tensorflow_install.dependencies()
    if _WHEEL_COMMANDS.intersection(commands):
        found = Version(tensorflow_install.find().version)
        version += f"+tf{found.major}.{found.minor}"
        requires = [_narrowed(text, found) for text in requires]
    return {"version": version, "install_requires": requires}


def _narrowed(text, tensorflow):
    if Requirement(text).name != "tensorflow":
        return text
    major, minor = tensorflow.major, tensorflow.minor
    return f"tensorflow>={major}.{minor},<{major}.{minor + 1}"
