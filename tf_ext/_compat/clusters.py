# SPDX-License-Identifier: Apache-2.0
"""What strategies and the runtime of TensorFlow do not make public."""

import contextlib
import functools
import signal
import socket
import sys
import threading

import tensorflow as tf

from tf_ext import _core
from tf_ext._compat.sockets import use_sockets


def resolver_of(strategy):
    """The `tf.distribute.cluster_resolver` of a strategy, or None.

    The public property of ParameterServerStrategy is None.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    return getattr(strategy, "cluster_resolver", None) or getattr(
        strategy, "_cluster_resolver", None
    )


def coordinator_of(strategy):
    """The ClusterCoordinator of a ParameterServerStrategy, or None.

    Seen in: TensorFlow 2.18 to 2.21, which makes one for each strategy.
    """
    return getattr(strategy, "_cluster_coordinator", None)


def end_coordinator(coordinator):
    """Joins a ClusterCoordinator's threads, which works once.

    Otherwise it joins them when it is freed, wherever that happens, but for the
    one that connects to workers that have come back.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    handler = coordinator._cluster.failure_handler
    coordinator.__del__()
    handler._preemption_handler_thread.join()


def connect_in_turns():
    """Has threads of this process connect to clusters one after the other.

    TensorFlow crashes if a program connects to a cluster while a coordinator
    connects to workers that have come back.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    context = _context()
    if "update_server_def" in vars(context):
        return
    update, lock = context.update_server_def, threading.Lock()

    def update_server_def(*args, **kwargs):
        with lock:
            return update(*args, **kwargs)

    context.update_server_def = update_server_def


def own_executor():
    """Has eager ops of this thread wait for no other thread's, in a block.

    TensorFlow frees tensors of other tasks in the default executor, for which
    every thread waits that has none of its own: until a frozen task is lost.

    Seen in: TensorFlow 2.18 to 2.21.

    Returns:
      A context manager.
    """
    context = sys.modules["tensorflow.python.eager.context"]
    return context.executor_scope(_new_executor())


def separate_workers(coordinator):
    """Gives each thread of a ClusterCoordinator an executor, as above.

    Each of these threads runs the steps of one worker. Without this, all of
    them wait when tensors of a frozen worker are freed.

    If a server is lost while a thread waits for its worker, the error reaches
    those who wait for steps. Without this, the thread ends with an
    AssertionError, because its step is no longer under way, and they wait for
    ever.

    Seen in: TensorFlow 2.18 to 2.21.

    Returns:
      Parking of these threads.
    """
    queue = coordinator._cluster.closure_queue
    if "get" in vars(queue):
        return queue.tf_ext_parking
    take, give_back, fail = queue.get, queue.put_back, queue.mark_failed
    finish = queue.mark_finished
    context = _context()
    default = _default_executor(context)
    have_put_back = set()  # Threads whose last step is no longer under way.
    executors = {}  # Of the thread of each worker.
    parking = queue.tf_ext_parking = Parking()

    def get(*args, **kwargs):
        worker = kwargs["tag"]
        if worker not in executors:
            executors[worker] = _new_executor()

        def is_called():
            return (
                not queue._should_process_closures
                or not queue._tagged_queue[worker].empty()
            )

        parking.wait(worker, is_called)
        have_put_back.discard(threading.get_ident())
        closure = take(*args, **kwargs)
        if closure is not None and closure.tag is None:
            context.executor = executors[worker]
        return closure

    def leave_executor():
        # TensorFlow knows threads by numbers, which others get when these have
        # ended: it would run their ops in an executor that is being freed.
        context.executor = default

    def mark_finished():
        leave_executor()
        finish()

    def put_back(closure):
        lost = vars(closure).get("lost")
        if lost is None:
            give_back(closure)
        else:
            error = lost(closure.worker)
            closure.maybe_call_with_output_remote_value(
                lambda remote: remote._set_error(error)
            )
            fail(error)
        have_put_back.add(threading.get_ident())
        leave_executor()

    def mark_failed(error):
        if threading.get_ident() in have_put_back:
            with queue._queue_lock:
                queue.inflight_closure_count += 1  # `fail` takes it off again.
            have_put_back.discard(threading.get_ident())
        leave_executor()
        fail(error)

    queue.get, queue.put_back = get, put_back
    queue.mark_finished, queue.mark_failed = mark_finished, mark_failed
    return parking


def schedule(coordinator, function, args, lost=None):
    """Schedules a tf.function, whose results wait for `fetch`.

    With the public `schedule`, the thread of a worker fetches them before the
    worker is sent its next step, which takes two round trips.

    Seen in: TensorFlow 2.18 to 2.21.

    Args:
      coordinator: tf.distribute.coordinator.ClusterCoordinator.
      function: tf.function.
      args: tuple of its arguments.
      lost: function from the index of a worker that was lost with the function
        to the error that steps then fail with; None: another one runs it.

    Returns:
      tf.distribute.coordinator.RemoteValue.
    """
    with _scheduling(coordinator.strategy):
        return _put(coordinator, function, args, lost)


def _put(coordinator, function, args, lost):
    queue = coordinator._cluster.closure_queue
    module = sys.modules[type(coordinator).__module__]
    closure = _closure_class(module.Closure)(
        function, queue._cancellation_mgr, args=args
    )
    closure.lost = lost
    remote = closure.build_output_remote_value()
    # The thread of a worker calls it, and waits for its result.
    vars(remote).update(get=lambda: None)
    queue.put(closure)
    return remote


@functools.cache
def _closure_class(base):
    class Closure(base):
        """Knows the index of the worker that runs it."""

        def execute_on(self, worker):
            self.worker = worker.worker_index
            super().execute_on(worker)

    return Closure


@contextlib.contextmanager
def _scheduling(strategy):
    with strategy.scope():
        strategy.extended._being_scheduled = True
        try:
            yield
        finally:
            strategy.extended._being_scheduled = False


def fetch(value):
    """Waits for a RemoteValue, and fetches it if that has not been done.

    Seen in: TensorFlow 2.18 to 2.21.

    Raises:
      Exception: the error of its function; tf.errors.OpError: its worker was
        lost before the value was fetched.
    """
    return type(value).get(value)


class Parking:
    """Workers of a ClusterCoordinator that take no steps for some time.

    Seen in: TensorFlow 2.18 to 2.21, whose coordinator gives steps to any
    worker.
    """

    # How late a parked thread notices what does not release it.
    _POLL_SECONDS = 0.5

    def __init__(self):
        self._changed = threading.Condition()
        self._parked = set()

    def park(self, worker):
        """Has a worker, an index, take no steps until it is released."""
        with self._changed:
            self._parked.add(worker)

    def release(self):
        """Has all workers take steps again."""
        with self._changed:
            self._parked.clear()
            self._changed.notify_all()

    def wait(self, worker, is_called):
        """Waits while a worker is parked and not needed for anything else."""
        with self._changed:
            while worker in self._parked and not is_called():
                self._changed.wait(self._POLL_SECONDS)


def schedule_in_thread(coordinator, function, lost=None):
    """Schedules a Python function, in the thread of whichever worker is free.

    The public `schedule` takes a tf.function, which does not know its worker.
    The results wait for `fetch`.

    Seen in: TensorFlow 2.18 to 2.21.

    Args:
      coordinator: tf.distribute.coordinator.ClusterCoordinator.
      function: function from the worker's index to a list of arrays. Its eager
        ops run on that worker.
      lost: as of `schedule`.

    Returns:
      tf.distribute.coordinator.RemoteValue.
    """
    name = "tensorflow.python.distribute.coordinator.coordinator_context"
    current = sys.modules[name].get_current_dispatch_context

    def run():
        return function(current().worker_index)

    return _put(coordinator, run, None, lost)


def traced_for_workers(coordinator, function, *specs):
    """A tf.function's ConcreteFunction, as `schedule` would trace it.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    with _scheduling(coordinator.strategy):
        return function.get_concrete_function(*specs)


