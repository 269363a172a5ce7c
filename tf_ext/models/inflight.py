"""Steps that are under way on workers, and their results in order."""

import collections
import contextlib
import dataclasses
import queue
import threading
import time
import typing
import weakref

import tensorflow as tf

from tf_ext.distribute.addresses import task_addresses
from tf_ext.distribute.cluster import cluster_of
from tf_ext.distribute.errors import ServerLostError
from tf_ext.distribute.liveness import Watch

# How long nothing may move while no worker answers, or a server does not.
_GIVE_UP_SECONDS = 600.0
_POLL_SECONDS = 1.0
# How long the coordinator may take to know why a step has no result.
_CAUSE_SECONDS = 1.0
# Results that wait for that of an earlier step, and what each takes at least.
_UNREAD_BYTES = 64 << 20
_RESULT_BYTES = 1 << 10

_END = object()


@dataclasses.dataclass(eq=False)
class _Step:
    """A step of a `_Run`, until its result is handed out.

    Attributes:
      batch: the function's argument, while it may be needed again.
    """

    run: "_Run"
    batch: typing.Any
    result: typing.Any = None


class InFlight:
    """Schedules steps, a limited number at a time, and hands out results.

    Workers finish steps in any order; results are handed out in the order of
    the batches. Workers that fall silent are taken as lost, so that the
    ClusterCoordinator gives their steps to others.

    Args:
      coordinator: tf.distribute.coordinator.ClusterCoordinator.
    """

    def __init__(self, coordinator):
        cluster = cluster_of(coordinator.strategy)
        self._coordinator = coordinator
        self._workers = task_addresses(cluster, ["worker"])
        self._servers = task_addresses(cluster, ["ps"])
        self._watch = Watch(self._workers, self._servers)
        self._scheduled = queue.SimpleQueue()
        self._outcomes = queue.SimpleQueue()
        self._under_way = 0
        self._waiters = []
        weakref.finalize(self, _end_waiters, self._waiters, self._scheduled)
        self._moved = 0.0
        self._has_given_up = False

    def run(self, function, batches, limit, repeatable=False):
        """Yields the results of a function of each batch, in order.

        Args:
          function: tf.function that returns a list of tensors.
          batches: iterable of the function's argument.
          limit: int, steps that may be scheduled and not finished.
          repeatable: whether a step whose result was lost with its worker may
            be run again. If not, None stands for its result.

        Raises:
          Exception: the first that a step raised. No step is under way then.
          ServerLostError: a parameter server has been silent for too long.
          TimeoutError: all workers have been silent for too long.
        """
        self._moved = time.monotonic()
        self._has_given_up = False
        return _Run(self, function, limit, repeatable).results(iter(batches))

    def schedule(self, step):
        """Has a worker run a step."""
        remote = self._coordinator.schedule(
            step.run.function, args=(step.batch,)
        )
        self._under_way += 1
        if self._under_way > len(self._waiters):
            waiter = threading.Thread(
                target=_wait,
                args=(self._scheduled, self._outcomes),
                name="tf_ext_step",
                daemon=True,
            )
            self._waiters.append(waiter)
            waiter.start()
        self._scheduled.put((step, remote))

    def settle(self):
        """Takes in what has ended, of any run, and waits if nothing has."""
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

    def _settle(self, step, result, error):
        self._moved = time.monotonic()
        self._under_way -= 1
        if error is not None:
            self._raise_cause()
            # It ran, but its worker was lost before the result came.
            if step.run.repeatable:
                self.schedule(step)
                return
        step.run.finish(step, result)

    def _raise_cause(self):
        """Raises what a step failed with: one's error may be its effect."""
        deadline = time.monotonic() + _CAUSE_SECONDS
        # The coordinator hears of it a little later. Its `join` would wait for
        # all steps, also where there is no worker left to run them.
        while not self._coordinator.done() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _give_up(self):
        lost = self._watch.lost()
        for server, address in self._servers.items():
            if server in lost:
                self._has_given_up = True
                raise ServerLostError(server, address)
        if lost.keys() >= self._workers.keys():
            self._has_given_up = True
            found = "; ".join(f"{task} at {why}" for task, why in lost.items())
            raise TimeoutError(
                f"No step has ended for {_GIVE_UP_SECONDS:g} s, for no worker "
                f"answers: {found}. Continue them or start them again, and "
                "run this program again: it goes on from its last checkpoint."
            )

    def end(self, run):
        """Lets the steps of a run end whose results nobody wants."""
        while run.waiting and not self._has_given_up:
            try:
                self.settle()
                # Which cancels those that wait for a worker once one failed.
                if self._coordinator.done():
                    return
            except Exception as error:  # The first is raised.
                tf.get_logger().debug("A cancelled step: %s", error)


class _Run:
    """The steps of one call of `InFlight.run`.

    Args:
      inflight: InFlight.
      function: tf.function of a batch.
      limit: int, steps that may be scheduled and not finished.
      repeatable: bool.

    Attributes:
      function: tf.function.
      repeatable: bool, whether a step whose result was lost is run again.
      waiting: int, steps that are scheduled and not finished.
    """

    def __init__(self, inflight, function, limit, repeatable):
        self.function = function
        self.repeatable = repeatable
        self.waiting = 0
        self._inflight = inflight
        self._limit = limit
        self._steps = collections.deque()
        self._unread_bytes = 0

    def results(self, batches):
        """Yields the results of all batches, in order."""
        try:
            while True:
                while self._steps and self._steps[0].batch is _END:
                    step = self._steps.popleft()
                    self._unread_bytes -= _bytes_of(step.result)
                    yield step.result
                self._fill(batches)
                if not self._steps:
                    return
                self._inflight.settle()
        finally:
            self.repeatable = False
            self._inflight.end(self)

    def finish(self, step, result):
        """Takes the result of a step."""
        self.waiting -= 1
        step.batch, step.result = _END, result
        self._unread_bytes += _bytes_of(result)

    def _fill(self, batches):
        while self.waiting < self._limit and self._unread_bytes < _UNREAD_BYTES:
            batch = next(batches, _END)
            if batch is _END:
                return
            step = _Step(self, batch)
            self._inflight.schedule(step)
            self.waiting += 1
            self._steps.append(step)


def _wait(scheduled, outcomes):
    """Waits for steps, one after the other, until there is None.

    It knows nothing of the coordinator, which could not be freed otherwise.
    """
    while (item := scheduled.get()) is not None:
        step, remote = item
        try:
            outcome = step, remote.get(), None
        except Exception as error:  # Raised where it is waited for.
            outcome = step, None, error
        outcomes.put(outcome)
        del item, step, remote, outcome


def _end_waiters(waiters, scheduled):
    for _ in waiters:
        scheduled.put(None)


def _bytes_of(result):
    if result is None:
        return _RESULT_BYTES
    return _RESULT_BYTES + sum(
        tensor.shape.num_elements() * tensor.dtype.size for tensor in result
    )
