# SPDX-License-Identifier: Apache-2.0
"""Finite data that asynchronous workers read, each its own share.

A ClusterCoordinator gives a step to any worker that is free. So what it
schedules here only says that a step is wanted; the thread of the worker that
takes it knows the position of that worker's data. When these have ended, the
worker takes nothing more in the epoch.
"""

import functools
import random
import threading
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import tensorflow as tf

from tf_ext._compat import clusters
from tf_ext._compat.datasets import is_served
from tf_ext.distribute.cluster import cluster_of
from tf_ext.training.feeds import Batch, Sent, Spec, StepFeed
from tf_ext.training.fit_arguments import check_same_spec, make_dataset
from tf_ext.training.parameter_servers.step_numbers import SPEC
from tf_ext.training.parameter_servers.worker_share import (
    ITERATOR,
    Groups,
    Share,
)


class ShareFeed(StepFeed):
    """Batches that each worker reads from the dataset of a function.

    An epoch ends when the datasets of all workers have.

    Args:
      coordinator: tf.distribute.coordinator.ClusterCoordinator.
      dataset_fn: function from `tf.distribute.InputContext` to a finite
        tf.data.Dataset of batches, called for each worker.
      class_weight: dict from class (int) to weight, or None.
      steps_per_execution: int, the most steps that one function runs.
    """

    signature = None  # An iterator is what functions get.
    num_batches = None  # It is known when an epoch has ended.

    def __init__(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        class_weight: dict[int, float] | None = None,
        steps_per_execution: int = 1,
    ) -> None:
        super().__init__()
        self.shares = self
        self.steps_per_execution = steps_per_execution
        self._dataset_fn, self._class_weight = dataset_fn, class_weight
        # Workers whose data differ when they are read again.
        self._elsewhere: set[int] = set()
        self._restored: dict[str, typing.Any] | None = None
        self._parking = clusters.separate_workers(coordinator)
        self._workers = len(cluster_of(coordinator.strategy)["worker"])
        self.element_spec: Spec = None
        self._set_seed(random.getrandbits(31))
        self._lock = threading.Lock()
        self._epoch = -1
        self._ended: set[int] = set()

    def _set_seed(self, seed: int) -> None:
        """Makes the shares; shuffles without a seed have an order by this."""
        self._seed = seed
        first_size = Groups.first_size()
        self._shares = [
            Share(
                self._traced(worker),
                first_size,
                goes_on=worker not in self._elsewhere,
            )
            for worker in range(self._workers)
        ]

    def _traced(self, worker: int) -> Callable[[tf.Tensor], tf.data.Dataset]:
        """A worker's dataset of groups, as a function that runs on it."""
        context = tf.distribute.InputContext(self._workers, worker, 1)

        def make(skipped: tf.Tensor) -> tf.data.Dataset:
            graph = tf.compat.v1.get_default_graph()
            if graph.seed is None:
                # The order is the same when the data are read again.
                graph.seed = self._seed + worker
            dataset = make_dataset(
                self._dataset_fn,
                class_weight=self._class_weight,
                context=context,
            )
            if is_served(dataset):
                self._elsewhere.add(worker)
            spec = dataset.element_spec
            if worker == 0:
                self.element_spec = spec
                self._groups = Groups(spec, self.steps_per_execution)
            check_same_spec(self.element_spec, spec, worker)
            return self._groups.of(dataset.skip(skipped))

        make = tf.autograph.experimental.do_not_convert(make)
        return tf.function(make, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int64)
        )

    def traced(
        self, run: Callable[..., list[tf.Tensor]]
    ) -> Callable[..., list[tf.Tensor]]:
        """The function of an iterator that runs a step on what it yields."""

        def read_and_run(
            iterator: typing.Any, *numbers: tf.Tensor
        ) -> list[tf.Tensor]:
            group, following = next(iterator)
            first, *others = run(group, *numbers)
            following = tf.cast(following, first.dtype)
            # One tensor takes one message.
            return [tf.concat([first, following[tf.newaxis]], 0), *others]

        return read_and_run

    def unpack(self, group: tf.Tensor, index: tf.Tensor | None = None) -> Batch:
        """A batch of a group, in the step."""
        return self._groups.take(group, 0 if index is None else index)

    def steps_in(self, sent: Sent) -> int | tf.Tensor:
        """The number of steps of a group; the most, of what `epoch` yields."""
        if tf.executing_eagerly():
            return self.steps_per_execution
        return tf.size(sent, tf.int64)

    def epoch(self, first_step: int = 0) -> Iterator[int]:
        """Yields the number of the epoch until all workers' data have ended.

        Args:
          first_step: int, steps of this epoch that were made before.
        """
        del first_step
        with self._lock:
            self._ended.clear()
            self._epoch += 1
            self._parking.release()
        while len(self.ended()) < len(self._shares):
            yield self._epoch

    def has_lost_steps(self) -> bool:
        """Whether a step waits for its worker, which was lost with it."""
        return any(share.is_step_lost for share in self._shares)

    def ended(self) -> Collection[int]:
        """The indices of the workers whose data of this epoch have ended."""
        with self._lock:
            return {*self._ended}

    def state(self) -> dict[str, typing.Any]:
        """Where workers are in their data, while none of them takes a step."""
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "batches": [
                share.batches if share.epoch == self._epoch else 0
                for share in self._shares
            ],
            "ended": sorted(self.ended()),
        }

    def restore(self, state: Mapping[str, typing.Any]) -> None:
        """Has `go_on` begin where another process was, as `state` says."""
        self._restored = dict(state)

    def go_on(
        self, epoch: int, first_step: int, initial_epoch: int = 0
    ) -> tuple[int, int]:
        """As in the base class; data of another number of workers start again.

        So do those that are not the same when they are read again.
        """
        state = self._restored
        known: Sequence[int] = ()
        if state is not None and len(state["batches"]) == self._workers:
            self._set_seed(state["seed"])
            self._epoch = state["epoch"]
            known = () if self._elsewhere else state["batches"]
        if not first_step:
            return epoch, 0
        if state is not None and len(state["ended"]) == len(state["batches"]):
            return epoch + 1, 0
        if self._epoch >= 0:
            self._epoch -= 1
        for share, batches in zip(self._shares, known):
            share.epoch, share.batches = self._epoch + 1, batches
        if not known:
            tf.get_logger().warning(
                "The position in the data that workers read is not known: "
                "their datasets of epoch %d start again.",
                epoch,
            )
        return epoch, first_step

    def starter(
        self,
        coordinator: tf.distribute.coordinator.ClusterCoordinator,
        function_for: Callable[[int], typing.Any],
    ) -> Callable[[int], typing.Any]:
        for share in self._shares:
            share.number = self.number
        sizes = {1, self.steps_per_execution}
        specs = [ITERATOR] if self.number is None else [ITERATOR, SPEC]
        whole, other = (
            clusters.traced_for_workers(coordinator, function_for(size), *specs)
            for size in (max(sizes), min(sizes))
        )

        def start(epoch: int) -> typing.Any:
            functions = [
                clusters.cancelled_with_steps(coordinator, function)
                for function in (whole, other)
            ]
            return clusters.schedule_in_thread(
                coordinator,
                functools.partial(self._run, functions, epoch),
                self.lost,
            )

        return start

    def _run(
        self,
        functions: list[Callable[..., typing.Any]],
        epoch: int,
        worker: int,
    ) -> list[typing.Any]:
        """Trains on a worker's next group; returns [] if there is none."""
        share = self._shares[worker]
        results: list[typing.Any] = []
        if epoch != self._epoch:
            return results
        if worker in self.ended():
            self._end(worker, epoch)
            return results
        try:
            share.begin(epoch)
            if share.left:
                whole, other = functions
                is_whole = share.left == self.steps_per_execution
                results = share.run(whole if is_whole else other)
        except BaseException:
            share.forget()
            raise
        if not share.left:
            self._end(worker, epoch)
        return results

    def _end(self, worker: int, epoch: int) -> None:
        with self._lock:
            if epoch != self._epoch:
                return
            self._ended.add(worker)
            if len(self._ended) == len(self._shares):
                # What is still scheduled finds no data, on any of them.
                self._parking.release()
            else:
                self._parking.park(worker)

    def made(
        self, steps: int, results: list[tf.Tensor] | None
    ) -> tuple[int, list[tf.Tensor] | None]:
        if not results:
            return 0, None
        *results, steps = results
        return int(steps), results

    def sent_again(self) -> list[int]:
        """What is sent for a step that found no data, if others have some."""
        if len(self.ended()) == len(self._shares):
            return []
        return [self._epoch]

    def close(self) -> None:
        """Ends the epoch, if it lasts: all workers take other steps again."""
        super().close()
        with self._lock:
            self._epoch += 1
        self._parking.release()
        for share in self._shares:
            share.close()
