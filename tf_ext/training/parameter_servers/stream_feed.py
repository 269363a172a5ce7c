# SPDX-License-Identifier: Apache-2.0
"""Streams that asynchronous workers read, each some of the partitions.

This process lists the partitions, and keeps their positions. It divides them
into as many shares as there are workers; the share of a worker that is lost is
read by others until the worker is back.
"""

import contextlib
import functools
import threading
import time
import typing
import uuid
from collections.abc import Callable, Collection, Iterator

import tensorflow as tf

from tf_ext._compat import clusters
from tf_ext._compat.datasets import takes_some
from tf_ext.data import worker_streams
from tf_ext.data.progress import check_one_to_one
from tf_ext.data.source_waiting import when_available
from tf_ext.data.stream_reader import REFRESH_SECONDS
from tf_ext.data.streaming import begin
from tf_ext.data.worker_streams import Made
from tf_ext.distribute.cluster import cluster_of
from tf_ext.training.feeds import Batch, Sent, Spec, StepFeed
from tf_ext.training.fit_arguments import check_same_spec, make_dataset
from tf_ext.training.parameter_servers.step_numbers import SPEC
from tf_ext.training.parameter_servers.stream_share import (
    NAME,
    StreamShare,
    Trained,
    asking,
)

# How long a worker waits for its next batch before it is asked again.
_WAIT_SECONDS = 0.2