def cancelled_with_steps(coordinator, function):
    """A ConcreteFunction that is cancelled when another step has failed.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    manager = coordinator._cluster.closure_queue._cancellation_mgr
    return manager.get_cancelable_function(function)


@functools.cache
def _default_executor(context):
    """That of threads that have none of their own, as this one at first.

    It is kept: one that is freed is waited for.
    """
    return context.executor


def _context():
    return sys.modules["tensorflow.python.eager.context"].context()


def _new_executor():
    executor = sys.modules["tensorflow.python.eager.executor"]
    return executor.new_executor(enable_async=False)


def error_of_step(error):
    """The error of a step that a ClusterCoordinator has wrapped.

    Seen in: TensorFlow 2.18 to 2.21, of steps whose input was lost.
    """
    return getattr(error, "original_exception", error)


def configure_coordination(
    cluster, leader, register_timeout_seconds, heartbeat_timeout_seconds
):
    """Configures the service for the next MultiWorkerMirroredStrategy.

    The strategy uses defaults unless the service is configured already. The
    public ways set no time-outs (tf.experimental.dtensor), or are overwritten
    by the strategy's defaults (a ConfigProto).

    Seen in: TensorFlow 2.18 to 2.21.

    Args:
      cluster: dict of job -> list of "host:port".
      leader: (job, index) of the task that runs the service.
      register_timeout_seconds: float, how long tasks wait for each other when
        they start.
      heartbeat_timeout_seconds: float, after how long without heartbeats a
        task is lost.

    Returns:
      bool, whether the first time-out has an effect: not with TensorFlow 2.18.
    """
    context = _context()
    job, index = leader
    context.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{job}/replica:0/task:{index}",
        cluster_register_timeout_in_ms=round(1000 * register_timeout_seconds),
        heartbeat_timeout_in_ms=round(1000 * heartbeat_timeout_seconds),
    )
    settings = context.coordination_service
    for job, addresses in cluster.items():
        settings.coordinated_job_list.add(name=job, num_tasks=len(addresses))
    # Without it the time-out has no effect: tasks wait an hour.
    field = "cluster_register_with_barrier"
    if field not in settings.DESCRIPTOR.fields_by_name:
        return False
    setattr(settings, field, True)
    return True


def abort_collectives(message):
    """Has all collectives of this process raise an UnavailableError, for good.

    Seen in: TensorFlow 2.18 to 2.21.

    Args:
      message: string, of the error.
    """
    context = _context()
    context.abort_collective_ops(tf.errors.UNAVAILABLE, message)


def keeping_sigterm():
    """The block in which the handler of SIGTERM stays.

    The client of the coordination service sets its own before it waits for
    other workers, and the signal would no longer end the process.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    return _core.KeptSignalHandler(signal.SIGTERM)


def shut_connections_down(peers, spared):
    """Shuts down this process's connections to some addresses.

    TensorFlow cannot disconnect from a worker that does not answer. gRPC finds
    the connection at its end, as if the worker had died, and closes it.

    Seen in: TensorFlow 2.18 to 2.21, on Linux.

    Args:
      peers: set of (address, port), IPv4 addresses in IPv4 notation.
      spared: function that tells whether a file descriptor is left alone.

    Returns:
      int, how many there were.
    """

    def shut_down(descriptor, connection):
        if spared(descriptor):
            return False
        if plain_address(connection.getpeername()) not in peers:
            return False
        # gRPC closes it when it sees the end.
        connection.shutdown(socket.SHUT_RDWR)
        return True

    return sum(use_sockets(shut_down))


def plain_address(name):
    """(address, port) of a socket's name; mapped IPv4 addresses as IPv4.

    Seen in: TensorFlow 2.18 to 2.21, whose gRPC uses IPv6 sockets for IPv4
    addresses.
    """
    return name[0].removeprefix("::ffff:"), name[1]
