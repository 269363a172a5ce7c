# SPDX-License-Identifier: Apache-2.0
"""Dynamic embedding tables for TensorFlow recommendation models.

Embedding rows live in a concurrent hash table behind custom ops: ids need not
be known before training, and rows appear as ids do.

Before TensorFlow is imported, names are loaded when they are first used, so
that `import tf_ext` is cheap, and `tf_ext.hashing` and `tf_ext.snapshot` work
where TensorFlow is not installed.

Example:
  >>> import tf_ext
  >>> table = tf_ext.SparseTable("items", dim=8)
  >>> table.dim
  8
"""

import importlib
import sys
import typing

from tf_ext import _compiled, _when_imported
from tf_ext._version import __version__

_compiled.check()

_SUBPACKAGES = (
    "admission",
    "analysis",
    "callbacks",
    "convert",
    "data",
    "distribute",
    "eviction",
    "feature_column",
    "hashing",
    "initializers",
    "layers",
    "metrics",
    "ops",
    "optimizers",
    "serving",
    "snapshot",
    "utils",
)

# Public name -> the module that defines it.
_NAMES = {
    "Model": "tf_ext.models.model",
    "SparseTable": "tf_ext.tables.sparse_table",
}

__all__ = ["__version__", *_NAMES, *_SUBPACKAGES]  # noqa: PLE0604


def __getattr__(name: str) -> typing.Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"tf_ext.{name}")
    if name not in _NAMES:
        raise AttributeError(
            f"module 'tf_ext' has no attribute {name!r}; it has: "
            f"{', '.join(sorted(__all__))}"
        )
    value = getattr(importlib.import_module(_NAMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _import_all() -> None:
    for name in (
        *(f"tf_ext.{name}" for name in _SUBPACKAGES),
        *_NAMES.values(),
    ):
        importlib.import_module(name)


def _register() -> bool:
    """Registers ops and classes where TensorFlow is there; says whether it is.

    Keras finds the classes of a saved model by what their modules registered,
    and TensorFlow its ops: in any order of imports, `import tf_ext` has to be
    enough for load_model and tf.saved_model.load.
    """
    if "tensorflow" not in sys.modules:
        return False
    from tf_ext.ops import library

    library()
    return True


def _register_later() -> bool:
    try:
        return _register()
    except Exception:  # The first use of tf_ext raises it again.
        return True


if not _register():
    _when_imported.when_imported(
        ("tensorflow", "keras", "tf_keras"), __name__, _register_later
    )
