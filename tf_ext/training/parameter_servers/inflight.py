# SPDX-License-Identifier: Apache-2.0
"""Steps in flight on workers, and their results in order."""

import collections
import contextlib
import dataclasses
import queue
import threading
import time
import typing
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator

import tensorflow as tf

from tf_ext._compat.clusters import (
    fetch,
    own_executor,
    separate_workers,
)
from tf_ext.distribute import training_counts
from tf_ext.distribute.addresses import task_addresses
from tf_ext.distribute.cluster import cluster_of
from tf_ext.distribute.errors import ServerLostError
from tf_ext.distribute.liveness import Watch
from tf_ext.recovery.pause import Pause

# The longest time without progress while no worker, or a server, answers.
_GIVE_UP_SECONDS = 600.0
_POLL_SECONDS = 1.0
# The longest time until the coordinator knows why a step has no result.
_CAUSE_SECONDS = 1.0
# Limit of results that wait for an earlier step's, and the least bytes of each.
_UNREAD_BYTES = 64 << 20
_RESULT_BYTES = 1 << 10

_END = object()


@dataclasses.dataclass(eq=False)
class _Step:
    """A step of a `_Run`, until its result is yielded.

    Attributes:
      batch: the function's argument, while it may be needed again.
    """

    run: "_Run"
    batch: typing.Any
    result: typing.Any = None


class InFlight:
    """Schedules steps, a limited number at a time, and yields results.

    Workers finish steps in any order; results are yielded in the order of the
    batches. Workers that stop answering count as lost, so that the
    ClusterCoordinator reschedules their steps.

    Args:
      coordinator: tf.distribute.coordinator.ClusterCoordinator.

    Attributes:
      under_way: int, steps that are scheduled and have not ended.
    """

    def __init__(
        self, coordinator: tf.distribute.coordinator.ClusterCoordinator
    ) -> None:
        separate_workers(coordinator)
        cluster = cluster_of(coordinator.strategy)
        self._coordinator = coordinator
        self._workers = task_addresses(cluster, ["worker"])
        self._servers = task_addresses(cluster, ["ps"])
        self._watch = Watch(self._workers, self._servers)
        self._scheduled: queue.SimpleQueue[typing.Any] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[typing.Any] = queue.SimpleQueue()
        self.under_way = 0
        self._waiters: list[threading.Thread] = []
        weakref.finalize(self, _end_waiters, self._waiters, self._scheduled)
        self._moved = 0.0
        self._idle: Callable[[], Collection[int]] = tuple
        self._has_given_up = False
        training_counts.add_schedule(self)

    def answer_seconds(self) -> dict[str, float]:
        """How long tasks take to answer, by name, for metrics."""
        return self._watch.answer_seconds()

    def run(
        self,
        start: Callable[[typing.Any], typing.Any],
        batches: Iterable[typing.Any],
        limit: int,
        repeatable: bool = False,
        idle: Callable[[], Collection[int]] = tuple,
        pause: Pause | None = None,
        has_lost_steps: Callable[[], bool] = bool,
    ) -> Iterator[list[tf.Tensor] | None]:
        """Yields the results of the step of each batch, in order.

        Args:
          start: function that schedules the step of a batch, and returns the
            RemoteValue of a list of tensors.
          batches: iterable of the function's argument.
          limit: int, steps that may be scheduled and not finished.
          repeatable: whether a step whose result was lost with its worker may
            be run again. If not, None stands for its result.
          idle: function to the indices of workers that take no more steps.
          pause: Pause, which can have further steps wait for those under way.
          has_lost_steps: function that tells whether further steps are needed
            before there can be a pause.

        Raises:
          Exception: the first that a step raised. No step is then in flight.
          ServerLostError: a parameter server has been silent for too long.
          TimeoutError: all workers that are not idle have been silent for too
            long.
        """
        self._moved = time.monotonic()
        self._has_given_up = False
        run = _Run(
            *(self, start, limit, repeatable, idle),
            *(pause or Pause(), has_lost_steps),
        )
        return run.results(iter(batches))

    def schedule(self, step: _Step) -> None:
        """Schedules a step on a worker."""
        remote = step.run.start(step.batch)
        self._idle = step.run.idle
        if self.under_way >= len(self._waiters):
            waiter = threading.Thread(
                target=_wait,
                args=(self._scheduled, self._outcomes),
                name="tf_ext_step",
                daemon=True,
            )
            self._waiters.append(waiter)
            waiter.start()
        self.under_way += 1
        self._scheduled.put((step, remote))

    def settle(self) -> None:
        """Collects the steps of any run that have ended; waits if none has."""
        try:
            outcome = self._outcomes.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            if time.monotonic() - self._moved > _GIVE_UP_SECONDS:
                self._give_up()
            return
        with contextlib.suppress(queue.Empty):
            while True:
                self._settle(*outcome)
                del outcome
                outcome = self._outcomes.get_nowait()

    def _settle(
        self,
        step: _Step,
        result: list[tf.Tensor] | None,
        error: Exception | None,
    ) -> None:
        self._moved = time.monotonic()
        self.under_way -= 1
        if error is not None:
            self._raise_cause()
            # It ran, but its worker was lost before the result came.
            if step.run.repeatable:
                self.schedule(step)
                return
        step.run.finish(step, result)

    def _raise_cause(self) -> None:
        """Raises the cause of a failure: a step's error may be an effect."""
        deadline = time.monotonic() + _CAUSE_SECONDS
        # The coordinator notices the error a little later. Its `join` would
        # wait for all steps, also where there is no worker left to run them.
        while not self._coordinator.done() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _give_up(self) -> None:
        lost = self._watch.lost()
        for server, address in self._servers.items():
            if server in lost:
                self._has_given_up = True
                raise ServerLostError({server: address})
        idle = {f"/job:worker/task:{index}" for index in self._idle()}
        if lost.keys() >= self._workers.keys() - idle:
            self._has_given_up = True
            found = "; ".join(f"{task} at {why}" for task, why in lost.items())
            others = " that has data left" if idle else ""
            raise TimeoutError(
                f"No step has ended for {_GIVE_UP_SECONDS:g} s, because "
                f"no worker{others} answers: {found}. Resume or restart them, "
                "and run this program again: it resumes from its last "
                "checkpoint."
            )

    def end(self, run: "_Run") -> None:
        """Waits for the steps of a run whose results are not needed."""
        while run.waiting and not self._has_given_up:
            try:
                self.settle()
                # This cancels the steps that wait for a worker after a failure.
                if self._coordinator.done():
                    return
            except Exception as error:  # The first is raised.
                tf.get_logger().debug("A cancelled step: %s", error)


