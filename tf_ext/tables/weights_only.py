# SPDX-License-Identifier: Apache-2.0
"""Tables that hold only weights, for serving."""

import contextlib
import contextvars

from tf_ext._core import Setting

_IN_SCOPE: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "tf_ext_weights_only", default=False
)


def weights_only() -> contextlib.AbstractContextManager[None]:
    """Creates tables that hold only weights, for serving.

    The rows have no slots: at dim 16 a row takes 72 bytes instead of 136 with
    Adagrad or 208 with Adam. Loading into such a table, by `load` or
    `apply_delta` of snapshots, `keras.models.load_model` inside the context,
    `load_weights` or `tf.train.Checkpoint`, reads only the weights, whatever
    the optimizer. Tables of layers with `cvm=True` also hold and read the
    statistics "show" and "click". Name, dim, seed and initializer must be those
    of the saved table, so that ids without a row also get the same weights.

    The tables cannot be trained: a push raises
    `tf.errors.InvalidArgumentError`. Copies of the model that are made outside
    the context have tables with slots.

    Example:
    >>> import tempfile
    >>> import tf_ext
    >>> trained = tf_ext.SparseTable("user", dim=16, optimizer="adam")
    >>> _ = trained.pull([7, 9], training=True)
    >>> with tf_ext.serving.weights_only():
    ...     served = tf_ext.SparseTable("user", dim=16, optimizer="adam")
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     _ = trained.save(directory)
    ...     served.load(directory).rows
    2
    >>> served.stats()["row_bytes"], trained.stats()["row_bytes"]
    (72, 208)
    """
    return Setting(_IN_SCOPE, True)


def in_scope() -> bool:
    """Whether tables that are created now hold only weights."""
    return _IN_SCOPE.get()
