# SPDX-License-Identifier: Apache-2.0
"""ParameterServerStrategy on tasks that were checked."""

import functools
import json
import os
import time
import typing
import uuid
import weakref
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_ext._compat.clusters import connect_in_turns
from tf_ext._compat.grpc_options import (
    set_grpc_options,
    set_server_patience,
)
from tf_ext._version import __version__
from tf_ext.distribute import cpu_limit, process_1, this_task
from tf_ext.distribute.addresses import (
    named,
    split_address,
    task_addresses,
    task_name,
)
from tf_ext.distribute.cluster import (
    COORDINATOR,
    cluster_of,
    cluster_resolver,
)
from tf_ext.distribute.deadlines import call_within
from tf_ext.distribute.handshake import problems_of, wait_until_answering
from tf_ext.ops import process_ops
from tf_ext.ops.table import owner_ops

_RETRY_SECONDS = 0.2
# For a task that accepts connections to answer, on a busy machine.
_ANSWER_SECONDS = 10.0
# For a server to free the tables of an earlier run, however many.
_RELEASE_SECONDS = 60.0
_T = typing.TypeVar("_T")
_checked: weakref.WeakSet[typing.Any] = weakref.WeakSet()
_logger = this_task.logger(__name__)


def parameter_server_strategy(
    cluster: dict[str, list[str]] | None = None,
    timeout_seconds: float = 60.0,
    variable_partitioner: Callable[..., typing.Any] | None = None,
) -> tf.distribute.Strategy:
    """Connects to a cluster of workers and parameter servers.

    Settings of gRPC that the environment lacks are set first, see
    docs/parameter_servers.md; all tasks are checked afterwards, see
    `check_cluster`.

    Args:
      cluster: dict of "chief", "worker" and "ps" to lists of "host:port". The
        chief is this program. None: the environment variable `TF_CONFIG`.
      timeout_seconds: float, how long to wait for tasks that do not answer
        yet. Tasks that answer at the last moment get 10 s for the checks.
      variable_partitioner: as `tf.distribute.ParameterServerStrategy` takes
        it. Tables need none.

    Returns:
      A `tf.distribute.ParameterServerStrategy`.

    Raises:
      ValueError: `cluster` or `TF_CONFIG` is not a cluster.
      TimeoutError: tasks do not answer; the message names them, and says what
        was found at their addresses.
      RuntimeError: a task runs other versions, has no op library, or does not
        reach another; or the chief's address cannot be listened at.

    Example:
    ```python
    strategy = tf_ext.distribute.parameter_server_strategy()
    with strategy.scope():
        model = build_model()
    ```
    """
    resolver = cluster_resolver(cluster)
    with this_task.connecting(COORDINATOR, 0):
        return _connected(resolver, timeout_seconds, variable_partitioner)


def _connected(
    resolver: tf.distribute.cluster_resolver.ClusterResolver,
    timeout_seconds: float,
    variable_partitioner: Callable[..., typing.Any] | None,
) -> tf.distribute.Strategy:
    process_1.end_on_sigterm()
    cpu_limit.limit_threads()
    set_grpc_options()
    cluster = resolver.cluster_spec().as_dict()
    tasks = task_addresses(cluster)
    deadline = time.monotonic() + timeout_seconds
    silent = wait_until_answering(tasks, timeout_seconds)
    if silent:
        raise TimeoutError(
            "Not all workers and parameter servers answer after "
            f"{timeout_seconds:g} s: {silent}. Start each with `python -m "
            "tf_ext.distribute.server`, and make sure that this machine "
            "reaches its address and that no other program listens there."
        )
    # Tasks that answered at the last moment are still to be checked.
    deadline = max(deadline, time.monotonic() + _ANSWER_SECONDS)

    connect_in_turns()

    def connect() -> tf.distribute.Strategy:
        return tf.distribute.ParameterServerStrategy(
            resolver, variable_partitioner=variable_partitioner
        )

    try:
        strategy = call_within(deadline - time.monotonic(), connect)
    except tf.errors.UnknownError as error:
        (chief,) = cluster["chief"]
        raise RuntimeError(
            f"This program cannot listen at the chief's address, {chief}: "
            "another process uses the port, or this process has connected to "
            "another cluster in the meantime, which TensorFlow does not "
            f"support. TensorFlow says: {error.message}"
        ) from error
    except TimeoutError as error:
        raise _no_answer(tasks) from error
    except tf.errors.OpError as error:
        raise RuntimeError(
            "TensorFlow could not connect to the workers and parameter "
            f"servers, {named(tasks)}. Make sure that TensorFlow servers "
            "listen there, without a proxy in between. TensorFlow says: "
            f"{error.message}"
        ) from error
    set_server_patience(split_address(cluster[COORDINATOR][0])[1])
    check_cluster(strategy, deadline - time.monotonic())
    return strategy