class StreamFeed(StepFeed):
    """Batches of a stream, of which each worker reads some partitions.

    Args:
      coordinator: tf.distribute.coordinator.ClusterCoordinator.
      dataset_fn: function from `tf.distribute.InputContext` to a dataset that
        `tf_ext.data.stream(shard=context)` is the source of.
      steps: int, the steps of an epoch, of all workers; None: an epoch ends
        with what all workers read.
      class_weight: dict from class (int) to weight, or None.
    """

    signature = None  # An iterator and the name of a reading.
    steps_per_execution = 1

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        steps: int | None,
        class_weight: dict[int, float] | None = None,
    ) -> None:
        super().__init__()
        self.num_batches = steps
        self._dataset_fn, self._class_weight = dataset_fn, class_weight
        workers = len(cluster_of(coordinator.strategy)["worker"])
        self.element_spec: Spec = None
        streams: list[Made] = []
        ask = asking()
        key = uuid.uuid4().hex
        self._shares = [
            StreamShare(
                index,
                f"{key}/{index}",
                *self._traced(index, workers, streams),
                ask,
            )
            for index in range(workers)
        ]
        self._made = streams[0]
        self._stream, self._errors = self._made.stream, self._made.errors
        self.streams = [self._made.progress]
        # Of each partition, the number of the last batch whose position of it
        # is noted, in its share.
        self._newest: dict[str, int] = {}
        self._iteration: object = None
        self._epoch = -1
        self._refreshing = threading.Lock()
        self._refresh = 0.0

    def _traced(
        self, worker: int, workers: int, streams: list[Made]
    ) -> tuple[bytes, Callable[[tf.Tensor], tf.data.Dataset]]:
        """A worker's stream, and its dataset as a function that runs on it.

        Args:
          worker: int, which one.
          workers: int, how many there are.
          streams: of the workers before; the stream is appended.
        """

        def make(name: tf.Tensor) -> tf.data.Dataset:
            context = worker_streams.WorkerContext(workers, worker, name)
            dataset = make_dataset(
                self._dataset_fn,
                class_weight=self._class_weight,
                context=context,
            )
            check_one_to_one(dataset)
            found = len(context.streams)
            if found != 1 or takes_some(dataset):
                raise ValueError(
                    "Argument `x` of fit, a function of the stream that "
                    "workers read, must return a dataset of one "
                    "tf_ext.data.stream, without `take`. Received: a dataset "
                    f"of {found} streams{', and take' * takes_some(dataset)}"
                )
            if not streams:
                self.element_spec = dataset.element_spec
            check_same_spec(self.element_spec, dataset.element_spec, worker)
            streams.append(context.streams[0])
            return dataset

        make = tf.autograph.experimental.do_not_convert(make)
        traced = tf.function(make).get_concrete_function(NAME)
        return streams[worker].text, traced

    def traced(
        self, run: Callable[..., list[tf.Tensor]]
    ) -> Callable[..., list[tf.Tensor]]:
        """The function of an iterator that trains on a batch of a reading.

        Its second result tells of the next batch.
        """

        def read_and_run(
            iterator: typing.Any, name: tf.Tensor, *numbers: tf.Tensor
        ) -> list[tf.Tensor]:
            first, *others = run(iterator, *numbers)
            with tf.control_dependencies([first]):
                following = worker_streams.tell(name, 1, 0.0)
            return [first, following, *others]

        return read_and_run

    def unpack(self, sent: Sent, index: tf.Tensor | None = None) -> Batch:
        """The next batch of an iterator, in the step."""
        del index
        return next(sent)

    def steps_in(self, sent: Sent) -> int | tf.Tensor:
        """One: an execution has one step."""
        del sent
        return 1

    def epoch(self, first_step: int = 0) -> Iterator[int]:
        """Yields the number of the epoch for each step, until all data ended.

        Args:
          first_step: int, steps of this epoch that were made before.
        """
        self._epoch += 1
        self._begin()
        steps = self.num_batches
        made = first_step
        while not self._has_ended() and (steps is None or made < steps):
            made += 1
            yield self._epoch

    def _begin(self) -> None:
        """Divides the partitions, and reads on behind the end."""
        if self._iteration is None:
            positions, self._iteration = begin(
                self.streams[0], self._stream.source, self._made.start
            )
            for place, (name, position) in enumerate(positions.items()):
                self._shares[place % len(self._shares)].add(name, position)
            self._refresh = time.monotonic() + REFRESH_SECONDS
        for share in self._shares:
            share.go_on()

    def _has_ended(self) -> bool:
        return not self._stream.follow and all(
            share.has_ended or not share.partitions for share in self._shares
        )

    def has_lost_steps(self) -> bool:
        """Whether a step was lost, and was not made since."""
        return any(share.is_step_lost for share in self._shares)

    def ended(self) -> Collection[int]:
        """All workers, if there are no data left."""
        return range(len(self._shares)) if self._has_ended() else ()

    def go_on(
        self, epoch: int, first_step: int, initial_epoch: int = 0
    ) -> tuple[int, int]:
        """As in the base class; positions are those of the stream."""
        if first_step and not self._stream.follow and not self._has_messages():
            return epoch + 1, 0
        return epoch, first_step

    def _has_messages(self) -> bool:
        """Whether a stream that ends has messages behind its positions."""
        self._begin()
        source, [progress] = self._stream.source, self.streams
        consumer = when_available(source.open, progress.positions, False)
        with contextlib.closing(consumer) as left:
            while (messages := left.poll(1, _WAIT_SECONDS)) is not None:
                if any(message.value is not None for message in messages):
                    return True
        return False

    def starter(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        function_for: Callable[[int], typing.Any],
    ) -> Callable[[int], typing.Any]:
        """See the base class."""
        iterator = tf.data.IteratorSpec(self.element_spec)
        specs = [iterator, NAME]
        if self.number is not None:
            specs.append(SPEC)
        function = clusters.traced_for_workers(
            coordinator, function_for(1), *specs
        )
        for share in self._shares:
            share.number = self.number

        def start(epoch: int) -> typing.Any:
            return clusters.schedule_in_thread(
                coordinator,
                functools.partial(
                    self._run,
                    clusters.cancelled_with_steps(coordinator, function),
                    epoch,
                ),
                self.lost,
            )

        return start

    def _run(
        self, function: Callable[..., typing.Any], epoch: int, worker: int
    ) -> list[typing.Any]:
        """Trains on a batch of a share; returns [] if none is there."""
        if epoch != self._epoch:
            return []
        self._look_for_partitions()
        shares = [
            share
            for share in self._shares
            if share.partitions
            and not share.has_ended
            and (share.index == worker or share.is_lost)
        ]
        # A lost step is made before others, so that no epoch ends without it.
        shares = [one for one in shares if one.is_step_lost] or shares
        # None waits while another one always has a batch.
        shares.sort(key=lambda one: one.trained_at)
        asked = False
        for wait in (0.0, _WAIT_SECONDS):
            for share in shares:
                if not share.lock.acquire(blocking=False):
                    continue
                asked = True
                try:
                    if share.is_ready(worker, wait):
                        return share.run(function)
                finally:
                    share.lock.release()
        if not asked:
            time.sleep(_WAIT_SECONDS)
        return []

    def _look_for_partitions(self) -> None:
        """Gives partitions that have appeared to the smallest shares."""
        if not self._stream.follow or time.monotonic() < self._refresh:
            return
        if not self._refreshing.acquire(blocking=False):
            return
        try:
            source, [progress] = self._stream.source, self.streams
            try:
                new = set(source.partitions()) - set(progress.positions)
                first = {n: source.position(n, "earliest") for n in new}
            except Exception as error:
                tf.get_logger().warning(
                    "Partitions could not be listed: %s", error
                )
                return
            progress.found(first)
            for name in sorted(first):
                share = min(self._shares, key=lambda one: one.partitions)
                share.add(name, first[name])
        finally:
            self._refresh = time.monotonic() + REFRESH_SECONDS
            self._refreshing.release()

    def made(
        self, steps: int, results: list[typing.Any] | None
    ) -> tuple[int, list[tf.Tensor] | None]:
        """See the base class."""
        if not results:
            return 0, None
        *results, text = results
        number, told = Trained.of(text.numpy())
        # Where two workers read a share in turn, the results of an earlier
        # batch may come later. Positions never go back.
        positions = {
            partition: position
            for partition, position in told.note.positions.items()
            if number > self._newest.get(partition, 0)
        }
        self._newest |= dict.fromkeys(positions, number)
        note = told.note._replace(positions=positions)
        self.streams[0].note(self._iteration, note)
        for partition, records, malformed in told.malformed:
            self._errors.add(partition, records, malformed, "before position")
        return steps, results

    def sent_again(self) -> list[int]:
        """What is sent for a step that found no batch."""
        return [] if self._has_ended() else [self._epoch]

    def close(self) -> None:
        """See the base class."""
        super().close()
        self._epoch += 1
        for share in self._shares:
            share.close()
