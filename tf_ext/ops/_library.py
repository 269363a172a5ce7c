# SPDX-License-Identifier: Apache-2.0
"""Loads the op library once, on first use."""

import os
import threading
import typing

import tensorflow as tf

from tf_ext import _compiled

PATH = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    "_tf_ext_ops.so",
)
_lock = threading.Lock()
_module = None


def library() -> typing.Any:
    """As `tf_ext.ops.library`, without the classes."""
    global _module
    # Loading a second copy would register every op twice, which breaks them.
    with _lock:
        if _module is None:
            _module = _load()
        return _module


def check_tensorflow_version(built: str, running: str) -> None:
    """Raises unless both versions of TensorFlow have the same minor version.

    TensorFlow's C++ ABI changes with each minor version: a library built for
    another one may load and then misbehave.

    Args:
      built: string, the version of TensorFlow that tf_ext was built against.
      running: string, the version that is running.

    Raises:
      ImportError: if the major or minor versions differ.
    """
    if built.split(".")[:2] == running.split(".")[:2]:
        return
    minor = ".".join(built.split(".")[:2])
    raise ImportError(
        f"tf_ext was built for TensorFlow {built}, but TensorFlow {running} is "
        f"installed: install TensorFlow {minor}, or build tf_ext again with "
        "the TensorFlow that is installed (`pip install --force-reinstall "
        "--no-deps .` in its source folder)."
    )


def _load() -> typing.Any:
    try:
        from tf_ext._build_info import TENSORFLOW_VERSION
    except ImportError as error:
        raise _compiled.missing("tf_ext._build_info") from error
    check_tensorflow_version(TENSORFLOW_VERSION, tf.__version__)
    if not os.path.exists(PATH):
        raise _compiled.missing(PATH)
    try:
        return tf.load_op_library(PATH)
    except tf.errors.NotFoundError as error:
        raise ImportError(
            f"The op library of tf_ext, {PATH}, does not load with TensorFlow "
            f"{tf.__version__}; build tf_ext again. {error.message}"
        ) from error
