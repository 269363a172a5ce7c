# SPDX-License-Identifier: Apache-2.0
"""What loops and steps call of the data that they read."""

import contextlib
import typing
from collections.abc import Callable, Collection, Iterator, Sequence

import tensorflow as tf

Spec: typing.TypeAlias = typing.Any
"""Nested structure of `tf.TypeSpec`, of a batch."""
Batch: typing.TypeAlias = typing.Any
"""Nested structure of tensors, the argument of a model's step."""
Sent: typing.TypeAlias = typing.Any
"""What a feed yields for one step or more: only the feed knows its kind."""
Logs: typing.TypeAlias = dict[str, typing.Any]
"""What a step returns, by the name of the metric or loss."""
Arguments: typing.TypeAlias = dict[str, typing.Any]
"""All arguments of `fit`, `evaluate` or `predict` of Keras."""


class EpochFeed(typing.Protocol):
    """What a TrainingLoop reads, one epoch after the other."""

    @property
    def element_spec(self) -> Spec:
        """Nested structure of `tf.TypeSpec`, a batch."""

    @property
    def num_batches(self) -> int | None:
        """The steps of an epoch; None if that is not known beforehand."""

    def tell_epoch(self, number: int) -> None:
        """Told the number of the epoch that comes next, from 0."""

    def epoch(self, first_step: int = 0) -> Iterator[Sent]:
        """Yields what is sent for one step or more of the next epoch.

        Args:
          first_step: int, steps of this epoch that were made before.
        """

    def steps_in(self, sent: Sent) -> int | tf.Tensor:
        """The steps that what `epoch` yields is for; a tensor in a graph."""

    def go_on(self, epoch: int, first_step: int) -> tuple[int, int]:
        """Skips what was read before a restart.

        Args:
          epoch: int, the current epoch.
          first_step: int, the completed steps of it.

        Returns:
          `(epoch, first_step)`; of the next epoch if no data is left in this.
        """


class StepFeed(EpochFeed, typing.Protocol):
    """What the steps on asynchronous workers read."""

    @property
    def signature(self) -> Sequence[tf.TensorSpec] | None:
        """What `epoch` yields; None for an iterator."""

    @property
    def steps_per_execution(self) -> int:
        """The most steps that one function runs."""

    def unpack(self, sent: Sent, index: tf.Tensor | None = None) -> Batch:
        """A batch of what `epoch` yields; called in the step."""

    def traced(
        self, run: Callable[[Sent], list[tf.Tensor]]
    ) -> Callable[[Sent], list[tf.Tensor]]:
        """The function that workers run, from a step of what is sent."""

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

    def made(
        self, steps: int, results: list[tf.Tensor] | None
    ) -> tuple[int, list[tf.Tensor] | None]:
        """The steps that were made, of those wanted, and their results."""

    def sent_again(self) -> Sequence[Sent]:
        """What is sent once more, where no step was made."""

    def ended(self) -> Collection[int]:
        """The indices of workers that have no data left."""

    def explaining_errors(self) -> contextlib.AbstractContextManager[None]:
        """A context that explains the errors of steps."""
