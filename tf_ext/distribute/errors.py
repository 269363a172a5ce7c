# SPDX-License-Identifier: Apache-2.0
"""Errors of clusters that name the tasks lost."""

import contextlib
from collections.abc import Iterator, Mapping

import tensorflow as tf

from tf_ext._compat.cluster_errors import (
    is_of_leader,
    is_of_restarted_leader,
    is_of_restarted_server,
    server_in,
    workers_in,
)
from tf_ext._compat.clusters import error_of_step
from tf_ext.distribute import coordination, coordinators
from tf_ext.distribute.addresses import (
    is_listening,
    named,
    task_addresses,
    task_name,
)
from tf_ext.distribute.cluster import cluster_of

# The classes of errors with which TensorFlow's collectives fail when a peer is
# gone; a step that fails for another reason raises others on all workers.
_LOST_WORKER_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)


class _TasksLostError(RuntimeError):
    """Tasks of a cluster are lost, which `tasks` has, and the message names."""

    _WHAT: str
    _EFFECT: str

    def __init__(self, tasks: Mapping[str, str | None]) -> None:
        self.tasks = dict(tasks)
        super().__init__(f"Lost {self._WHAT}: {named(tasks)}. {self._EFFECT}")


class ServerLostError(_TasksLostError):
    """A parameter server died or was restarted, and its state with it.

    Attributes:
      tasks: dict of task -> "host:port", as {"/job:ps/task:1":
        "10.0.0.2:2222"}; None for an address that is not known.

    Example:
      >>> error = tf_ext.distribute.ServerLostError(
      ...     {"/job:ps/task:1": "10.0.0.2:2222"})
      >>> list(error.tasks)
      ['/job:ps/task:1']
    """

    _WHAT = "parameter servers"
    _EFFECT = (
        "They do not answer, or were restarted since this program connected to "
        "them. Their dense variables and rows are gone. Restart them, create a "
        "new strategy and model, restore the last checkpoint and continue: "
        "tf_ext.distribute.run_with_recovery does all of this."
    )


class WorkerLostError(_TasksLostError):
    """A synchronous worker died, hangs, or has ended.

    This process can no longer compute with the other workers, nor connect to
    them again.

    Attributes:
      tasks: dict of task -> "host:port", as {"/job:worker/task:1":
        "10.0.0.2:2222"}.

    Example:
      >>> error = tf_ext.distribute.WorkerLostError(
      ...     {"/job:worker/task:1": "10.0.0.2:2222"})
      >>> list(error.tasks)
      ['/job:worker/task:1']
    """

    _WHAT = "workers"
    _EFFECT = (
        "They were killed, failed, hang, ended before this one, or cannot be "
        "reached: see their logs. Their shards of tables are gone. Stop all "
        "workers and start them again: they resume from the last checkpoint."
    )


class StepLostError(WorkerLostError):
    """A worker was lost with a step of `fit(retry_steps=False)`.

    Servers may have part of the step's updates.

    Example:
      >>> error = tf_ext.distribute.StepLostError(
      ...     {"/job:worker/task:1": "10.0.0.2:2222"})
      >>> list(error.tasks)
      ['/job:worker/task:1']
    """

    _EFFECT = (
        "They do not answer, or were restarted, and their steps are not run "
        "again because of `retry_steps=False`. Parameter servers may have part "
        "of the updates of these steps. Restart the workers, create a new "
        "strategy and model, restore the last checkpoint and continue: "
        "tf_ext.distribute.run_with_recovery does all of this."
    )


def name_lost_tasks(
    error: BaseException, strategy: tf.distribute.Strategy
) -> dict[str, str | None]:
    """The tasks whose loss caused an error of TensorFlow.

    These are the tasks that the error's message names, and those that do not
    accept a connection now. Under `ParameterServerStrategy` they are parameter
    servers, of which one is named: a lost worker's steps are given to others.
    Under `MultiWorkerMirroredStrategy` they are the other workers, which end
    one after the other once one is lost.

    Args:
      error: an exception, as raised by a step, a `ClusterCoordinator` or an
        op on a server.
      strategy: the `tf.distribute.Strategy` that it was raised under.

    Returns:
      dict of task -> "host:port", as {"/job:ps/task:1": "10.0.0.2:2222"};
      empty if the error has another cause, or the strategy has no cluster.

    Example:
      >>> strategy = tf_ext.distribute.multi_worker_strategy()
      >>> tf_ext.distribute.name_lost_tasks(ValueError("rank"), strategy)
      {}
    """
    if isinstance(error, _TasksLostError):
        return dict(error.tasks)
    servers = _servers(strategy)
    if servers:
        return _lost_server(error, servers)
    return _lost_workers(error, strategy)


@contextlib.contextmanager
def naming_lost_tasks(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns the error of a lost task into one that names it.

    Other errors pass through unchanged.

    Args:
      strategy: the `tf.distribute.Strategy` that is used inside.

    Raises:
      ServerLostError: under `ParameterServerStrategy`, a parameter server died
        or was restarted.
      WorkerLostError: under `MultiWorkerMirroredStrategy`, another worker died,
        hangs, or has ended.
      StepLostError: of `fit(retry_steps=False)`, unchanged.

    Example:
    ```python
    with tf_ext.distribute.naming_lost_tasks(strategy):
        for batch in dataset:
            strategy.run(step, (batch,))
    ```
    """
    try:
        yield
    except _TasksLostError:
        if _servers(strategy):
            coordinators.keep(strategy)
        raise
    except Exception as error:
        lost = name_lost_tasks(error, strategy)
        if not lost:
            raise
        if not _servers(strategy):
            raise WorkerLostError(lost) from error
        coordinators.keep(strategy)
        raise ServerLostError(lost) from error


def _servers(strategy: tf.distribute.Strategy) -> dict[str, str]:
    return task_addresses(_cluster(strategy), ["ps"])


def _cluster(strategy: tf.distribute.Strategy) -> dict[str, list[str]]:
    """The strategy's cluster, as from `cluster_of`; empty if it has none."""
    with contextlib.suppress(ValueError):
        return cluster_of(strategy)
    return {}


def _lost_server(
    error: BaseException, servers: dict[str, str]
) -> dict[str, str | None]:
    error = error_of_step(error)
    message = str(error)
    lost = isinstance(
        error, (tf.errors.UnavailableError, tf.errors.AbortedError)
    )
    restarted = isinstance(
        error, tf.errors.InvalidArgumentError
    ) and is_of_restarted_server(message)
    if not lost and not restarted:
        return {}
    server = server_in(message)
    if server is not None:
        task = task_name("ps", server)
        return {task: servers.get(task)}
    for task, address in servers.items():
        if not is_listening(address):
            return {task: address}
    return {}


def _lost_workers(
    error: BaseException, strategy: tf.distribute.Strategy
) -> dict[str, str | None]:
    if not isinstance(error, tf.errors.OpError):
        return {}
    message = error.message
    restarted = isinstance(
        error, tf.errors.InvalidArgumentError
    ) and is_of_restarted_leader(message)
    if not restarted and not isinstance(error, _LOST_WORKER_ERRORS):
        return {}
    cluster = _cluster(strategy)
    peers = task_addresses(cluster, ["chief", "worker"])
    if len(peers) < 2:
        return {}
    resolver = strategy.cluster_resolver
    del peers[task_name(resolver.task_type, resolver.task_id)]
    said = {task_name(*found) for found in workers_in(message)}
    if not said & set(peers) and is_of_leader(message):
        said = {task_name(*coordination.leader(cluster))}
    return {
        task: address
        for task, address in peers.items()
        if task in said or not is_listening(address)
    }
