# SPDX-License-Identifier: Apache-2.0
"""What a step of training carries: one object, and the only ambient one.

Keras calls layers, losses and optimizers, and passes none of them anything of
tf_ext. So the StepContext of a step is in a context variable. What Keras calls
reads it, and passes on what is needed by arguments.
"""

import contextlib
import contextvars
import dataclasses
import itertools
import typing
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tf_ext._core import Setting
from tf_ext.regimes.carried_words import Carried
from tf_ext.regimes.replica_weights import ReplicaWeight


class StepNumber:
    """The number of a step that may run again, as servers know it.

    Attributes:
      tensor: int64 `[2]`, the number, and that of the oldest step that may run
        again.
    """

    def __init__(self, tensor: tf.Tensor) -> None:
        self.tensor = tensor
        self._parts = itertools.count()

    def part(self) -> int | None:
        """The number of the next push of the step.

        Returns:
          int; None for a push that may run more than once in the step: in a
          loop, or in a function.
        """
        if self.tensor.graph is not tf.compat.v1.get_default_graph():
            return None
        return next(self._parts)


_Update: typing.TypeAlias = Callable[[Sequence[Carried]], None]


class Updates:
    """The updates of a step that have not been made.

    A step whose update is delayed ends when its gradients are computed. So the
    next step can read rows and variables, and compute, while the update is on
    its way.

    Attributes:
      gradients: list of tensors, from which they will be made.
    """

    def __init__(self) -> None:
        self.gradients: list[tf.Tensor] = []
        self._functions: list[_Update] = []

    def add(self, gradients: typing.Any, function: _Update) -> None:
        """Adds an update.

        Args:
          gradients: nested structure of tensors and `tf.IndexedSlices`.
          function: makes the update, as of `StepContext.update`; it is called
            in the graph of the step.
        """
        self.gradients += tf.nest.flatten(gradients, expand_composites=True)
        self._functions.append(function)

    def make(self, carried: Sequence[Carried] = ()) -> None:
        """Makes the updates, in a replica's context.

        Args:
          carried: list of Carried, for the first exchange of gradients.
        """
        for function in self._functions:
            function(carried)


@dataclasses.dataclass(frozen=True)
class StepContext:
    """What a step carries.

    Attributes:
      weight: ReplicaWeight of its loss; None where all replicas count alike.
      updates: Updates that collects those of tf_ext's optimizers; None if they
        are made at once, as those of other optimizers always are.
      rows_after: list of tensors; rows that are pulled are there only when
        these are, so that two steps that overlap do not compute at once.
      waits_in: the graph in which all operations wait for the batch, or None.
      number: StepNumber; None where no step runs again.
    """

    weight: ReplicaWeight | None = None
    updates: Updates | None = None
    rows_after: Sequence[tf.Tensor] = ()
    waits_in: tf.Graph | None = None
    number: StepNumber | None = None

    def update(self, gradients: typing.Any, function: _Update) -> None:
        """Makes an update, or leaves it to `updates`.

        Args:
          gradients: nested structure of tensors and `tf.IndexedSlices`.
          function: makes it; its argument is the list of Carried that its
            exchange of gradients takes along.
        """
        if self.updates is None:
            function(())
        else:
            self.updates.add(gradients, function)


_NO_STEP = StepContext()
_CURRENT: contextvars.ContextVar[StepContext | None] = contextvars.ContextVar(
    "tf_ext_step", default=None
)


def current_step() -> StepContext:
    """The StepContext of this thread; an empty one outside of steps."""
    return _CURRENT.get() or _NO_STEP


def step_with(
    **changes: typing.Any,
) -> contextlib.AbstractContextManager[StepContext]:
    """A context in which the step carries something else.

    Args:
      **changes: attributes of StepContext; the others stay as they are.
    """
    step = dataclasses.replace(current_step(), **changes)
    return Setting(_CURRENT, step, step)


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
    if graph is None or not leaves or graph is current_step().waits_in:
        yield
        return
    with (
        step_with(waits_in=graph),
        tf.control_dependencies([tf.group(*leaves)]),
    ):
        yield
