# SPDX-License-Identifier: Apache-2.0
"""Finds the TensorFlow to compile against, without downloading one."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import tomllib

from packaging.requirements import Requirement

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_PROBE = """
import json
import tensorflow as tf
print(json.dumps({
    "version": tf.__version__,
    "compile_flags": tf.sysconfig.get_compile_flags(),
    "link_flags": tf.sysconfig.get_link_flags(),
}))
"""


@dataclasses.dataclass(frozen=True)
class TensorFlowInstall:
    """What a compiler has to know of one installed TensorFlow."""

    version: str
    compile_flags: list[str]
    link_flags: list[str]


def dependencies() -> list[str]:
    """The dependencies in pyproject.toml, of all TensorFlows that fit."""
    with open(os.path.join(_ROOT, "pyproject.toml"), "rb") as file:
        return tomllib.load(file)["tool"]["tf_ext"]["dependencies"]


def requirement() -> Requirement:
    """The requirement of TensorFlow among them."""
    for text in dependencies():
        parsed = Requirement(text)
        if parsed.name == "tensorflow":
            return parsed
    raise RuntimeError(
        f"pyproject.toml has no dependency on tensorflow: {dependencies()}"
    )


def find_in_target() -> TensorFlowInstall | None:
    """A fitting TensorFlow of the environment that is installed into.

    An isolated build hides that environment behind PYTHONPATH and a
    sitecustomize; the same interpreter without PYTHON* variables sees it.
    """
    return _probe("-E", "-P")


@functools.cache
def find() -> TensorFlowInstall:
    """A fitting TensorFlow: of the build environment, or of the target."""
    found = _probe() or find_in_target()
    if found is None:
        raise RuntimeError(
            f"No TensorFlow that satisfies '{requirement()}' is installed for "
            f"{sys.executable}. Install one, e.g. "
            f"{sys.executable} -m pip install '{requirement()}'."
        )
    return found


def _probe(*interpreter_options: str) -> TensorFlowInstall | None:
    # Without -P the source folder would be searched for modules first.
    command = [sys.executable, "-P", *interpreter_options, "-c", _PROBE]
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    probe = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        if "No module named 'tensorflow'" not in probe.stderr:
            print(
                f"Importing tensorflow fails: {probe.stderr}", file=sys.stderr
            )
        return None
    found = TensorFlowInstall(**json.loads(probe.stdout.splitlines()[-1]))
    if found.version not in requirement().specifier:
        print(
            f"tensorflow {found.version} is installed, which does not satisfy "
            f"'{requirement()}'.",
            file=sys.stderr,
        )
        return None
    return found
