"""Errors of a cluster, in words."""

import contextlib
import re

import tensorflow as tf

from tf_ext.distribute import coordination, coordinators
from tf_ext.distribute.addresses import (
    is_listening,
    named,
    task_addresses,
    task_name,
)
from tf_ext.distribute.cluster import cluster_of

_PS_TARGET = re.compile(r"remote target /job:ps/replica:\d+/task:(\d+)")
# What a server says, with InvalidArgumentError, that was restarted so fast
# that its connections never broke.
_RESTARTED = re.compile("unknown device|relevant tensor remote_handle", re.I)

# What the collectives of TensorFlow fail with when a peer is gone; a step that
# fails for another reason has other classes on all workers.
_LOST_WORKER_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)
_WORKER = re.compile(r"/job:(chief|worker)(?:/replica:\d+)?/task:(\d+)")
_LEADER_LOST = re.compile("/tensorflow.CoordinationService/|Leader incarnation")


class ServerLostError(RuntimeError):
    """A parameter server died or was restarted, and its state with it.

    Attributes:
      task: string, which one, as "/job:ps/task:1".

    Example:
      >>> error = tf_ext.distribute.ServerLostError("/job:ps/task:1")
      >>> error.task
      '/job:ps/task:1'
    """

    def __init__(self, task, address=None):
        self.task = task
        where = f" at {address}" if address else ""
        super().__init__(
            f"Parameter server {task}{where} was lost: it does not answer, or "
            "was restarted since this program connected to it. What it held "
            "(dense variables, rows of tables) is gone. Restart it, make a new "
            "strategy and model, restore the last checkpoint and go on; "
            "tf_ext.distribute.run_with_recovery does so."
        )


class WorkerLostError(RuntimeError):
    """A worker of those that train in step died, hangs, or has ended.

    Nothing can be computed with the others any more in this process, nor can
    it connect to the workers again.

    Attributes:
      tasks: list of strings, which ones, as ["/job:worker/task:1"].

    Example:
      >>> error = tf_ext.distribute.WorkerLostError(
      ...     {"/job:worker/task:1": "10.0.0.2:2222"})
      >>> error.tasks
      ['/job:worker/task:1']
    """

    def __init__(self, tasks):
        self.tasks = list(tasks)
        super().__init__(
            f"Lost workers: {named(tasks)}. They were killed, failed, hang, "
            "have ended before this one, or cannot be reached; their logs may "
            "tell. The shards of tables that they held are gone. End all "
            "workers and start them again: they go on from the last checkpoint."
        )


def name_lost_task(error, strategy=None):
    """The parameter server whose loss an error of TensorFlow tells of.

    The name is taken from the error's message; where it has none, the server
    that does not accept a connection is looked for.

    Args:
      error: an exception, as raised by a step, a `ClusterCoordinator` or an
        op on a server.
      strategy: the `tf.distribute.ParameterServerStrategy`, whose servers are
        looked at when the message has no name. None: they are not.

    Returns:
      The task, as "/job:ps/task:1", or None if the error is another one.

    Example:
      >>> error = tf.errors.UnavailableError(None, None, "Connection reset "
      ...     "from remote target /job:ps/replica:0/task:1/device:CPU:0")
      >>> tf_ext.distribute.name_lost_task(error)
      '/job:ps/task:1'
      >>> tf_ext.distribute.name_lost_task(ValueError("rank"))
    """
    if isinstance(error, ServerLostError):
        return error.task
    # What a ClusterCoordinator wraps when a step's input was lost.
    error = getattr(error, "original_exception", error)
    message = str(error)
    lost = isinstance(
        error, (tf.errors.UnavailableError, tf.errors.AbortedError)
    )
    restarted = isinstance(
        error, tf.errors.InvalidArgumentError
    ) and _RESTARTED.search(message)
    if not lost and not restarted:
        return None
    found = _PS_TARGET.search(message)
    if found:
        return task_name("ps", found.group(1))
    for task, address in _servers(strategy).items():
        if not is_listening(address):
            return task
    return None


@contextlib.contextmanager
def naming_lost_server(strategy):
    """Turns the error of a lost parameter server into `ServerLostError`.

    Errors that do not come from one pass through.

    Args:
      strategy: the `tf.distribute.ParameterServerStrategy` that is used
        inside.

    Raises:
      ServerLostError: a parameter server died or was restarted.

    Example:
    ```python
    with tf_ext.distribute.naming_lost_server(strategy):
        coordinator.join()
    ```
    """
    try:
        yield
    except ServerLostError:
        raise
    except Exception as error:
        task = name_lost_task(error, strategy)
        if task is None:
            raise
        coordinators.keep(strategy)
        raise ServerLostError(task, _servers(strategy).get(task)) from error


def name_lost_workers(error, strategy):
    """The workers whose loss an error of TensorFlow tells of.

    They are those that the error's message names, and those that do not accept
    a connection now: workers end one after the other once one is lost.

    Args:
      error: an exception, as raised by a step.
      strategy: the `tf.distribute.MultiWorkerMirroredStrategy`.

    Returns:
      dict of task -> "host:port", as {"/job:worker/task:1": "10.0.0.2:2222"};
      empty if the error is another one.

    Example:
      >>> strategy = tf_ext.distribute.multi_worker_strategy()
      >>> tf_ext.distribute.name_lost_workers(ValueError("rank"), strategy)
      {}
    """
    if not isinstance(error, _LOST_WORKER_ERRORS):
        return {}
    resolver = strategy.cluster_resolver
    peers = task_addresses(cluster_of(strategy), ["chief", "worker"])
    if len(peers) < 2:
        return {}
    del peers[task_name(resolver.task_type, resolver.task_id)]
    said = {task_name(*found) for found in _WORKER.findall(error.message)}
    if not said & set(peers) and _LEADER_LOST.search(error.message):
        said = {task_name(*coordination.leader(cluster_of(strategy)))}
    return {
        task: address
        for task, address in peers.items()
        if task in said or not is_listening(address)
    }


@contextlib.contextmanager
def naming_lost_worker(strategy):
    """Turns the error of a lost worker into `WorkerLostError`.

    Errors that do not come from one pass through.

    Args:
      strategy: the `tf.distribute.MultiWorkerMirroredStrategy` that is used
        inside.

    Raises:
      WorkerLostError: another worker died, hangs, or has ended.

    Example:
    ```python
    with tf_ext.distribute.naming_lost_worker(strategy):
        for batch in dataset:
            strategy.run(step, (batch,))
    ```
    """
    try:
        yield
    except tf.errors.OpError as error:
        lost = name_lost_workers(error, strategy)
        if not lost:
            raise
        raise WorkerLostError(lost) from error


def _servers(strategy):
    if strategy is None:
        return {}
    return task_addresses(cluster_of(strategy), ["ps"])
