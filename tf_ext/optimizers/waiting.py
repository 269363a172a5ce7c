# SPDX-License-Identifier: Apache-2.0
"""Operations that wait for a step's batch."""

import contextlib
import threading
import typing
from collections.abc import Iterator

import tensorflow as tf

# The graph in which a thread is in `after`.
_waiting = threading.local()


@contextlib.contextmanager
def after(tensors: typing.Any) -> Iterator[None]:
    """A context in which all operations wait for tensors.

    Keras detects the end of data of unknown length by a step that fails to read
    a batch. Operations that do not depend on the batch, such as adding 1 to
    `iterations`, would run in that step as well.

    Args:
      tensors: nested structure of tensors, including ragged, sparse and sliced
        ones; other leaves are ignored.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    leaves = tf.nest.flatten(tensors, expand_composites=True)
    leaves = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
    # Nothing waits for gradients inside of a wait for a batch, from which they
    # are computed.
    if graph is None or not leaves or graph is getattr(_waiting, "graph", None):
        yield
        return
    before = getattr(_waiting, "graph", None)
    _waiting.graph = graph
    try:
        with tf.control_dependencies([tf.group(*leaves)]):
            yield
    finally:
        _waiting.graph = before
