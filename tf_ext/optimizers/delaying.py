# SPDX-License-Identifier: Apache-2.0
"""Updates that are made later than their step.

A step whose update is delayed ends when its gradients are computed. So the next
step can read rows and variables, and compute, while the update is on its way.
"""

import contextlib
import contextvars
import typing
from collections.abc import Callable

import tensorflow as tf

from tf_ext._core import Setting


class Updates:
    """The updates of a step that have not been made.

    Attributes:
      gradients: list of tensors, from which they will be made.
    """

    def __init__(self) -> None:
        self.gradients: list[tf.Tensor] = []
        self._functions: list[Callable[[], None]] = []

    def add(self, gradients: typing.Any, function: Callable[[], None]) -> None:
        """Adds an update.

        Args:
          gradients: nested structure of tensors and `tf.IndexedSlices`.
          function: makes the update; it is called in the graph of the step.
        """
        self.gradients += tf.nest.flatten(gradients, expand_composites=True)
        self._functions.append(function)

    def make(self) -> None:
        """Makes the updates, in a replica's context."""
        for function in self._functions:
            function()


# What `delayed_updates` collects.
_COLLECTED: contextvars.ContextVar[Updates | None] = contextvars.ContextVar(
    "tf_ext_delayed_updates", default=None
)


def delayed_updates() -> contextlib.AbstractContextManager[Updates]:
    """A context, in a replica, that collects updates instead of making them.

    Updates of other optimizers than those of tf_ext are made at once.
    """
    updates = Updates()
    return Setting(_COLLECTED, updates, updates)


def update(gradients: typing.Any, function: Callable[[], None]) -> None:
    """Makes an update; later, if in `delayed_updates`.

    Args:
      gradients: nested structure of tensors and `tf.IndexedSlices`.
      function: makes it.
    """
    updates = _COLLECTED.get()
    if updates is None:
        function()
    else:
        updates.add(gradients, function)
