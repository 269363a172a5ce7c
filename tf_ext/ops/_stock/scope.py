# SPDX-License-Identifier: Apache-2.0
"""The scope in which traced functions use only TensorFlow's own ops."""

import contextlib
import contextvars
import typing
from collections.abc import Callable

import tensorflow as tf

from tf_ext._core import Setting

Lookup: typing.TypeAlias = Callable[[typing.Any, tf.Tensor, int], tf.Tensor]
"""`(table, signs int64 [n], statistics) -> float32 [n, dim + statistics]`."""

_LOOKUP: contextvars.ContextVar[Lookup | None] = contextvars.ContextVar(
    "tf_ext_stock_lookup", default=None
)


def stock_ops(lookup: Lookup) -> contextlib.AbstractContextManager[None]:
    """Makes tf_ext's layers and tables trace stock TensorFlow ops.

    Args:
      lookup: function that reads a table's rows.
    """
    return Setting(_LOOKUP, lookup)


def stock_lookup() -> Lookup | None:
    """The function that reads rows inside `stock_ops`; None outside."""
    return _LOOKUP.get()
