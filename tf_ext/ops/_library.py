"""Loads the op library: once, when it is first needed."""

import os
import threading

import tensorflow as tf

from tf_ext import _compiled

_PATH = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    "_tf_ext_ops.so",
)
_lock = threading.Lock()
_module = None


def library():
    """The module of the raw ops; registers ops and kernels with TensorFlow.

    `import tf_ext` calls it if TensorFlow is imported already, and so do the
    functions of `tf_ext.ops`. A program that imports tf_ext first and
    TensorFlow later calls it before something else needs the ops by name, as
    `tf.saved_model.load` does, or a `tf.distribute.Server` that is to run them.

    Returns:
      The module that `tf.load_op_library` made.

    Raises:
      ImportError: tf_ext is not built, or built for another TensorFlow.

    Example:
      >>> hasattr(tf_ext.ops.library(), "tf_ext_sparse_table_pull")
      True
    """
    global _module
    # A second copy would register everything twice, after which no op works.
    with _lock:
        if _module is None:
            _module = _load()
        return _module


def check_tensorflow_version(built, running):
    """Refuses a TensorFlow of another minor version than the library's.

    TensorFlow's C++ interface changes with each of them, and a library made
    for another one can load and then misbehave.

    Args:
      built: string, the version of TensorFlow that tf_ext was built against.
      running: string, the version that is there now.

    Raises:
      ImportError: major or minor version differ.
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


def _load():
    try:
        from tf_ext._build_info import TENSORFLOW_VERSION
    except ImportError as error:
        raise _compiled.missing("tf_ext._build_info") from error
    check_tensorflow_version(TENSORFLOW_VERSION, tf.__version__)
    if not os.path.exists(_PATH):
        raise _compiled.missing(_PATH)
    try:
        return tf.load_op_library(_PATH)
    except tf.errors.NotFoundError as error:
        raise ImportError(
            f"The op library of tf_ext, {_PATH}, does not load with TensorFlow "
            f"{tf.__version__}; build tf_ext again. {error.message}"
        ) from error
