# SPDX-License-Identifier: Apache-2.0
"""What loops and steps call of the data that they read."""

import abc
import collections
import contextlib
import typing
from collections.abc import Callable, Collection, Iterator, Sequence

import tensorflow as tf

from tf_ext._compat.clusters import schedule
from tf_ext.data.progress import StreamProgress
from tf_ext.recovery.points import SharePositions
from tf_ext.training.parameter_servers.step_numbers import Begun

Spec: typing.TypeAlias = typing.Any
"""Nested structure of `tf.TypeSpec`, of a batch."""
Batch: typing.TypeAlias = typing.Any
"""Nested structure of tensors, the argument of a model's step."""
Sent: typing.TypeAlias = typing.Any
"""What a feed yields for one step or more: only the feed knows its kind."""
Logs: typing.TypeAlias = dict[str, typing.Any]
"""What a step returns, by the name of the metric or loss."""
Lost: typing.TypeAlias = Callable[[int], Exception]
"""The error of steps that were lost with a worker, from its index."""
Arguments: typing.TypeAlias = dict[str, typing.Any]
"""All arguments of `fit`, `evaluate` or `predict` of Keras."""


def flat(logs: Logs) -> Logs:
    """Logs with the results of metrics that return dicts, as Keras has them."""
    found = {}
    for name, value in logs.items():
        found.update(flat(value) if isinstance(value, dict) else {name: value})
    return found


class EpochFeed(abc.ABC):
    """What a TrainingLoop reads, one epoch after the other.

    Attributes:
      element_spec: nested structure of `tf.TypeSpec`, a batch.
      num_batches: int, the steps of an epoch; None if that is not known
        beforehand.
      streams: of each stream whose batches are those of the steps, the
        StreamProgress.
      shares: where workers are in the data that each of them reads, if the
        position within an epoch is not the number of its steps; or None.
    """

    element_spec: Spec
    num_batches: int | None
    streams: Sequence[StreamProgress] = ()
    shares: SharePositions | None = None

    def trained(self, steps: int) -> None:
        """Told that a number of further steps have been made."""
        for stream in self.streams:
            stream.advance(steps)

    def tell_epoch(self, number: int) -> None:
        """Told the number of the epoch that comes next, from 0."""
        del number

    @abc.abstractmethod
    def epoch(self, first_step: int = 0) -> Iterator[Sent]:
        """Yields what is sent for one step or more of the next epoch.

        Args:
          first_step: int, steps of this epoch that were made before.
        """

    @abc.abstractmethod
    def steps_in(self, sent: Sent) -> int | tf.Tensor:
        """The steps that what `epoch` yields is for.

        Returns:
          int; in a graph, an int64 scalar if they may be several.
        """

    @abc.abstractmethod
    def go_on(
        self, epoch: int, first_step: int, initial_epoch: int = 0
    ) -> tuple[int, int]:
        """Skips what was read before a restart.

        Args:
          epoch: int, the current epoch.
          first_step: int, the completed steps of it.
          initial_epoch: int, the epoch that began the data, at most `epoch`.

        Returns:
          `(epoch, first_step)`; of the next epoch if no data is left in this.
        """


class StepFeed(EpochFeed):
    """What the steps on asynchronous workers read; any of them, by default.

    Attributes:
      signature: list of `tf.TensorSpec`, what `epoch` yields; None for an
        iterator.
      steps_per_execution: int, the most steps that one function runs.
      number: function from a number of steps to their Begun; None for steps
        that change nothing twice if they run again.
      lost: the error if a worker is lost; None: others run its steps.
    """

    signature: Sequence[tf.TensorSpec] | None
    steps_per_execution: int
    number: Callable[[int], Begun] | None = None
    lost: Lost | None = None

    def __init__(self) -> None:
        # What is scheduled and has no result yet, in order.
        self._begun: collections.deque[Begun] = collections.deque()

    @abc.abstractmethod
    def unpack(self, sent: Sent, index: tf.Tensor | None = None) -> Batch:
        """A batch of what `epoch` yields; called in the step.

        Args:
          sent: what `epoch` yielded.
          index: int64 scalar, which batch, if `steps_per_execution` > 1.
        """

    def traced(
        self, run: Callable[..., list[tf.Tensor]]
    ) -> Callable[..., list[tf.Tensor]]:
        """The function that workers run, from a step of what is sent.

        Args:
          run: function of what is sent and, with `number`, `Begun.tensor`.
        """
        return run

    def starter(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        function_for: Callable[[int], typing.Any],
    ) -> Callable[[Sent], typing.Any]:
        """The function that schedules what `epoch` yields.

        Args:
          coordinator: tf.distribute.coordinator.ClusterCoordinator.
          function_for: from a number of steps to the tf.function for them.

        Returns:
          Function of what `epoch` yields to the RemoteValue of its results.
        """

        def start(sent: Sent) -> typing.Any:
            steps = self.steps_in(sent)
            numbers = []
            if self.number is not None:
                begun = self.number(steps)
                self._begun.append(begun)
                numbers.append(begun.tensor())
            return schedule(
                coordinator, function_for(steps), (sent, *numbers), self.lost
            )

        return start

    def made(
        self, steps: int, results: list[tf.Tensor] | None
    ) -> tuple[int, list[tf.Tensor] | None]:
        """The steps that were made, of those wanted, and their results.

        It is called for all that was started, in the same order.
        """
        if self._begun:
            self._begun.popleft().end()
        return steps, results

    def close(self) -> None:
        """Told that nothing is started any more."""
        while self._begun:
            self._begun.popleft().end()

    def sent_again(self) -> Sequence[Sent]:
        """What is sent once more, where no step was made."""
        return ()

    def has_lost_steps(self) -> bool:
        """Whether a step was lost with its worker, and does not run yet again.

        Servers may have a part of its updates, so no point is written.
        """
        return False

    def ended(self) -> Collection[int]:
        """The indices of workers that have no data left."""
        return ()

    def explaining_errors(self) -> contextlib.AbstractContextManager[None]:
        """A context that explains the errors of steps."""
        return contextlib.nullcontext()