class _Run:
    """The steps of one call of `InFlight.run`.

    Args:
      inflight: InFlight.
      start: as of `InFlight.run`.
      limit: int, steps that may be scheduled and not finished.
      repeatable: bool.
      idle: as of `InFlight.run`.
      pause: Pause.
      has_lost_steps: as of `InFlight.run`.

    Attributes:
      start: as of `InFlight.run`.
      repeatable: bool, whether a step whose result was lost is run again.
      idle: as of `InFlight.run`.
      waiting: int, steps that are scheduled and not finished.
    """

    def __init__(
        self,
        inflight: InFlight,
        start: Callable[[typing.Any], typing.Any],
        limit: int,
        repeatable: bool,
        idle: Callable[[], Collection[int]],
        pause: Pause,
        has_lost_steps: Callable[[], bool],
    ) -> None:
        self.start = start
        self.idle = idle
        self.repeatable = repeatable
        self.waiting = 0
        self._inflight = inflight
        self._limit = limit
        self._pause = pause
        self._has_lost_steps = has_lost_steps
        self._steps: collections.deque[_Step] = collections.deque()
        self._unread_bytes = 0

    def results(
        self, batches: Iterator[typing.Any]
    ) -> Iterator[list[tf.Tensor] | None]:
        """Yields the results of all batches, in order."""
        try:
            while True:
                while self._steps and self._steps[0].batch is _END:
                    step = self._steps.popleft()
                    self._unread_bytes -= _bytes_of(step.result)
                    self._tell_under_way()
                    yield step.result
                self._fill(batches)
                if not self._steps:
                    return
                self._inflight.settle()
        finally:
            self.repeatable = False
            self._inflight.end(self)

    def finish(self, step: _Step, result: list[tf.Tensor] | None) -> None:
        """Stores the result of a step."""
        self.waiting -= 1
        step.batch, step.result = _END, result
        self._unread_bytes += _bytes_of(result)

    def _tell_under_way(self) -> bool:
        """Tells callbacks of what is under way; returns whether a step is lost.

        Further steps may have ended before a lost one runs again.
        """
        is_lost = self._has_lost_steps()
        self._pause.under_way = len(self._steps) + is_lost
        return is_lost

    def _fill(self, batches: Iterator[typing.Any]) -> None:
        is_lost = self._tell_under_way()
        if not is_lost and self._pause.holds():
            return
        while self.waiting < self._limit and self._unread_bytes < _UNREAD_BYTES:
            batch = next(batches, _END)
            if batch is _END:
                return
            step = _Step(self, batch)
            self._inflight.schedule(step)
            self.waiting += 1
            self._steps.append(step)


def _wait(
    scheduled: "queue.SimpleQueue[typing.Any]",
    outcomes: "queue.SimpleQueue[typing.Any]",
) -> None:
    """Waits for steps, one after another, until it gets None.

    Workers go on with their next steps while it fetches the results. It holds
    no reference to the coordinator, which could not be freed otherwise.
    """
    with own_executor():
        while (item := scheduled.get()) is not None:
            step, remote = item
            try:
                outcome: typing.Any = step, fetch(remote), None
            except Exception as error:  # Raised in the waiting thread.
                outcome = step, None, error
            outcomes.put(outcome)
            del item, step, remote, outcome


def _end_waiters(
    waiters: list[threading.Thread], scheduled: "queue.SimpleQueue[typing.Any]"
) -> None:
    for _ in waiters:
        scheduled.put(None)


def _bytes_of(result: list[tf.Tensor] | None) -> int:
    if result is None:
        return _RESULT_BYTES
    return _RESULT_BYTES + sum(
        tensor.shape.num_elements() * tensor.dtype.size for tensor in result
    )