def check_cluster(
    strategy: tf.distribute.Strategy, timeout_seconds: float = 10.0
) -> None:
    """Refuses a cluster whose tasks cannot work together.

    Every worker and parameter server has to run this program's versions of
    tf_ext and of TensorFlow, with the op library loaded; workers and servers,
    and this program and all of them, have to reach each other. A strategy that
    has passed is not checked again.

    The servers then free the tables that earlier processes left there which
    had this program's address as the chief.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`.
      timeout_seconds: float, how long all tasks together may take to answer.

    Raises:
      RuntimeError: a task cannot; the message names it.
      TimeoutError: a task does not answer in time; the message names it.

    Example:
    ```python
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    tf_ext.distribute.check_cluster(strategy)
    ```
    """
    if strategy in _checked:
        return
    cluster = cluster_of(strategy)
    deadline = time.monotonic() + timeout_seconds
    for task, address in task_addresses(cluster).items():
        found = _answer(task, address, deadline, process_ops.versions)
        _check_versions(f"{task} at {address}", found)
        found = _answer(task, address, deadline, process_ops.task)
        _check_task(task, address, found, cluster)
    chief, servers, workers = (
        task_addresses(cluster, [job]) for job in (COORDINATOR, "ps", "worker")
    )
    _check_reach(chief, {**workers, **servers}, deadline)
    for task, address in workers.items():
        _check_reach({task: address}, servers, deadline)
    owner = table_owner(strategy)
    if owner is not None:
        for task, address in servers.items():
            _release_tables(task, address, owner)
    _checked.add(strategy)
    this_task.set_connected(COORDINATOR, 0)


def table_owner(strategy: tf.distribute.Strategy) -> tuple[str, str] | None:
    """The owner of the tables made on a strategy's parameter servers.

    Args:
      strategy: a `tf.distribute.ParameterServerStrategy`.

    Returns:
      `(owner, run)` as `sparse_table_set_owner` takes them: the chief's address
      and this process. None if the cluster does not name the chief's address:
      then no other process can know that it has ended.
    """
    chief = task_addresses(cluster_of(strategy), [COORDINATOR])
    if not chief:
        return None
    (address,) = chief.values()
    return address, _run_of_process(os.getpid())


@functools.cache
def _run_of_process(pid: int) -> str:
    """A name of this process; `pid` makes that of a forked one differ."""
    del pid
    return uuid.uuid4().hex


def _release_tables(task: str, address: str, owner: tuple[str, str]) -> None:
    """Frees the tables of dead processes that had the chief's address.

    Call it only after the servers have reached this process at that address, so
    that no other live process has it.
    """

    def release() -> typing.Any:
        with tf.device(f"{task}/device:CPU:0"):
            return owner_ops.release_sparse_tables(*owner).numpy()

    try:
        tables, size = _until(release, time.monotonic() + _RELEASE_SECONDS)
    except TimeoutError as error:
        raise _no_answer({task: address}) from error
    if tables:
        _logger.info(
            "%s at %s freed %d tables (%.1f MiB) that an earlier run of this "
            "program had left there.",
            task,
            address,
            tables,
            size / 2**20,
        )


