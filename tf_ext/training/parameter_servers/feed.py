# SPDX-License-Identifier: Apache-2.0
"""The data that steps on asynchronous workers read.

A dataset is read by the coordinator and each batch is an argument of the step
that a worker runs; a function that makes a dataset runs on each worker.
"""

import contextlib
import itertools
import typing
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tf_ext.data.epochs import tell_epoch
from tf_ext.data.progress import streams_of
from tf_ext.training.feeds import Batch, Sent, StepFeed
from tf_ext.training.fit_arguments import make_dataset
from tf_ext.training.parameter_servers.batch_packing import Joining, Packing
from tf_ext.training.positions import batches_of, place_of


class Feed(StepFeed):
    """Batches for the steps of one call of `fit`, `evaluate` or `predict`.

    Args:
      dataset: tf.data.Dataset of batches.
      steps: int, the steps of an epoch; None to read the dataset to its end.
      steps_per_execution: int, the most batches that are sent together.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        steps: int | None = None,
        steps_per_execution: int = 1,
    ) -> None:
        super().__init__()
        self.element_spec = dataset.element_spec
        self.streams = streams_of(dataset)
        self.steps_per_execution = steps_per_execution
        self._packing = Packing(self.element_spec)
        self._joining = Joining(self._packing)
        self.signature = (
            self._packing if steps_per_execution == 1 else self._joining
        ).signature
        self._dataset = dataset.map(
            lambda *batch: self._packing.pack(
                batch if len(batch) > 1 else batch[0]
            )
        ).prefetch(tf.data.AUTOTUNE)
        self._steps = steps
        self._iterator: typing.Any = None
        # Data of an epoch that began in another process.
        self._rest: tf.data.Dataset | None = None
        cardinality = int(dataset.cardinality())
        self.num_batches = steps
        if steps is None and cardinality >= 0:
            self.num_batches = cardinality

    def unpack(
        self, sent: Sequence[tf.Tensor], index: tf.Tensor | None = None
    ) -> Batch:
        if self.steps_per_execution > 1:
            sent = self._joining.take(sent, index)
        return self._packing.unpack(sent)

    def steps_in(self, sent: Sequence[tf.Tensor]) -> int | tf.Tensor:
        if self.steps_per_execution == 1:
            return 1
        if tf.executing_eagerly():
            return len(sent[-1])
        return tf.shape(sent[-1], tf.int64)[0]

    def tell_epoch(self, number: int) -> None:
        # With `steps`, epochs are parts of one iteration.
        if self._steps is None:
            tell_epoch(self._dataset, number)

    def epoch(self, first_step: int = 0) -> Iterator[Sent]:
        """Yields the packed batches of the next epoch, joined if several.

        With `steps` an epoch continues where the last one ended, if data are
        left, as in Keras; without, it starts at the beginning.

        Args:
          first_step: int, steps of this epoch that were made before.
        """
        batches = self._batches(first_step)
        if self.steps_per_execution == 1:
            yield from batches
            return
        while group := [*itertools.islice(batches, self.steps_per_execution)]:
            yield self._joining.join(group)

    def _batches(self, first_step: int) -> Iterator[Sent]:
        if self._steps is None:
            left = self.num_batches and self.num_batches - first_step
            dataset, self._rest = self._rest or self._dataset, None
            yield from itertools.islice(dataset, left)
            return
        for made in range(first_step, self._steps):
            batch = self._next()
            if batch is None and made == first_step and not self.streams:
                batch = self._next()  # The epoch before has read all.
            if batch is None:
                _warn_of_end(made, self._steps)
                return
            yield batch

    def _next(self) -> Sent | None:
        """The next batch; None, and then the first one, where they end."""
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        batch = next(self._iterator, None)
        if batch is None:
            self._iterator = None
        return batch

    def go_on(
        self, epoch: int, first_step: int, initial_epoch: int = 0
    ) -> tuple[int, int]:
        if self._steps is not None:
            most = (epoch - initial_epoch + 1) * self._steps
            epoch, first_step, read = place_of(
                epoch,
                first_step,
                self._steps,
                None if self.streams else batches_of(self._dataset, most),
                initial_epoch,
            )
            self._iterator = iter(self._from(read))
            return epoch, first_step
        rest = self._from(first_step)
        if first_step and next(iter(rest.take(1)), None) is None:
            return epoch + 1, 0
        self._rest = rest
        return epoch, first_step

    def _from(self, batch: int) -> tf.data.Dataset:
        """The rest of the dataset; a stream begins where it was."""
        return self._dataset if self.streams else self._dataset.skip(batch)


class WorkerFeed(StepFeed):
    """Batches that each worker reads itself, from a function's dataset.

    Args:
      coordinator: tf.distribute.coordinator.ClusterCoordinator.
      dataset_fn: function from `tf.distribute.InputContext` to a
        tf.data.Dataset of batches that does not end.
      steps: int, the steps of an epoch, of all workers.
      class_weight: dict from class (int) to weight, or None.
      steps_per_execution: int, the most steps that one function runs.
    """

    # An iterator is what is sent, and the number of steps if it may be several.
    signature = None
    num_batches: int

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        steps: int,
        class_weight: dict[int, float] | None = None,
        steps_per_execution: int = 1,
    ) -> None:
        super().__init__()

        # AutoGraph would change the class of an error.
        @tf.autograph.experimental.do_not_convert
        def make() -> tf.data.Dataset:
            return make_dataset(dataset_fn, class_weight=class_weight)

        dataset = coordinator.create_per_worker_dataset(make)
        self.element_spec = dataset.element_spec
        self.num_batches = steps
        self.steps_per_execution = steps_per_execution
        self._iterator = iter(dataset)

    def unpack(self, sent: Sent, index: tf.Tensor | None = None) -> Batch:
        """A batch, on the worker; the next one, whatever `index`."""
        del index
        return next(sent if self.steps_per_execution == 1 else sent[0])

    def steps_in(self, sent: Sent) -> int | tf.Tensor:
        if self.steps_per_execution == 1:
            return 1
        return int(sent[1]) if tf.executing_eagerly() else sent[1]

    @contextlib.contextmanager
    def explaining_errors(self) -> Iterator[None]:
        """Explains the errors of steps that found no data."""
        try:
            yield
        except tf.errors.OutOfRangeError as error:
            raise ValueError(
                "The dataset of the function `x` must not end where "
                "`steps_per_epoch` is given, as each worker reads its own, but "
                "it ended on a worker. Use `dataset.repeat()` in the function, "
                "or leave out `steps_per_epoch`: an epoch then ends with the "
                "datasets of all workers."
            ) from error

    def go_on(
        self, epoch: int, first_step: int, initial_epoch: int = 0
    ) -> tuple[int, int]:
        """Each worker's data start again; returns both arguments."""
        return epoch, first_step

    def epoch(self, first_step: int = 0) -> Iterator[Sent]:
        """Yields the workers' iterator for each execution of an epoch."""
        left = self.num_batches - first_step
        if self.steps_per_execution == 1:
            yield from itertools.repeat(self._iterator, left)
            return
        executions, rest = divmod(left, self.steps_per_execution)
        full = tf.constant(self.steps_per_execution, tf.int64)
        yield from itertools.repeat((self._iterator, full), executions)
        if rest:
            yield self._iterator, tf.constant(rest, tf.int64)


def _warn_of_end(made: int, steps: int) -> None:
    tf.get_logger().warning(
        "The dataset ended after %d of %d steps of this epoch. It must have at "
        "least steps_per_epoch * epochs batches: use `dataset.repeat()`.",
        made,
        steps,
    )
