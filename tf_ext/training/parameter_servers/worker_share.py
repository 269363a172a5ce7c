# SPDX-License-Identifier: Apache-2.0
"""A worker's share of the data of an epoch, which that worker reads.

The coordinator reads no batch of it, but must know in time where it ends. So
each element has the batches of an execution and the size of the next one.
"""

import dataclasses
import typing
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_ext.training.feeds import Batch, Spec
from tf_ext.training.optional_batches import as_optional, from_optional
from tf_ext.training.parameter_servers.step_numbers import Begun, ShareSteps

ITERATOR = tf.data.IteratorSpec(
    (tf.TensorSpec([None], tf.variant), tf.TensorSpec([], tf.int64))
)
"""Of the datasets that `Groups.of` returns."""


class Groups:
    """The batches of an execution as one tensor, and how to get them back.

    Args:
      element_spec: nested structure of `tf.TypeSpec`, a batch.
      size: int, the most batches of a group.
    """

    def __init__(self, element_spec: Spec, size: int) -> None:
        self._spec = element_spec
        self._size = size

    def of(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """The groups of a finite dataset of batches.

        Args:
          dataset: tf.data.Dataset of batches.

        Returns:
          tf.data.Dataset of `(group, following)`: a vector of batches, and
          int64, the size of the next group, 0 after the last. The first group
          is an empty one.
        """
        groups = dataset.map(as_optional).batch(self._size)
        none = tf.reshape(tf.raw_ops.OptionalNone(), [1])[:0]
        end = tf.data.Dataset.from_tensors(none)
        return (
            groups.concatenate(end)
            .scan(
                none, lambda group, new: (new, (group, tf.size(new, tf.int64)))
            )
            .prefetch(tf.data.AUTOTUNE)
        )

    @staticmethod
    def first_size() -> Callable[[typing.Any], tf.Tensor]:
        """The function of an iterator that reads the size of the first group.

        A graph, because TensorFlow reads eagerly in an executor of its own,
        which it cannot free after an error.
        """
        return tf.function(
            lambda iterator: next(iterator)[1],
            input_signature=[ITERATOR],
            autograph=False,
        ).get_concrete_function()

    def take(self, group: tf.Tensor, index: int | tf.Tensor) -> Batch:
        """A batch of a group; to be called in the step."""
        return from_optional(group[index], self._spec)


@dataclasses.dataclass
class Share(ShareSteps):
    """Where a worker is in its data; only the worker's thread uses it.

    Attributes:
      make: function from how many batches are skipped in each iteration, int64,
        to the dataset of groups; it runs on the worker.
      first_size: function that `Groups.first_size` returned.
      number: function from a number of steps to their Begun; or None.
      goes_on: bool, whether the dataset has the same batches when it is made
        again, so that those of steps that counted are skipped.
      epoch: int, the epoch of the attributes below, from 0.
      batches: int, those of the epoch that were trained on.
      left: int, size of the next group; None if it is not known.
    """

    make: Callable[[tf.Tensor], tf.data.Dataset]
    first_size: Callable[[typing.Any], tf.Tensor]
    number: Callable[[int], Begun] | None = None
    goes_on: bool = True
    epoch: int = -1
    batches: int = 0
    left: int | None = None
    _dataset: tf.data.Dataset | None = None
    _skips: bool = False
    _iterator: typing.Any = None

    def begin(self, epoch: int) -> None:
        """Begins an epoch, unless it has begun.

        The dataset is the same one in all epochs, as in Keras. If it was lost
        with the worker, the epochs before are begun again: what counts them,
        the seed of a shuffle for one, is as on other workers. The batches of
        the epoch that were trained on are skipped.
        """
        if self.epoch == epoch and self.left is not None:
            return
        if self.epoch != epoch:
            self._end_step()
            self.epoch, self.batches = epoch, 0
        self.left = None
        if self._dataset is None or self._skips:
            self._skips = self.batches > 0
            self._dataset = self.make(tf.constant(self.batches, tf.int64))
            for _ in range(epoch):
                iter(self._dataset)
        self._iterator = iter(self._dataset)
        self.left = int(self.first_size(self._iterator).numpy())

    def run(
        self, function: Callable[..., Sequence[tf.Tensor]]
    ) -> list[typing.Any]:
        """Trains on the next group.

        Args:
          function: step of the iterator and, with `number`, of `Begun.tensor`;
            its first result ends with the size of the group that follows.

        Returns:
          Its results, and the number of steps.
        """
        steps = typing.cast(int, self.left)
        numbers = self._numbers(steps)
        first, *others = function(self._iterator, *numbers)
        first = first.numpy()
        self._end_step()
        self.batches += steps
        self.left = int(first[-1])
        if not self.left:
            self._iterator = None
        return [first[:-1], *others, steps]

    def forget(self) -> None:
        """Has the data be read again: the worker may have lost them."""
        self._lose_step()
        self.left = self._dataset = self._iterator = None
        if not self.goes_on:
            self._end_step()
            self.batches = 0