def _check_versions(task: str, found: list[str] | None) -> None:
    if found is None:
        raise RuntimeError(
            f"{task} has not loaded the op library of tf_ext "
            f"{__version__}. Start it with `python -m "
            "tf_ext.distribute.server` of that version, or call "
            "tf_ext.ops.library() before its tf.distribute.Server is made."
        )
    wanted = (__version__, tf.__version__)
    for package, needs, has in zip(
        ("tf_ext", "TensorFlow"), wanted, found, strict=True
    ):
        if needs != has:
            raise RuntimeError(
                f"{task} runs {package} {has}, but this program runs {package} "
                f"{needs}. Install {package} {needs} there and start the task "
                "again: all tasks of a cluster need the same versions."
            )


def _check_task(
    task: str,
    address: str,
    found: list[str] | None,
    cluster: dict[str, list[str]],
) -> None:
    """Refuses a task that was started as part of another cluster.

    The chief may be another: programs at several addresses may use the servers.
    """
    [text] = found or [""]
    if not text:
        return  # It is no server of tf_ext.
    its = json.loads(text)
    its_name = task_name(its["job"], its["index"])
    jobs = "worker", "ps"
    if its_name != task or any(its["cluster"][j] != cluster[j] for j in jobs):
        raise RuntimeError(
            f"{task} at {address} was started as {its_name} of the cluster "
            f"{json.dumps(its['cluster'])}, but this program's cluster is "
            f"{json.dumps(cluster)}. Start all tasks with the same workers and "
            "parameter servers, in the same order, in TF_CONFIG."
        )


def _answer(
    task: str, address: str, deadline: float, op: Callable[[], tf.Tensor]
) -> list[str] | None:
    """What an op returns on a task, or None if it does not have the op."""

    def ask() -> list[str]:
        with tf.device(f"{task}/device:CPU:0"):
            return [text.decode() for text in np.ravel(op().numpy())]

    try:
        return _until(ask, deadline)
    except tf.errors.NotFoundError:
        return None
    except tf.errors.OpError as error:
        raise RuntimeError(
            f"{task} at {address} does not answer like a TensorFlow server. "
            "Start it again with `python -m tf_ext.distribute.server`. "
            f"TensorFlow says: {error.message}"
        ) from error
    except TimeoutError as error:
        raise _no_answer({task: address}) from error


def _check_reach(
    task: dict[str, str], others: dict[str, str], deadline: float
) -> None:
    """Refuses a task that does not reach others, or is not reached by them.

    Args:
      task: dict of the task's name -> its address.
      others: dict of tasks, as `task`.
      deadline: float, of `time.monotonic()`.
    """

    @tf.function
    def there_and_back(number: typing.Any) -> typing.Any:
        answers = []
        for other in others:
            with tf.device(f"{other}/device:CPU:0"):
                answers.append(number + 1.0)
        return tf.add_n(answers)

    [name] = task

    def ask() -> None:
        with tf.device(f"{name}/device:CPU:0"):
            there_and_back(tf.constant(0.0)).numpy()

    try:
        _until(ask, deadline)
    except tf.errors.OpError as error:
        raise RuntimeError(
            f"{named(task)} and one of {named(others)} cannot reach each "
            "other, but all tasks must be able to connect to each other at "
            f"the addresses of the cluster. TensorFlow says: {error.message}"
        ) from error
    except TimeoutError as error:
        raise _no_answer({**task, **others}) from error


def _until(ask: Callable[[], _T], deadline: float) -> _T:
    """Retries until there is an answer.

    After a restart of a task, the others take a second or two to reopen their
    connections.
    """
    while True:
        try:
            return call_within(deadline - time.monotonic(), ask)
        except tf.errors.UnavailableError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_SECONDS)


def _no_answer(tasks: dict[str, str]) -> TimeoutError:
    """The TimeoutError that names the tasks that did not answer in time."""
    found = problems_of(tasks)
    if found:
        return TimeoutError(
            f"When this program connected, tasks did not answer: {found}. "
            "Start each again with `python -m tf_ext.distribute.server`."
        )
    return TimeoutError(
        f"When this program connected, one of {named(tasks)} did not answer, "
        "although something that speaks HTTP/2 listens at each of these "
        "addresses. Make sure that TensorFlow servers listen there, without "
        "a proxy in between, that they are not overloaded, and that they can "
        "reach each other."
    )
